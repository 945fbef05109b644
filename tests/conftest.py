"""Settings for all tests: double precision, no silent broadcasting, shapes checked inside the library."""

import os
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Only inner modules: the boundary has messages of its own, and tests look at those.
INNER = ["algorithm", "derivatives", "engines", "model", "randomness"]
CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
install_import_hook([f"fsgld.{name}" for name in INNER], CHECKER)

# The paper's data sets: FSGLD_DATA, or a folder beside the checkout; tests that need one say so when it is absent.
BESIDE = Path(__file__).parents[2] / "shared" / "data"
if BESIDE.is_dir():
    os.environ.setdefault("FSGLD_DATA", str(BESIDE))


@pytest.fixture(scope="module", autouse=True)
def _few_programs():
    """Forget compiled programs when there are many: each has memory maps, and Linux allows a process 65,530."""
    yield
    maps = Path("/proc/self/maps")
    if maps.is_file() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
