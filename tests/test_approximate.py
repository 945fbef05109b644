"""`fsgld.approximate`: the Gaussian at the mode, and whether it says honestly how far it can be trusted."""

import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fsgld
from fsgld.approximate import Approximation
from fsgld.diagnostics import pareto_k
from fsgld.surrogates import Gaussian
from problems import Z, regression, regression_posterior

# Models are made once, so that compiled programs are found again
POISSON = fsgld.Model(
    log_prior=lambda p: -0.5 * (p["a"] ** 2 + p["b"] ** 2),
    log_likelihood=lambda p, row: row[1] * (p["a"] + p["b"] * row[0]) - jnp.exp(p["a"] + p["b"] * row[0]),
    init={"a": jnp.zeros(()), "b": jnp.zeros(())},
)
CAUCHY = fsgld.Model(
    log_prior=lambda p: -0.5 * (p / 50) ** 2,
    log_likelihood=lambda p, x: -jnp.log1p((x - p) ** 2),
    init=jnp.zeros(()),
)


CROSS = [np.array([-0.5, -0.1, 0.0, 0.2, 0.4, 0.1]), np.array([2.4, -1.9])]


def logistic(prior_precision):
    def log_likelihood(p, row):
        return row["y"] * (row["x"] @ p["w"]) - jnp.logaddexp(0.0, row["x"] @ p["w"])

    log_prior = lambda p: -0.5 * prior_precision * jnp.sum(p["w"] ** 2)  # noqa: E731
    return fsgld.Model(log_prior, log_likelihood, {"w": jnp.zeros(4)})


PROPER, FLAT = logistic(1.0), logistic(0.0)


def columns(sizes=(30, 50, 20), seed=0):
    """Four columns and a label that depends on them, dealt to three clients."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sum(sizes), 4))
    y = (rng.uniform(size=len(x)) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.3, 0.0]))) * 1.0
    cuts = np.cumsum(sizes)[:-1]
    return [{"x": a, "y": b} for a, b in zip(np.split(x, cuts), np.split(y, cuts), strict=True)]


@partial(jax.jit, static_argnums=(0, 1))
def _log_posterior(prior, likelihood, init, thetas, rows):
    _, unravel = ravel_pytree(init)

    def one(theta):
        return prior(unravel(theta)) + jnp.sum(jax.vmap(likelihood, (None, 0))(unravel(theta), rows))

    return jax.vmap(one)(thetas), jax.vmap(jax.grad(one))(thetas), -jax.vmap(jax.hessian(one))(thetas)


def log_posterior(model, thetas, shards):
    """Evaluate log p(θ | x) of flat vectors up to a constant, its gradient and its curvature, in plain JAX."""
    rows = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *shards)
    parts = _log_posterior(model.log_prior, model.log_likelihood, model.init, jnp.asarray(thetas), rows)
    return tuple(map(np.array, parts))


def assert_mode(found, model, shards):
    """The gradient vanishes there, in posterior sds, and the Gaussian has the posterior's own curvature."""
    _, (slope,), (P,) = log_posterior(model, ravel_pytree(found.mean)[0][None], shards)
    assert slope @ np.linalg.solve(P, slope) < 1e-8
    np.testing.assert_allclose(found.gaussian.precision, P, rtol=1e-8, atol=1e-8 * np.abs(P).max())
    sds = np.sqrt(np.diag(np.linalg.inv(P)))
    np.testing.assert_allclose(ravel_pytree(found.sd)[0], sds, rtol=1e-6)


def test_it_is_exact_for_a_linear_gaussian_model():
    """Weights are then equal, and weighted columns are those of 2000 draws: within Z Monte Carlo errors."""
    model, shards = regression()
    mean, covariance = regression_posterior(shards)
    found, sd = fsgld.approximate(model, shards), np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(found.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(found.sd, sd, rtol=1e-9)
    np.testing.assert_allclose(found.gaussian.covariance, covariance, rtol=1e-9)
    assert found.sweeps == 2  # one to get there, one to see it
    assert (np.abs(found.weighted_mean - mean) < Z * sd / np.sqrt(2000)).all()
    assert (np.abs(found.weighted_sd / sd - 1) < Z / np.sqrt(4000)).all()
    assert found.khat < 0.5
    assert "the Gaussian is close to the posterior; means and intervals can be used" in found.verdict


@cache
def skewed():
    """Four counts, small enough for importance weights to have a variance: their curvature is below the prior's."""
    shards = [(np.array([-0.5, 0.3]), np.array([0.0, 0.0])), (np.array([0.4, -0.2]), np.array([0.0, 0.0]))]
    return shards, fsgld.approximate(POISSON, shards, draws=20_000, seed=1)


def test_weighted_columns_agree_with_quadrature_where_the_posterior_is_skewed():
    """Errors of importance sampling are known: by sums over a grid of (p/q)² (θ − μ)² q. Four z-tests at Z = 4."""
    shards, found = skewed()
    axis = np.linspace(-9, 7, 161)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    log_p = log_posterior(POISSON, theta, shards)[0]
    P, centre = np.array(found.gaussian.precision), np.array([found.mean["a"], found.mean["b"]])
    log_q = -0.5 * np.einsum("ni,ij,nj->n", theta - centre, P, theta - centre)
    p, q = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (log_p, log_q))
    mean = p @ theta
    deviation = theta - mean
    variance, ratio = p @ deviation**2, (p**2 / q)[:, None]
    errors = np.sqrt((ratio * deviation**2).sum(0) / 20_000)
    errors_of_variance = np.sqrt((ratio * (deviation**2 - variance) ** 2).sum(0) / 20_000)
    have = np.array([found.weighted_mean["a"], found.weighted_mean["b"]])
    have_sd = np.array([found.weighted_sd["a"], found.weighted_sd["b"]])
    assert (np.abs(have - mean) < Z * errors).all()
    assert (np.abs(have_sd**2 - variance) < Z * errors_of_variance).all()
    assert (errors < 0.02 * np.sqrt(variance)).all()
    assert abs(mean - centre)[0] > 10 * errors[0]  # what weights repair is not small


def test_khat_is_that_of_arviz():
    arviz = pytest.importorskip("arviz")
    rng = np.random.default_rng(0)
    for n in (100, 333, 2000):
        u = rng.uniform(size=n)
        for log_weights in (rng.normal(size=n), -0.9 * np.log(u), -0.2 * np.log(u), u):
            assert pareto_k(log_weights) == pytest.approx(float(arviz.psislw(log_weights)[1]), abs=1e-9)


def test_khat_is_of_the_ratio_of_posterior_and_gaussian():
    arviz = pytest.importorskip("arviz")
    found = fsgld.approximate(CAUCHY, CROSS, seed=3)
    z = np.array(jax.random.normal(jax.random.key(3), (2000, 1)))
    theta = float(found.mean) + float(found.sd) * z
    log_ratio = log_posterior(CAUCHY, theta, CROSS)[0] + 0.5 * z[:, 0] ** 2
    assert found.khat == pytest.approx(float(arviz.psislw(log_ratio)[1]), abs=1e-6)


def test_a_skewed_posterior_has_its_verdict():
    _, found = skewed()
    assert found.khat < 0.7
    assert "not quite Gaussian (the mean of a is" in found.verdict
    assert "use the weighted columns, or fsgld.sample" in found.verdict


@pytest.mark.slow
def test_a_posterior_with_heavy_tails_has_its_verdict():
    """Ten parameters with a Cauchy posterior each: no draw of the Gaussian comes from most of the mass."""
    tails = fsgld.Model(lambda p: 0.0 * jnp.sum(p), lambda p, x: -jnp.sum(jnp.log1p((x - p) ** 2)), jnp.zeros(10))
    found = fsgld.approximate(tails, [np.full((1, 10), 0.1)])
    assert found.khat > 0.7
    assert found.verdict.endswith("the Gaussian misses part of the posterior; use fsgld.sample")


@pytest.mark.parametrize(
    ("khat", "mean", "sd", "words"),
    [
        (0.69, 0.09, 1.04, "is close to the posterior"), (0.69, 0.11, 1.0, r"the mean of theta\[1\] is 0.11 sds away"),
        (0.69, 0.0, 1.06, r"the sd of theta\[1\] is 1.06 times"), (0.69, 0.0, 0.94, r"theta\[1\] is 0.94 times"),
        (0.71, 0.0, 1.0, "misses part"), (np.inf, 0.0, 1.0, "misses part"), (np.nan, 0.0, 1.0, "misses part"),
        (0.71, np.nan, np.nan, "misses part"),
    ],
)  # fmt: skip
def test_where_verdicts_change(khat, mean, sd, words):
    found = Approximation(
        jnp.zeros(2), jnp.ones(2), jnp.array([0.0, mean * sd]), jnp.array([1.0, sd]), Gaussian.flat(2), khat, 3
    )
    assert found.verdict.startswith(f"Pareto k-hat is {khat:.2f}: ")
    assert re.search(words, found.verdict)


def test_the_table_names_parameters_and_reports_the_sweeps():
    _, found = skewed()
    lines = str(found).splitlines()
    assert lines[0].split() == ["mean", "sd", "weighted", "mean", "weighted", "sd"]
    assert [line.split()[0] for line in lines[1:3]] == ["a", "b"]
    assert float(lines[1].split()[1]) == pytest.approx(float(found.mean["a"]), rel=1e-3)
    assert lines[3] == f"{found.sweeps} Newton sweeps. {found.verdict}"


def test_a_shard_with_one_class_only_is_no_matter():
    shards = columns()
    shards[0] = shards[0] | {"y": np.ones(30)}
    shards[2] = shards[2] | {"y": np.zeros(20)}
    found = fsgld.approximate(PROPER, shards)
    assert_mode(found, PROPER, shards)
    assert found.sweeps <= 10


def test_unscaled_and_correlated_columns_are_no_matter():
    """Columns of sizes 1e-3 to 1e4, two of them with correlation 0.99; curvatures then differ by 1e14."""
    shards = columns()
    for shard in shards:
        x = shard["x"]
        x[:, 1] = 0.99 * x[:, 0] + np.sqrt(1 - 0.99**2) * x[:, 1]
        x *= [1e-3, 1e4, 1.0, 30.0]
    found = fsgld.approximate(PROPER, shards)
    assert_mode(found, PROPER, shards)
    assert found.sweeps <= 12


def test_an_indefinite_local_curvature_is_no_matter():
    """Client b's rows lie where the log-likelihood of θ curves up; the sum over clients curves down."""
    found = fsgld.approximate(CAUCHY, CROSS)
    r = CROSS[1] - float(found.mean)
    assert (2 * (1 - r**2) / (1 + r**2) ** 2).sum() < -0.1  # its curvature
    assert_mode(found, CAUCHY, CROSS)
    assert 2 <= found.sweeps <= 10


@pytest.mark.slow
def test_single_precision_gives_the_same_answer():
    shards = columns()
    low = fsgld.Model(PROPER.log_prior, PROPER.log_likelihood, {"w": jnp.zeros(4, jnp.float32)})
    single = jax.tree.map(lambda leaf: leaf.astype(np.float32), shards)
    a, b = fsgld.approximate(PROPER, shards), fsgld.approximate(low, single)
    assert b.mean["w"].dtype == b.weighted_sd["w"].dtype == jnp.float32
    sd = np.array(a.sd["w"])
    np.testing.assert_allclose(b.mean["w"] / sd, a.mean["w"] / sd, atol=1e-2)  # sweeps end within 1e-2 sds
    np.testing.assert_allclose(b.sd["w"], sd, rtol=1e-2)


@pytest.mark.parametrize(
    ("model", "shards", "words"),
    [
        (FLAT, [{"x": abs(one["x"]), "y": np.ones_like(one["y"])} for one in columns()], "no mode"),
        (FLAT, [one | {"x": one["x"][:, [0, 1, 2, 2]]} for one in columns()], "a flat direction, as with fewer rows"),
        (CAUCHY, [np.array([-3.0, 3.0] * 3), np.array([3.0, -3.0])], "a saddle or a flat direction"),
    ],
    ids=["one class and a flat prior", "equal columns", "a saddle"],
)  # fmt: skip
def test_what_has_no_proper_posterior_is_refused_with_a_remedy(model, shards, words):
    with pytest.raises(fsgld.InputError, match=words) as error:
        fsgld.approximate(model, shards)
    assert "proper prior" in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"draws": 99}, "draws must be a whole number of at least 100; got 99"),
        ({"draws": 1e3}, "draws must be a whole number of at least 100; got 1000.0"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"model": None}, "model is None; build it with fsgld.Model"),
        ({"shards": []}, "shards must be a non-empty list"),
    ],
)
def test_bad_input_is_refused_in_words(given, words):
    with pytest.raises(fsgld.InputError, match=words):
        fsgld.approximate(**{"model": CAUCHY, "shards": [np.zeros(3)]} | given)
