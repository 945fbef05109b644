"""Fits against closed forms, and the federated mode against the pooled one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fsgld
from fsgld.derivatives import Shard, curvature, gradient, largest_curvature, value
from fsgld.newton import find_mode
from fsgld.rows import gather
from problems import logistic, regression


def quadratic(X, y):
    return X.T @ X, X.T @ y


def test_analytic_is_the_regressions_natural_parameters():
    """Λ_s = X_sᵀX_s and shift_s = X_sᵀy_s (σ = 1)."""
    model, shards = regression()
    for q, (X, y) in zip(fsgld.fit(model, shards, fsgld.analytic), shards, strict=True):
        np.testing.assert_allclose(q.precision, X.T @ X, rtol=1e-10)
        np.testing.assert_allclose(q.shift, X.T @ y, rtol=1e-10)


@pytest.mark.slow
def test_a_client_can_run_every_fit_alone():
    model, shards = regression()
    together = fsgld.fit(model, shards, fsgld.laplace)
    for q, data in zip(together, shards, strict=True):
        np.testing.assert_allclose(fsgld.laplace(model, data).precision, q.precision, rtol=1e-10)


@pytest.mark.parametrize("rows", [1, 511, 512, 513, 1500])
def test_derivatives_over_blocks_are_those_over_all_rows(rows):
    """value, G, H and λ_max of a shard inside a table, against autodiff of the plain sum."""
    model, shards = logistic(sizes=(40, rows, 3))
    table, flat, theta = gather(shards), model.flatten(), jnp.array([0.3, -0.2, 0.5, 0.1])
    shard = Shard(table.rows, 40, rows)
    data = jax.tree.map(jnp.asarray, shards[1])
    whole = lambda t: jnp.sum(flat.log_likelihood(t, data))  # noqa: E731
    H = -jax.hessian(whole)(theta)
    np.testing.assert_allclose(value(flat, theta, shard), whole(theta), rtol=1e-10)
    np.testing.assert_allclose(gradient(flat, theta, shard), jax.grad(whole)(theta), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(curvature(flat, theta, shard, "dense"), H, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(curvature(flat, theta, shard, "diagonal"), jnp.diag(H), rtol=1e-9)
    top = np.linalg.eigvalsh(H).max()
    np.testing.assert_allclose(largest_curvature(flat, theta, shard), top, rtol=0.05)


def test_anchored_is_the_taylor_expansion():
    """Order 2: Λ = H(a), shift = G(a) + H(a)a; order 1: Λ = 0, shift = G(a). Gradients agree at the anchor."""
    model, shards = logistic()
    anchor = {"w": jnp.array([0.5, 0.0, -0.5]), "b": jnp.array(0.2)}
    theta = jax.flatten_util.ravel_pytree(anchor)[0]
    flat, data = model.flatten(), jax.tree.map(jnp.asarray, shards[0])
    whole = lambda t: jnp.sum(flat.log_likelihood(t, data))  # noqa: E731
    G, H = jax.grad(whole)(theta), -jax.hessian(whole)(theta)
    dense = fsgld.anchored(model, shards[0], anchor)
    diagonal = fsgld.anchored(model, shards[0], anchor, diagonal=True)
    linear = fsgld.anchored(model, shards[0], anchor, order=1)
    np.testing.assert_allclose(dense.precision, H, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(dense.shift, G + H @ theta, rtol=1e-9)
    np.testing.assert_allclose(diagonal.precision, jnp.diag(H), rtol=1e-9)
    assert linear.precision is None
    for q in (dense, diagonal, linear):
        np.testing.assert_allclose(q.grad_log(theta), G, rtol=1e-9)


def test_laplace_is_centred_at_the_local_mode():
    model, shards = logistic(sizes=(200, 300, 100))
    for q, data in zip(fsgld.fit(model, shards, fsgld.laplace), shards, strict=True):
        rows = jax.tree.map(jnp.asarray, data)
        flat = model.flatten()
        whole = lambda t: -jnp.sum(flat.log_likelihood(jnp.asarray(t), rows))  # noqa: E731, B023
        mode = minimize(whole, np.zeros(4), jac=jax.grad(whole), tol=1e-12).x
        sd = np.sqrt(np.diag(np.linalg.inv(q.precision)))
        assert np.abs((np.asarray(q.mean) - mode) / sd).max() < 1e-3
        np.testing.assert_allclose(q.precision, jax.hessian(whole)(jnp.asarray(mode)), rtol=1e-3)


@pytest.mark.parametrize("diagonal", [False, True])
def test_from_draws_finds_the_moments_of_the_likelihood(diagonal):
    """Local SGLD on a Gaussian likelihood: the paper's 3000 draws recover mean and covariance.

    With h = 0.1/λ_max and full-size batches the bias of the variance is below 5 %; draws 200 steps apart leave a
    Monte Carlo error of 2.6 % for each variance, so 5 % + 5 σ = 18 % alarms falsely less than once in 1e5 entries.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    data = (X, X @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=400))
    model, _ = regression()
    largest = np.linalg.eigvalsh(X.T @ X).max()
    q = fsgld.from_draws(model, data, thin=200, step_size=0.1 / largest, batch_size=400, diagonal=diagonal, seed=1)
    covariance = np.linalg.inv(X.T @ X)
    sd = np.sqrt(np.diag(covariance))
    assert np.abs((np.asarray(q.mean) - covariance @ X.T @ data[1]) / sd).max() < 0.1
    assert np.abs(np.sqrt(np.diag(q.covariance)) / sd - 1).max() < 0.09
    assert q.kind == ("diagonal" if diagonal else "dense")


@pytest.mark.parametrize("problem", [regression, logistic])
def test_the_federated_mode_is_the_pooled_mode(problem):
    model, shards = problem()
    flat, table = model.flatten(), gather(shards)
    theta = jax.flatten_util.ravel_pytree(model.start())[0]
    mode = find_mode(flat, theta, table)
    rows = jax.tree.map(lambda *x: jnp.concatenate(x), *shards)
    loss = lambda t: -(flat.log_prior(jnp.asarray(t)) + jnp.sum(flat.log_likelihood(jnp.asarray(t), rows)))  # noqa: E731
    best = minimize(loss, theta, jac=jax.grad(loss), tol=1e-12).x
    sd = np.sqrt(np.diag(np.linalg.inv(jax.hessian(loss)(jnp.asarray(best)))))
    assert np.abs((mode.theta - best) / sd).max() < 1e-3
    np.testing.assert_allclose(
        mode.surrogates.total().grad_log(mode.theta), -flat.grad_log_prior(mode.theta), atol=1e-2
    )
    assert mode.sweeps <= 10


def test_the_federated_mode_needs_no_local_mode():
    """One client has one class only, another fewer rows than parameters; predictors are unscaled."""
    model, shards = logistic(sizes=(60, 2, 80), seed=3)
    shards[0]["y"][:] = 1.0
    for data in shards:
        data["x"] = data["x"] * np.array([1e-3, 1.0, 1e4])
    wide = fsgld.Model(
        lambda p: -0.5 * (jnp.sum((p["w"] * jnp.array([1e-3, 1.0, 1e4])) ** 2) + p["b"] ** 2),
        model.log_likelihood,
        model.init,
    )
    flat, table = wide.flatten(), gather(shards)
    mode = find_mode(flat, jnp.zeros(4), table)
    total = jnp.sum(jnp.stack([gradient(flat, mode.theta, Shard(table.rows, int(a), int(n)))
                               for a, n in zip(table.starts, table.sizes, strict=True)]), 0)  # fmt: skip
    scaled = (total + flat.grad_log_prior(mode.theta)) / jnp.array([1.0, 1e-3, 1.0, 1e4])  # b, then w
    assert np.abs(scaled).max() < 1e-3
    assert mode.sweeps <= 20


def test_every_client_draws_numbers_of_its_own():
    """Two clients with the same rows must not have the same errors, or errors would add up over clients."""
    model, shards = regression(sizes=(40,))
    one, two = fsgld.fit(model, [shards[0], shards[0]], fsgld.from_draws, draws=200)
    assert not np.allclose(one.mean, two.mean, rtol=1e-6)


def test_a_method_of_the_users_gets_one_clients_data_and_nothing_else():
    model, shards = regression()
    seen = []
    fsgld.fit(model, shards, lambda m, data: seen.append(data) or fsgld.Gaussian.flat(3))
    for got, (X, y) in zip(seen, shards, strict=True):
        np.testing.assert_array_equal(got[0], X)
        np.testing.assert_array_equal(got[1], y)


def test_local_draws_of_a_one_class_shard_are_refused():
    model, shards = logistic(sizes=(50,))
    shards[0]["y"][:] = 1.0
    with pytest.raises(fsgld.InputError, match=r"client 0: .*no mode.*fsgld.anchored"):
        fsgld.fit(model, shards, fsgld.from_draws)


def test_a_saddle_is_not_a_mode():
    model = fsgld.Model(lambda p: -0.5 * p**2, lambda p, x: -((p**2 - 4.0) ** 2), jnp.zeros(()))
    with pytest.raises(fsgld.InputError, match=r"saddle or a flat direction.*another init"):
        fsgld.sample(model, [np.zeros((5, 1))])


def test_the_mode_is_found_as_far_as_float32_goes():
    """Rows around 10,000 with a posterior sd of 0.07: θ itself has steps of 0.001. The mean is found within 0.1 sd."""
    rng = np.random.default_rng(0)
    shards = [rng.normal(1e4, 1, (100, 1)).astype(np.float32) for _ in range(2)]
    model = fsgld.Model(
        lambda p: -0.5 * jnp.sum(p**2) / 1e10, lambda p, x: -0.5 * jnp.sum((x - p) ** 2), np.zeros(1, np.float32)
    )
    result = fsgld.sample(model, shards, rounds=1000, chains=2)  # Monte Carlo error of the mean: about 0.0025
    exact = np.concatenate(shards).astype(float).mean()
    assert abs(float(result.draws.astype(float).mean()) - exact) < 0.02


@pytest.mark.parametrize("case", ["fewer rows than parameters", "a parameter that the likelihood does not use"])
@pytest.mark.parametrize("diagonal", [False, True])
def test_local_draws_that_wander_in_a_level_direction_are_refused(case, diagonal):
    """Such draws have a finite covariance, which says how long the chain was, not what the likelihood is."""
    rng = np.random.default_rng(0)
    prior = lambda p: -0.5 * jnp.sum(p**2)  # noqa: E731
    if case == "fewer rows than parameters":
        model = fsgld.Model(prior, lambda w, row: -0.5 * (row[1] - row[0] @ w) ** 2, jnp.zeros(3))
        data = rng.normal(size=(2, 3)), rng.normal(size=2)
    else:
        model, data = fsgld.Model(prior, lambda w, x: -0.5 * (x - w[0]) ** 2, jnp.zeros(2)), rng.normal(size=50)
    for seed in range(3):
        with pytest.raises(fsgld.InputError, match=r"no mode: .*stays level.*fsgld\.anchored"):
            fsgld.from_draws(model, data, seed=seed, diagonal=diagonal)


def test_a_fit_that_fails_names_the_client():
    model, shards = regression()
    with pytest.raises(fsgld.InputError, match="client 0: the fit fails: ZeroDivisionError"):
        fsgld.fit(model, shards, lambda model, data: 1 / 0)
