"""Dynamics and schedules: every formula of a docstring, both sides."""

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
