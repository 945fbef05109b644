"""The federation's mathematics in one process: same draws as the compiled engine, whatever goes wrong on the way."""

import numpy as np
import pytest

import fsgld
from flare_problem import NAMES, Wire, make_sites, shards, write_study
from fsgld.engines.flare.leg import arguments, run_leg


def compiled(study, **more):
    return fsgld.sample(study.model(), shards(study), **(arguments(study) | more))


def same(one, other):
    np.testing.assert_array_equal(one.visited, other.visited)
    for name in ("w", "b"):
        np.testing.assert_allclose(one.draws[name], other.draws[name], rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:variances may be")
def test_the_federation_draws_the_same_chain_as_the_compiled_engine(tmp_path):
    study = write_study(tmp_path / "study")
    result = run_leg(study, NAMES, Wire(make_sites(study, tmp_path)))
    same(result, compiled(study))
