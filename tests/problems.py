"""Small problems with known answers, shared by the tests."""

import jax.numpy as jnp
import numpy as np

import fsgld

# A z-test at this level fails once in 29,000 times for a right program; seeds are fixed, so a
# passing test stays passing until the code changes.
Z = 4.0


def regression(sizes=(7, 20, 12), d=3, seed=0):
    """Linear regression with unit noise and N(0, I) prior; unequal, disagreeing shards (x, y)."""
    rng = np.random.default_rng(seed)
    shards = []
    for n in sizes:
        X = rng.normal(size=(n, d)) * [1.0, 2.0, 0.5][:d]
        shards.append((X, X @ rng.normal(size=d) + rng.normal(size=n)))
    model = fsgld.Model(
        log_prior=lambda p: -0.5 * jnp.sum(p**2),
        log_likelihood=lambda p, row: -0.5 * (row[1] - row[0] @ p) ** 2,
        init=jnp.zeros(d),
    )
    return model, shards


def regression_posterior(shards):
    """Exact posterior mean and covariance of `regression`."""
    X, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
    covariance = np.linalg.inv(X.T @ X + np.eye(X.shape[1]))
    return covariance @ X.T @ y, covariance


def blobs(clients=10, rows=200, spread=6.0, seed=0):
    """The paper's Section 5.1, with every shard's rows standardised, so that closed forms are round."""
    rng = np.random.default_rng(seed)
    shards = []
    for centre in rng.uniform(-spread, spread, (clients, 2)):
        x = rng.normal(size=(rows, 2))
        shards.append(centre + (x - x.mean(0)) / x.std(0))
    model = fsgld.Model(
        log_prior=lambda p: -0.5 * jnp.sum(p**2),
        log_likelihood=lambda p, x: -0.5 * jnp.sum((x - p) ** 2),
        init=jnp.zeros(2),
    )
    return model, shards


def logistic(sizes=(30, 50, 20), d=3, seed=0):
    """Logistic regression with dict rows and dict parameters."""
    rng = np.random.default_rng(seed)
    shards = []
    for n in sizes:
        x = rng.normal(size=(n, d))
        shards.append({"x": x, "y": (rng.uniform(size=n) < 1 / (1 + np.exp(-x @ rng.normal(size=d)))) * 1.0})
    model = fsgld.Model(
        log_prior=lambda p: -0.5 * (jnp.sum(p["w"] ** 2) + p["b"] ** 2),
        log_likelihood=lambda p, row: -jnp.logaddexp(0.0, (1 - 2 * row["y"]) * (row["x"] @ p["w"] + p["b"])),
        init={"w": jnp.zeros(d), "b": jnp.zeros(())},
    )
    return model, shards


def assert_mean(draws, mean, z=Z):
    """Compare the mean of independent draws (n, …) with a number, within z Monte Carlo errors."""
    error = draws.std(0) / np.sqrt(len(draws))
    np.testing.assert_array_less(np.abs(draws.mean(0) - mean), z * error)
