"""Dynamics and schedules: every formula of a docstring, both sides."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from fsgld import schedules

THETA, V, XI = jnp.array([0.5, -1.0]), jnp.array([2.0, 3.0]), jnp.array([0.1, -0.4])


def step(dynamics, steps=1, xi=XI):
    state = dynamics.init(THETA)
    for _ in range(steps):
        state = dynamics.step(state, V, xi)
    return state


def test_langevin_is_half_h_drift_and_root_h_noise():
    np.testing.assert_allclose(step(fsgld.langevin(0.04)).theta, THETA + 0.02 * V + 0.2 * XI, rtol=1e-12)


def test_whitened_is_the_exact_ou_step_in_whitened_coordinates():
    """θ' = θ + (1 − ρ) M v + √(1 − ρ²) L ξ, and z' = ρ z + (1 − ρ) r + √(1 − ρ²) ξ for z = L⁻¹(θ − μ)."""
    P, mu, h = np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([1.0, 1.0]), 0.7
    dynamics = fsgld.whitened(h, precision=P)
    L, rho = np.array(dynamics.constants["factor"]), np.exp(-h / 2)
    np.testing.assert_allclose(L @ L.T, np.linalg.inv(P), rtol=1e-12)
    new = np.array(step(dynamics).theta)
    np.testing.assert_allclose(new, THETA + (1 - rho) * np.linalg.inv(P) @ V + np.sqrt(1 - rho**2) * L @ XI, rtol=1e-12)
    z, residual = np.linalg.solve(L, THETA - mu), L.T @ (V + P @ (THETA - mu))
    z_new = rho * z + (1 - rho) * residual + np.sqrt(1 - rho**2) * XI
    np.testing.assert_allclose(np.linalg.solve(L, new - mu), z_new, rtol=1e-12)


def test_whitened_takes_a_diagonal_too():
    P = np.array([3.0, 0.5])
    np.testing.assert_allclose(
        step(fsgld.whitened(0.3, precision=P)).theta, step(fsgld.whitened(0.3, precision=np.diag(P))).theta, rtol=1e-12
    )


def test_whitened_becomes_preconditioned_langevin_for_small_steps():
    h, P = 1e-8, np.eye(2)
    a = step(fsgld.whitened(h, precision=P), xi=jnp.zeros(2)).theta - THETA
    b = step(fsgld.langevin(h), xi=jnp.zeros(2)).theta - THETA
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_sghmc_follows_its_recursion_and_is_langevin_at_friction_one():
    h, a, p, theta = 0.04, 0.3, np.zeros(2), np.array(THETA)
    for _ in range(3):
        p = (1 - a) * p + h / 2 * np.array(V) + np.sqrt(a * h) * np.array(XI)
        theta = theta + p
    state = step(fsgld.sghmc(h, a), steps=3)
    np.testing.assert_allclose(state.theta, theta, rtol=1e-12)
    np.testing.assert_allclose(state.memory, p, rtol=1e-12)
    np.testing.assert_allclose(step(fsgld.sghmc(h, 1.0), 3).theta, step(fsgld.langevin(h), 3).theta, rtol=1e-12)


def test_psgld_follows_its_recursion():
    h, beta, floor, theta = 0.04, 0.9, 1e-3, np.array(THETA)
    second = np.array(V) ** 2
    for _ in range(3):
        G = 1 / (floor + np.sqrt(second))
        theta = theta + h / 2 * G * np.array(V) + np.sqrt(h * G) * np.array(XI)
        second = beta * second + (1 - beta) * np.array(V) ** 2
    np.testing.assert_allclose(step(fsgld.psgld(h, beta, floor), 3).theta, theta, rtol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        (schedules.constant(0.1), lambda t: 0.1),
        (schedules.polynomial(0.5, 2.0, 0.55), lambda t: 0.5 * (2.0 + t) ** -0.55),
        (schedules.polynomial(1, 100, 1), lambda t: 1 / (100 + t)),
        (schedules.cosine(0.4, 50, 0.1), lambda t: 0.1 + 0.15 * (1 + np.cos(np.pi * min(t / 50, 1)))),
        (schedules.cyclical(0.4, 30), lambda t: 0.2 * (1 + np.cos(np.pi * (t % 30) / 30))),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_schedules_are_their_formulas(schedule, formula):
    for t in (0, 1, 29, 30, 49, 50, 1000, 20_000_001):
        np.testing.assert_allclose(schedule(jnp.asarray(t)), formula(t), rtol=1e-9)


def test_the_step_counter_travels_and_sets_the_step_size():
    """h_t counts t per chain: with v = 0 and ξ = 1 the moves of θ are √h_t."""
    dynamics = fsgld.langevin(schedules.polynomial(1.0, 1.0, 1.0))
    state, moves = dynamics.init(jnp.zeros(1)), []
    for t in range(5):
        assert int(state.t) == t
        new = dynamics.step(state, jnp.zeros(1), jnp.ones(1))
        moves.append(float((new.theta - state.theta)[0]))
        state = new
    np.testing.assert_allclose(moves, [(1 + t) ** -0.5 for t in range(5)], rtol=1e-12)


P, MU, LIMIT = np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([0.2, -0.4]), 2.5
PRECISIONS = {"dense": P, "diagonal": np.array([3.0, 0.5])}


def tamed(precision, h=0.7, limit=LIMIT):
    return fsgld.whitened(h, precision=precision).tamed(MU, limit)


@pytest.mark.parametrize("size", [0.5, 0.999, 1.001, 40.0])
@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=PRECISIONS)
def test_tamed_residuals_are_r_min_1_c_over_r(precision, size):
    """z' = ρ z + (1 − ρ) r min(1, c/‖r‖) + √(1 − ρ²) ξ, for residuals r of `size` times the limit c."""
    dynamics, rho = tamed(precision), np.exp(-0.35)
    L = np.array(dynamics.constants["factor"])
    L = np.diag(L) if L.ndim == 1 else L
    z, r = np.linalg.solve(L, THETA - MU), size * LIMIT * np.array([0.6, -0.8])
    v = np.linalg.solve(L.T, r - z)  # r is what v has beyond −P(θ − μ)
    np.testing.assert_allclose(L.T @ (v + np.linalg.inv(L @ L.T) @ (THETA - MU)), r, rtol=1e-12)
    new = dynamics.step(dynamics.init(THETA), jnp.asarray(v), XI)
    z_new = rho * z + (1 - rho) * r * min(1, 1 / size) + np.sqrt(1 - rho**2) * np.array(XI)
    np.testing.assert_allclose(np.linalg.solve(L, new.theta - MU), z_new, rtol=1e-10)
    assert int(new.memory) == (size > 1)
    if size < 1:
        untamed = fsgld.whitened(0.7, precision=precision)
        plain = untamed.step(untamed.init(THETA), jnp.asarray(v), XI)
        np.testing.assert_allclose(new.theta, plain.theta, rtol=1e-12, atol=1e-12)


def test_steps_that_met_the_limit_are_counted():
    dynamics, gradient = tamed(np.ones(2)), -(THETA - MU)
    state, lengths = dynamics.init(THETA), [0.1, 2.6, 2.4, 100.0, 0.0, 2.5]  # a length of c itself is met
    for n, length in enumerate(lengths):
        gradient = -(state.theta - MU) + jnp.array([length, 0.0])
        state = dynamics.step(state, gradient, XI)
        assert int(state.t) == n + 1
    assert int(state.memory) == 3


@pytest.mark.parametrize("v", [[np.inf, 1.0], [-np.inf, np.nan], [1e200, -1e200], [1e308, 1e308]])
def test_a_gradient_that_is_no_number_moves_a_tamed_chain_by_a_bounded_step(v):
    """‖z'‖ ≤ ρ‖z‖ + (1 − ρ) c + √(1 − ρ²) ‖ξ‖ whatever v."""
    dynamics, rho = tamed(np.ones(2)), np.exp(-0.35)
    state = dynamics.step(dynamics.init(THETA), jnp.asarray(v), XI)
    bound = rho * np.linalg.norm(THETA - MU) + (1 - rho) * LIMIT + np.sqrt(1 - rho**2) * np.linalg.norm(XI)
    assert np.linalg.norm(state.theta - MU) <= bound + 1e-12
    assert int(state.memory) == 1


@pytest.mark.parametrize("h", [0.1, 1.0, 20.0])
def test_a_tamed_chain_cannot_run_away_where_the_untamed_does(h):
    """log p = −θ²/2 − θ⁴: the residual −4θ³ grows faster than any step size allows for. Start far out."""
    gradient = lambda theta: -theta - 4 * theta**3  # noqa: E731
    plain, bounded = fsgld.whitened(h, precision=np.ones(1)), fsgld.whitened(h, precision=np.ones(1)).tamed([0.0], 5.0)
    xi = jnp.asarray(np.random.default_rng(0).normal(size=(400, 1)))

    @jax.jit
    def run(dynamics):
        def step(state, x):
            new = dynamics.step(state, gradient(state.theta), x)
            return new, (state.theta[0], new.theta[0])

        return jax.lax.scan(step, dynamics.init(jnp.array([20.0])), xi)[1]

    assert not np.isfinite(run(plain)[1]).all()
    before, after = np.abs(np.array(run(bounded)))
    rho = np.exp(-h / 2)
    assert (after <= rho * before + (1 - rho) * 5 + np.sqrt(1 - rho**2) * np.abs(xi[:, 0]) + 1e-9).all()
    assert np.isfinite(after).all()


def test_the_result_says_in_words_how_many_steps_were_tamed():
    words = r"2.5 % of the steps of a chain met a gradient far beyond what the pre-flight saw and were shortened"
    few = fsgld.Result({}, np.arange(0), np.zeros((1, 3), int), ("a",), (), {"tamed": [1e-4, 9e-4]}, {})
    many = fsgld.Result({}, np.arange(0), np.zeros((1, 3), int), ("a",), (), {"tamed": [1e-4, 0.025]}, {})
    assert few.problems() == []
    (line,) = many.problems()
    assert re.match(words, line)
    assert "smaller step_size" in line
