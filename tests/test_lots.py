"""Rows drawn by leverage: unbiased whatever the probabilities, less noise, the same chain on both engines."""

import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from fsgld.algorithm import Client, draw_rows
from fsgld.dynamics import whitened
from fsgld.lots import LOTS_A_ROW, by_leverage, row_lengths
from fsgld.model_checks import check_model
from fsgld.parts import choose_parts
from fsgld.probes import noise_all
from fsgld.rows import gather
from problems import Z, regression_posterior


def rare(sizes=(60, 200, 140), seed=3):
    """Linear regression in which a few rows alone tell about the last coefficient; priors N(0, 1)."""
    rng = np.random.default_rng(seed)
    shards = []
    for n in sizes:
        X = np.column_stack([np.ones(n), rng.normal(size=n), np.arange(n) < 3])
        X[:3, 2] = 12.0
        shards.append((X, X @ [0.5, -1.0, 0.3] + rng.normal(size=n)))
    model = fsgld.Model(
        log_prior=lambda p: -0.5 * jnp.sum(p**2),
        log_likelihood=lambda p, row: -0.5 * (row[1] - row[0] @ p) ** 2,
        init=jnp.zeros(3),
    )
    return model, shards


@pytest.fixture(scope="module")
def setting():
    """Everything that `by_leverage` takes, and the lots."""
    model, shards = rare()
    table, theta = gather(shards), jnp.zeros(3)
    flat = check_model(model, theta, table)
    parts = choose_parts(model, flat, theta, table, "auto", whitened(), None, "auto")
    factor = parts.dynamics.constants["factor"]
    z = np.random.default_rng(0).normal(size=(4, 3))
    points = parts.centre[None] + jnp.asarray(z @ np.asarray(factor).T)
    given = (flat, True, points, parts.anchor, factor)
    return given, table, by_leverage(*given, table), model, shards


def probabilities(table, lots, s):
    """Count the lots of each row of client s."""
    mine = np.asarray(lots.rows)[int(lots.start[s]) : int(lots.start[s] + lots.size[s])] - table.starts[s]
    return np.bincount(mine, minlength=table.sizes[s]) / int(lots.size[s])


def test_lots_follow_half_an_even_part_and_half_the_length_of_a_row(setting):
    given, table, lots, *_ = setting
    lengths = np.asarray(row_lengths(*given, table.rows))
    for s, (start, size) in enumerate(zip(table.starts, table.sizes, strict=True)):
        mine = lengths[start : start + size]
        wanted = LOTS_A_ROW * size * (0.5 / size + 0.5 * mine / mine.sum())
        assert np.abs(probabilities(table, lots, s) * int(lots.size[s]) - wanted).max() <= 0.5  # whole numbers
    assert np.asarray(lots.weights).max() < 2.1  # 2, but for the rounding of lots


def test_lengths_are_those_of_the_gradients_differences(setting):
    (flat, _, points, anchor, factor), table, *_ = setting
    have = np.asarray(row_lengths(flat, True, points, anchor, factor, table.rows))
    X = np.asarray(table.rows[0])
    moved = np.einsum("ni,kni->kn", X, np.broadcast_to(np.asarray(points - anchor[None])[:, None], (4, *X.shape)))
    v = -moved[..., None] * X  # ∇log p(x_i|θ) − ∇log p(x_i|a) of linear regression
    want = np.sqrt(((v @ np.asarray(factor)) ** 2).sum(-1).mean(0))
    np.testing.assert_allclose(have, want, rtol=1e-10)


def test_weighted_draws_are_unbiased_by_enumeration(setting):
    """Σ_i p_i w_i v_i = mean of v_i for any v, to rounding."""
    _, table, lots, *_ = setting
    v = np.random.default_rng(1).normal(size=int(table.sizes.sum()))
    for s, (start, size) in enumerate(zip(table.starts, table.sizes, strict=True)):
        w = np.asarray(lots.weights)[start : start + size]
        have = probabilities(table, lots, s) @ (w * v[start : start + size])
        assert have == pytest.approx(v[start : start + size].mean(), abs=1e-12)


def test_rows_are_drawn_as_often_as_they_have_lots(setting):
    """All 2^16 high halves of the random bits once: frequencies are p_i to the width of the grid."""
    _, table, lots, *_ = setting
    one = lots._replace(start=lots.start[1], size=lots.size[1])
    client = Client(table.rows, jnp.asarray(table.starts[1]), jnp.asarray(table.sizes[1]), None, None, (), one)
    drawn = draw_rows(client, (jnp.arange(2**16, dtype=jnp.uint32) << 16)[None])
    share = np.bincount(np.asarray(drawn)[0] - table.starts[1], minlength=table.sizes[1]) / 2**16
    slack = (np.asarray(probabilities(table, lots, 1)) * int(lots.size[1]) + 1) / 2**16
    assert (np.abs(share - probabilities(table, lots, 1)) <= slack).all()


def test_the_noise_of_a_draw_is_what_the_docstring_says(setting):
    """N² Var(w v) = Σ_i c_i²/p_i − (Σ_i c_i)², and less than with even draws."""
    (flat, _, points, anchor, factor), table, lots, *_ = setting
    places = (jnp.asarray(table.starts), jnp.asarray(table.sizes))
    by_lots = noise_all(flat, True, points, anchor, factor, table.rows, lots.weights, *places).variance
    even = noise_all(flat, True, points, anchor, factor, table.rows, jnp.ones_like(lots.weights), *places).variance
    L = np.asarray(factor)
    seen = L / np.linalg.norm(L, axis=1)[:, None]
    for s, (start, size) in enumerate(zip(table.starts, table.sizes, strict=True)):
        X = np.asarray(table.rows[0])[start : start + size]
        p = probabilities(table, lots, s)
        for k in range(4):
            c = (-(X @ np.asarray(points[k] - anchor))[:, None] * X) @ L @ seen.T
            want = (c**2 / p[:, None]).sum(0) - c.sum(0) ** 2
            np.testing.assert_allclose(np.asarray(by_lots)[s, k] * size**2, want, rtol=1e-9)
    assert np.asarray(by_lots).mean((1, 2)).sum() < 0.5 * np.asarray(even).mean((1, 2)).sum()


@pytest.mark.slow
def test_engines_agree_on_rows_drawn_by_leverage(setting):
    *_, model, shards = setting
    run = {"mini_batches": "leverage", "step_size": 0.1, "batch_size": 8, "local_steps": 4, "rounds": 12, "chains": 2}
    compiled, reference = (fsgld.sample(model, shards, engine=engine, **run) for engine in ("compiled", "reference"))
    np.testing.assert_allclose(compiled.draws, reference.draws, rtol=1e-10)
    assert compiled.settings["mini_batches"] == "leverage"


@pytest.mark.slow
def test_the_law_with_leverage_is_the_posterior_widened_as_predicted(setting):
    """Exact mean; variances between 1 and 1 + the predicted inflation, each within Z Monte Carlo errors."""
    *_, model, shards = setting
    result = fsgld.sample(
        model, shards, mini_batches="leverage", step_size=0.1, batch_size=4, local_steps=10, rounds=20_000
    )
    mean, covariance = regression_posterior(shards)
    x, sd = result.draws, np.sqrt(np.diag(covariance))
    error = np.abs(x.mean((0, 1)) - mean) / fsgld.diagnostics.mcse_mean(x)
    assert error.max() < Z
    ratio, mc = x.std((0, 1)) / sd, fsgld.diagnostics.mcse_sd(x) / sd
    widest = np.sqrt(1 + result.settings["preflight"]["inflation"])
    assert ((ratio > 1 - Z * mc) & (ratio < widest + Z * mc)).all()
    assert widest > 1.01  # there is something to see


def test_even_draws_are_the_default_where_they_are_good_enough():
    model, shards = rare(sizes=(30, 40))
    found = fsgld.preflight(model, shards)
    assert found.mini_batches == "uniform"
    assert fsgld.preflight(model, shards, mini_batches="leverage").noise.sum() < found.noise.sum()


def test_leverage_without_whitened_coordinates_is_refused():
    model, shards = rare(sizes=(30, 40))
    with pytest.raises(fsgld.InputError, match="needs whitened dynamics"):
        fsgld.sample(model, shards, None, dynamics=fsgld.langevin(1e-3), mini_batches="leverage")
    with pytest.raises(fsgld.InputError, match='mini_batches must be "auto", "uniform" or "leverage"'):
        fsgld.sample(model, shards, mini_batches="all")
