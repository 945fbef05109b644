"""The gold cases: `fsgld.sample(model, shards)` against NUTS, with nothing tuned.

A case fails if its worst parameter's mean is more than 0.1 sd off, or its sd more than 5 %, beyond three Monte Carlo
errors. For a sampler without bias that happens to one parameter with probability below 1e-4 at the effective sample
sizes here (0.1 + 3 errors is 7 errors); seeds are fixed. `python -m fsgld.experiments.cases` runs all of them.
"""

import warnings

import numpy as np
import pytest

import fsgld
from fsgld.experiments.cases import CASES, compare, load_reference, predictive_gap, run_defaults

AUTO = [
    "heart", "heart-one-class", "heart-away", "heart-leaves", "concrete-target", "airfoil-column",
    "small-regression-target", "poisson-column", "unscaled", "many", "metric",
]  # fmt: skip
FORCED = [*(("heart-one-class", steps) for steps in (1, 20, 200)), ("small-regression", 20)]


def build(name):
    """Build a case; skip the test, and say so, if its data are not here."""
    try:
        return CASES[name]()
    except fsgld.InputError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps"), [(name, "auto") for name in AUTO] + FORCED)
def test_the_defaults_are_right(name, steps):
    case = build(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # who was away or never visited is said; other tests look at the words
        result = run_defaults(case, steps, seed=1)
    row = compare(result, load_reference(name))
    assert row.verdict == "pass", row
    assert max(result.settings["tamed"]) < 1e-3
    if case.test is not None:
        assert abs(predictive_gap(case, result, load_reference(name))) < 0.003


@pytest.mark.slow
def test_long_visits_are_wrong_and_said_to_be():
    """The negative control: visits that the pre-flight would not choose widen the law, and both reports say so."""
    case = CASES["small-regression-target"]()
    with pytest.warns(UserWarning) as said:
        result = fsgld.sample(case.model, case.shards, step_size=0.1, local_steps=200, rounds=500, seed=1)
    words = " ".join(str(warning.message) for warning in said)
    assert "is too long" in words
    assert "were shortened" in words
    assert compare(result, load_reference(case.name)).verdict == "fail"
    assert np.isfinite(result.flat_draws()[1]).all()
