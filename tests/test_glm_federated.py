"""A formula across sites: columns are agreed by messages, and the result is that of the same tables in one process."""

import json

import numpy as np
import pandas as pd
import pytest

from flare_problem import Wire
from fsgld import InputError
from fsgld.engines.flare import messages
from fsgld.engines.flare.leg import arguments, run_folder, run_leg
from fsgld.engines.flare.site import Limits, Site
from fsgld.glm import evidence, glm
from fsgld.glm.federated import Agreement, in_units, write
from fsgld.study import Study

pytestmark = pytest.mark.filterwarnings("ignore:variances may be")
FORMULA = "y ~ x + g + scale(e)"
NAMES = ("north", "south", "west")


def tables(seed=0):
    """Three sites; "c" is absent in the west, two rows of the south lack x."""
    rng, found = np.random.default_rng(seed), {}
    for i, name in enumerate(NAMES):
        n = 40 + 10 * i
        t = pd.DataFrame({"x": rng.normal(100 + 5 * i, 3, n), "g": rng.choice(list("abc" if i < 2 else "ab"), n)})
        t["e"] = rng.uniform(1, 3, n)
        t["y"] = rng.poisson(np.exp(0.02 * t["x"] - 1 + 0.3 * i)).astype(float)
        found[name] = t
    found["south"].loc[[2, 7], "x"] = np.nan
    return found


def make_study(folder, rounds=6, **given):
    """Write a study by names of sites only, with few rounds."""
    given = {"formula": FORMULA, "family": "poisson", "site_effects": "hierarchical"} | given
    write(Agreement(**given), NAMES, folder, seed=5, chains=2)
    file = folder / "study.toml"
    file.write_text(file.read_text().split("[until]")[0].replace("[sampling]", f"[sampling]\nrounds = {rounds}"))
    return Study.read(folder)


def make_sites(study, folder, data=None, limits=None):
    found = {}
    for name, table in (data or tables()).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / name / "data.csv", index=False)
        read = study.agreement.read(folder / name / "data.csv")
        found[name] = Site(name, study, read, folder / name / "fsgld", limits)
    return found


@pytest.mark.parametrize("effects", ["none", "hierarchical"])
def test_the_federation_settles_on_the_same_design_and_draws(tmp_path, effects):
    study = make_study(tmp_path / "study", site_effects=effects, priors={"x": "normal(0, 0.5)"})
    wire = Wire(make_sites(study, tmp_path))
    result = study.finish(run_leg(study, NAMES, wire))
    made = glm(FORMULA, "poisson", tables(), site_effects=effects, priors={"x": "normal(0, 0.5)"})
    about = result.settings["glm"]
    assert about["sites"] == made.sites
    agreed = json.loads(json.dumps(made.design.to_json()))
    for key in set(agreed) - {"pilot"}:
        assert about["design"][key] == agreed[key], key
    found = made.sample(seed=5, chains=2, rounds=6)
    for name in found.draws:
        np.testing.assert_allclose(result.draws[name], found.draws[name], rtol=1e-5, atol=1e-6)
    assert result.settings["local_steps"] == found.settings["local_steps"]
    assert result.settings["probs"] == pytest.approx(found.settings["probs"])


def test_x(): pass
