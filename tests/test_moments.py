"""Surrogates matched over prior × q: exact where a Taylor expansion is, closer where it is not."""

import importlib

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss

import fsgld
from fsgld import newton
from fsgld.dynamics import whitened
from fsgld.measure import disagreement, measure
from fsgld.model_checks import check_model
from fsgld.parts import choose_parts, with_mode
from fsgld.rows import gather
from problems import regression

preflight = importlib.import_module("fsgld.preflight")


def find(model, shards):
    table, theta = gather(shards), jnp.ravel(jnp.asarray(model.start()))
    flat = check_model(model, theta, table)
    return flat, table, newton.find_mode(flat, theta, table)


def counts():
    """Poisson counts with rate exp(θ), few of them: the posterior is skewed; two clients that disagree."""
    shards = [np.array([0.0, 0.0, 1.0]), np.array([3.0, 2.0])]
    return fsgld.Model(
        lambda t: -0.5 * jnp.sum(t**2) / 4, lambda t, y: jnp.sum(y * t - jnp.exp(t)), jnp.zeros(1)
    ), shards


def apart():
    """Two clients that count for one parameter each, few times: what one misses the other cannot know."""
    x, shards = np.eye(2), [np.array([1.0, 0.0, 2.0]), np.array([3.0, 1.0])]
    rows = [(np.tile(x[s], (len(y), 1)), y) for s, y in enumerate(shards)]
    model = fsgld.Model(
        lambda t: -0.5 * jnp.sum(t**2) / 4, lambda t, row: row[1] * (row[0] @ t) - jnp.exp(row[0] @ t), jnp.zeros(2)
    )
    return model, rows


def test_for_a_gaussian_likelihood_nothing_changes():
    flat, table, mode = find(*regression())
    matched = newton.match_moments(flat, mode, table)
    np.testing.assert_allclose(matched.theta, mode.theta, atol=1e-8)
    np.testing.assert_allclose(matched.surrogates.precision, mode.surrogates.precision, atol=1e-8)
    np.testing.assert_allclose(matched.surrogates.shift, mode.surrogates.shift, atol=1e-7)


@pytest.mark.slow
def test_the_fixed_point_is_the_best_gaussian():
    """Λ_s = E H_s and E ∇log posterior = 0 under N(μ, M), by Gauss–Hermite quadrature; 2000 probes err by 3 %."""
    flat, table, mode = find(*counts())
    matched = newton.match_moments(flat, mode, table, sweeps=12, probes=2000)
    H = np.asarray(matched.surrogates.precision)[:, 0, 0]
    mu, M = float(matched.theta[0]), 1 / (0.25 + H.sum())
    z, w = hermegauss(40)
    rate = np.exp(mu + np.sqrt(M) * z) @ w / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(H, [3 * rate, 2 * rate], rtol=0.03)
    assert abs(6 - 5 * rate - mu / 4) * np.sqrt(M) < 0.03  # in posterior sds
    assert abs(mu - float(mode.theta[0])) * np.sqrt(1 / M) > 0.1  # the mode is somewhere else


def test_clients_disagree_less_than_with_expansions_at_the_mode():
    model, shards = apart()
    flat, table, mode = find(model, shards)
    parts = choose_parts(model, flat, mode.theta, table, "auto", whitened(), None, None)
    other = with_mode(flat, parts, table, newton.match_moments(flat, mode, table))
    measured = [disagreement(measure(flat, p, table), p.probs)[0] for p in (parts, other)]
    assert measured[1] < 0.7 * measured[0]
    assert "moments matched" in other.words


def test_the_preflight_matches_moments_where_clients_disagree_much(monkeypatch):
    model, shards = apart()
    assert fsgld.sample(model, shards, rounds=50).settings["surrogates"].startswith("auto: anchored at the mode")
    monkeypatch.setattr(preflight, "MUCH", 0.0)
    assert fsgld.sample(model, shards, rounds=50).settings["surrogates"].startswith("auto: moments matched")


def test_without_a_positive_precision_there_is_no_match():
    """The likelihood curves up away from its mode, more than the prior curves down."""
    model = fsgld.Model(lambda t: -5e-4 * jnp.sum(t**2), lambda t, y: jnp.sum(t**4 / 20 - t**2 / 2) * y, jnp.zeros(1))
    flat, table, mode = find(model, [np.array([1.0, 1.0]), np.array([1.0])])
    wide = mode._replace(surrogates=mode.surrogates * 1e-3)  # draws far outside
    assert newton.match_moments(flat, wide, table) is None


@pytest.mark.parametrize("asked", [None, [0.3, 0.7]])
def test_probabilities_that_were_given_stay(asked):
    model, shards = counts()
    flat, table, mode = find(model, shards)
    parts = choose_parts(model, flat, mode.theta, table, "auto", whitened(), None, asked)
    other = with_mode(flat, parts, table, newton.match_moments(flat, mode, table))
    np.testing.assert_allclose(other.probs, [0.5, 0.5] if asked is None else asked)


def test_local_steps_are_capped_where_they_would_leave_few_draws_and_the_message_says_why(monkeypatch):
    """Unless rounds are given too: then everything is as it was asked for."""
    model, shards = apart()
    asked = fsgld.preflight(model, shards, local_steps=200)
    assert (asked.local_steps, asked.notes) == (200, ())
    monkeypatch.setattr(preflight, "MOST_WORK", 64 * 200 * 100)  # about a hundred visits of 200 steps
    capped = fsgld.preflight(model, shards, local_steps=200)
    assert capped.local_steps == fsgld.preflight(model, shards).local_steps < 200
    assert "local_steps is capped at" in capped.notes[0]
    assert "effective draws" in capped.notes[0]
    assert any(name in capped.notes[0] for name in capped.clients)
    assert fsgld.preflight(model, shards, local_steps=200, rounds=100).local_steps == 200
