"""Chains that begin where another run ended: at their places, with tables made there."""

import jax.numpy as jnp
import numpy as np
import pytest

import fsgld

SHARDS = [np.random.default_rng(s).normal(s, 1, (20 + s, 2)) for s in range(3)]
MODEL = fsgld.Model(
    lambda p: -0.5 * jnp.sum(p["mu"] ** 2),
    lambda p, x: -0.25 * jnp.sum((x - p["mu"]) ** 4),
    init={"mu": jnp.array([0.5, 0.0])},
)
SETTINGS = {"dynamics": fsgld.langevin(1e-4), "local_steps": 5, "rounds": 8, "chains": 2, "batch_size": 4, "thin": 5}


@pytest.mark.parametrize("refresh", ["never", "on_visit"])
def test_start_at_init_is_the_default(refresh):
    q = fsgld.fit(MODEL, SHARDS, fsgld.anchored, order=1)
    settings = SETTINGS | {"likelihood": fsgld.control_variate, "refresh": refresh}
    default = fsgld.sample(MODEL, SHARDS, q, **settings)
    same = fsgld.sample(MODEL, SHARDS, q, start={"mu": np.tile(MODEL.init["mu"], (2, 1))}, **settings)
    np.testing.assert_allclose(same.draws["mu"], default.draws["mu"], rtol=1e-12)


def test_every_chain_goes_on_from_its_own_end_with_a_table_of_its_own():
    first = fsgld.sample(MODEL, SHARDS, None, **SETTINGS)
    ends = {"mu": first.draws["mu"][:, -1]}
    wrong = fsgld.fit(MODEL, SHARDS, fsgld.anchored, order=1, anchor={"mu": jnp.array([9.0, 9.0])})
    settings = SETTINGS | {"refresh": "on_visit", "likelihood": fsgld.control_variate, "seed": 1}
    together = fsgld.sample(MODEL, SHARDS, wrong, start=ends, **settings)
    # alone, with surrogates and anchor at the first chain's end: what was given at (9, 9) has left no trace
    end = {"mu": jnp.asarray(ends["mu"][0])}
    right = fsgld.fit(MODEL, SHARDS, fsgld.anchored, order=1, anchor=end)
    settings |= {"likelihood": fsgld.control_variate.at(end), "chains": 1}
    alone = fsgld.sample(fsgld.Model(MODEL.log_prior, MODEL.log_likelihood, end), SHARDS, right, **settings)
    np.testing.assert_allclose(together.draws["mu"][0], alone.draws["mu"][0], rtol=1e-9)
    assert np.abs(together.draws["mu"][:, 0] - ends["mu"]).max() < 0.5


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"mu": np.zeros(2)}, "must look like the model's init"),
        ({"mu": np.zeros((3, 2))}, "leading axis of 2 chains"),
        ({"nu": np.zeros((2, 2))}, "must look like the model's init"),
        ({"mu": np.full((2, 2), np.nan)}, "chain 0"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(start, message):
    with pytest.raises(fsgld.errors.InputError, match=message):
        fsgld.sample(MODEL, SHARDS, None, start=start, **SETTINGS)
