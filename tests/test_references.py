"""The stored NUTS references: converged, of the cases as they are now, and NUTS run again agrees with them."""

import jax
import numpy as np
import pytest
from scipy.stats import norm

from fsgld import InputError
from fsgld.experiments.cases import CASES, compare, load_reference
from fsgld.results import Result, Status
from fsgld.rows import gather
from make_references import Settings, make_reference, problems, run_nuts

LINEAR = [name for name in CASES if name.startswith(("concrete", "airfoil", "small-regression"))]
FALSE_ALARMS = 1e-4  # a test; Bonferroni over its parameters, means and sds


def column(reference, key):
    return np.array([parameter[key] for parameter in reference["parameters"].values()])


def build(name):
    """Build a case; skip the test if its data are not here."""
    try:
        return CASES[name]()
    except InputError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", CASES)
def test_has_converged(name):
    assert problems(load_reference(name)) == []


@pytest.mark.parametrize("name", CASES)
def test_is_of_the_case_as_it_is_now(name):
    """The gradient, over the posterior's sds, vanishes at the stored mode, as far as its eight digits go."""
    case, reference = build(name), load_reference(name)
    flat = case.model.flatten()
    mode = jax.numpy.asarray(column(reference, "mode"))
    slope = jax.jit(flat.grad_log_likelihood)(mode, gather(case.shards).rows) + flat.grad_log_prior(mode)
    assert np.abs(slope * column(reference, "sd")).max() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("name", ["poisson", "small-regression"])
def test_nuts_run_again_agrees(name):
    """Another seed gives the same means and sds, up to the Monte Carlo errors of both."""
    stored, settings = load_reference(name), Settings(draws=3000, warmup=500, ess=4000, seed=1)
    live = make_reference(run_nuts(CASES[name](), settings), settings)
    assert problems(live) == []
    z = [
        (column(live, key) - column(stored, key)) / np.hypot(column(live, error), column(stored, error))
        for key, error in (("mean", "mcse_mean"), ("sd", "mcse_sd"))
    ]
    assert np.abs(z).max() < norm.isf(FALSE_ALARMS / 2 / np.size(z))


@pytest.mark.parametrize("name", LINEAR)
def test_linear_regression_agrees_with_quadrature(name):
    """Given σ, β is Gaussian, so moments are integrals over log σ alone."""
    stored, rows = load_reference(name), gather(build(name).shards).rows
    mean, sd = linear_regression_moments(np.asarray(rows["x"]), np.asarray(rows["y"]))
    z = [(column(stored, key) - value) / column(stored, f"mcse_{key}") for key, value in (("mean", mean), ("sd", sd))]
    assert np.abs(z).max() < norm.isf(FALSE_ALARMS / 2 / np.size(z))


def linear_regression_moments(x, y):
    """Means and sds of β ~ N(0, 10² I) and log σ ~ N(0, 1) given y ~ N(x β, σ² I), log σ on a grid."""
    grid = np.linspace(-2, 1, 3001)
    P = x.T @ x / np.exp(2 * grid)[:, None, None] + np.eye(x.shape[1]) / 100
    V = np.linalg.inv(P)
    m = V @ (x.T @ y) / np.exp(2 * grid)[:, None]
    residual = np.sum((y - m @ x.T) ** 2, 1) / np.exp(2 * grid) + np.sum(m**2, 1) / 100
    log_density = -0.5 * (residual + np.linalg.slogdet(P)[1] + grid**2) - len(y) * grid
    w = np.exp(log_density - log_density.max())
    w /= w.sum()
    assert w[[0, -1]].max() < 1e-12
    first = np.column_stack([m, grid])
    second = np.column_stack([m**2 + np.diagonal(V, axis1=1, axis2=2), grid**2])
    return w @ first, np.sqrt(w @ second - (w @ first) ** 2)


def test_compare_finds_what_is_wrong():
    """Draws with known errors: two parameters shifted by 0.3 sd and stretched by 1.2, then a chain that diverged."""
    n = 4000
    parameter = {"mean": 1.0, "sd": 2.0, "mcse_mean": 0.0, "mcse_sd": 0.0}
    reference = {"parameters": {"a": parameter, "b": parameter, "c": parameter}}
    z = np.random.default_rng(0).normal(size=(4, n, 3))
    draws = 1 + 2 * (z * [1, 1, 1.2] + [0, 0.3, 0])

    def row(draws, *diverged):
        status = tuple(Status(c, n, 7 if c in diverged else None, "client 0") for c in range(4))
        tree = {name: draws[..., i] for i, name in enumerate("abc")}
        return compare(Result(tree, np.arange(n), np.zeros((4, n), int), ("client 0",), status, {}, {}), reference)

    wrong, right = row(draws), row(1 + 2 * z)
    assert (wrong.mean_parameter, wrong.sd_parameter, wrong.verdict) == ("b", "c", "fail")
    assert abs(wrong.mean_error - 0.3) < 4 * wrong.mean_error_mcse < 0.04
    assert abs(wrong.sd_ratio - 1.2) < 4 * wrong.sd_ratio_mcse < 0.04
    assert (right.verdict, row((1 + 2 * z)[:, :100]).verdict) == ("pass", "unsure")
    z[2, 50:] = np.nan
    assert row(1 + 2 * z, 2).verdict == "fail"
    assert row(np.full_like(z, np.nan), 0, 1, 2, 3).diverged == 4
