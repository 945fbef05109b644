"""The stationary law against its closed form, and real regressions against the exact posterior.

On Gaussian data with exact surrogates FSGLD is an AR(1) chain: with A the posterior precision,
a = 1 − (h/2)A and V the variance of the gradient estimate, the stationary variance is
(h + h²V/4)/(1 − a²). Draws are taken so far apart that they are independent (a^thin < 1e-4), so Monte Carlo
errors are simple. Every comparison is a z-test at Z = 4, false-alarm rate 6e-5 each; about 60 of them
are made here, so a right program with new seeds would fail this file once in 250 runs. Seeds are fixed.
"""

import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from problems import Z, assert_mean, blobs

H, M = 1e-4, 10
LOCAL_STEPS = (1, 10, 100, 1000)


def variance_ratios(result, mean, precision):
    """Give squared errors in units of the posterior variance, (draws of all chains, d)."""
    return ((result.draws - mean) ** 2 * precision).reshape(-1, len(mean))


def run(model, shards, surrogates, local_steps, likelihood, h=H, dynamics=None, seed=0):
    thin = max(local_steps, 100)  # draws are taken at the ends of visits
    return fsgld.sample(
        model, shards, surrogates, dynamics=dynamics or fsgld.langevin(h), likelihood=likelihood, batch_size=M,
        local_steps=local_steps, rounds=200 * thin // local_steps, chains=100, thin=thin, burn_in=0.05, seed=seed,
    )  # fmt: skip


@pytest.fixture(scope="module")
def toy():
    model, shards = blobs()
    rows = np.concatenate(shards)
    A = len(rows) + 1
    return model, shards, fsgld.fit(model, shards, fsgld.analytic), rows.sum(0) / A, A


@pytest.mark.parametrize("local_steps", LOCAL_STEPS)
@pytest.mark.parametrize(("likelihood", "ratio"), [("plain", 11.58), ("control_variate", 1.05)])
@pytest.mark.slow
def test_fsgld_has_its_ar1_law_for_any_number_of_local_steps(toy, likelihood, ratio, local_steps):
    """Rows of unit variance: V = Σ_s (N_s²/f_s)/m = N²/m, so the ratio is (1 + hV/4)/(1 − hA/4) = 11.58."""
    model, shards, surrogates, mean, A = toy
    V = 2000**2 / M if likelihood == "plain" else 0.0
    law = (1 + H * V / 4) / (1 - H * A / 4)
    assert law == pytest.approx(ratio, abs=5e-3)
    result = run(model, shards, surrogates, local_steps, getattr(fsgld, likelihood))
    assert_mean(variance_ratios(result, mean, A), law)
    assert_mean(result.draws.reshape(-1, 2), mean)


@pytest.mark.parametrize("local_steps", LOCAL_STEPS)
def test_dsgld_has_its_own_law(toy, local_steps):
    """DSGLD adds the variance between clients: Var_s(c_s)/A² · (1 − a^L)/(1 + a^L) at the ends of visits.

    Here c_s = N_s x̄_s/f_s − Σ_r N_r x̄_r is what client s pulls beyond its share.
    """
    model, shards, _, mean, A = toy
    a = 1 - H / 2 * A
    pull = np.array([200 * 10 * x.mean(0) for x in shards])
    between = pull.var(0) / A**2 * (1 - a**local_steps) / (1 + a**local_steps)
    within = (H + H**2 / 4 * 2000**2 / M) / (1 - a**2)
    result = run(model, shards, None, local_steps, fsgld.plain)
    assert_mean(variance_ratios(result, mean, A), (within + between) * A)
    assert (between * A > 10).all() or local_steps == 1  # what conducive gradients remove is not small


@pytest.mark.slow
@pytest.mark.parametrize("h", [0.01, 0.1, 1.0, 5.0])
def test_whitened_is_exact_for_any_step_size(toy, h):
    """With exact surrogates and no mini-batch noise the law is the posterior itself, ratio 1.00."""
    model, shards, surrogates, mean, A = toy
    steps = max(2, round(20 / h))
    result = fsgld.sample(
        model, shards, surrogates, dynamics=fsgld.whitened(h), likelihood=fsgld.control_variate, batch_size=M,
        local_steps=steps, rounds=110, chains=100, burn_in=0.1, seed=1,
    )  # fmt: skip
    assert_mean(variance_ratios(result, mean, A), 1.0)
    assert_mean(result.draws.reshape(-1, 2), mean)


def test_sghmc_has_its_law(toy):
    """The stationary covariance of (θ, p) solves Σ = B Σ Bᵀ + D, by iteration of the recursion itself."""
    model, shards, surrogates, mean, A = toy
    friction, h = 0.3, 1e-5
    B = np.array([[1 - h / 2 * A, 1 - friction], [-h / 2 * A, 1 - friction]])
    D = friction * h * np.ones((2, 2))
    Sigma = np.zeros((2, 2))
    for _ in range(10_000):
        Sigma = B @ Sigma @ B.T + D
    dynamics = fsgld.sghmc(h, friction)
    result = fsgld.sample(
        model, shards, surrogates, dynamics=dynamics, likelihood=fsgld.control_variate, batch_size=2,
        local_steps=600, rounds=110, chains=100, burn_in=0.1, seed=2,
    )  # fmt: skip
    assert_mean(variance_ratios(result, mean, A), Sigma[0, 0] * A)


def test_psgld_comes_close(toy):
    """Without Γ(θ) there is no closed form; on this Gaussian the bias stays within 10 %."""
    model, shards, surrogates, mean, A = toy
    result = fsgld.sample(
        model, shards, surrogates, dynamics=fsgld.psgld(1e-3, decay=0.999), likelihood=fsgld.control_variate,
        batch_size=2, local_steps=2000, rounds=40, chains=50, burn_in=0.2, seed=3,
    )  # fmt: skip
    ratios = variance_ratios(result, mean, A)
    assert 0.9 < ratios.mean() < 1.1


def test_unequal_shards_and_probabilities_have_their_law():
    """V = Σ_s (N_s²/f_s) σ_s²/m with unequal N_s, f_s; A differs inside clients but FSGLD does not feel it."""
    rng = np.random.default_rng(5)
    sizes, f = np.array([20, 100, 50]), np.array([0.5, 0.2, 0.3])
    shards = [rng.normal(rng.uniform(-3, 3), 1, (n, 1)) for n in sizes]
    model, _ = blobs(clients=1, rows=2)
    model = fsgld.Model(model.log_prior, model.log_likelihood, jnp.zeros(1))
    surrogates = fsgld.fit(model, shards, fsgld.analytic)
    A, mean = sizes.sum() + 1, np.concatenate(shards).sum(0) / (sizes.sum() + 1)
    h, m = 2e-3, 3
    result = fsgld.sample(
        model, shards, surrogates, dynamics=fsgld.langevin(h), likelihood=fsgld.plain, batch_size=m, probs=f,
        local_steps=5, rounds=4000, chains=100, thin=100, burn_in=0.1, seed=4,
    )  # fmt: skip
    V = sum(n**2 / p * x.var() / m for n, p, x in zip(sizes, f, shards, strict=True))
    assert_mean(variance_ratios(result, mean, A), (1 + h * V / 4) / (1 - h * A / 4))
    assert_mean(result.draws.reshape(-1, 1), mean)


def concrete():
    """Concrete, standardised, sorted by target into ten shards; y given β is N(xᵀβ, σ²), β ~ N(0, I)."""
    folder = Path(os.environ.get("FSGLD_DATA", Path(__file__).parents[2] / "shared" / "data"))
    file = folder / "concrete" / "concrete.csv"
    if not file.exists():
        pytest.skip(f"no {file}: set FSGLD_DATA to the folder of the data sets to run this test")
    table = np.loadtxt(file, delimiter=",", skiprows=1)
    table = (table - table.mean(0)) / table.std(0)
    X, y = table[:, :-1], table[:, -1]
    precision = 1 / np.mean((y - X @ np.linalg.lstsq(X, y)[0]) ** 2)
    model = fsgld.Model(
        log_prior=lambda p: -0.5 * jnp.sum(p["beta"] ** 2),
        log_likelihood=lambda p, row: -0.5 * precision * (row["y"] - row["x"] @ p["beta"]) ** 2,
        init={"beta": jnp.zeros(X.shape[1])},
    )
    covariance = np.linalg.inv(precision * X.T @ X + np.eye(X.shape[1]))
    return model, fsgld.shards.by_column({"x": X, "y": y}, y, 10), precision * covariance @ X.T @ y, covariance


@pytest.mark.slow
@pytest.mark.parametrize(("dynamics", "draws"), [("whitened", 10_000), ("langevin", 1_000)])
def test_concrete_sorted_by_target(dynamics, draws):
    """Mean and covariance against the exact posterior; variance ratios within 1 ± 0.05 beyond Monte Carlo error.

    The bias allowed, 0.05, covers what is left of the mini-batch noise (the control variate's noise vanishes at the
    anchor only) and the 1/(1 − hλ/4) of Langevin steps. Draws are so far apart that they are independent.
    """
    model, shards, mean, covariance = concrete()
    surrogates = fsgld.fit(model, shards, fsgld.analytic)
    eigenvalues = np.linalg.eigvalsh(np.linalg.inv(covariance))
    h = {"whitened": 0.05, "langevin": 0.1 / eigenvalues.max()}[dynamics]
    rate = h / 2 * {"whitened": 1.0, "langevin": eigenvalues.min()}[dynamics]
    result = fsgld.sample(
        model, shards, surrogates, dynamics=getattr(fsgld, dynamics)(h), likelihood=fsgld.control_variate,
        batch_size=20, local_steps=round(7 / rate), rounds=2 + draws // 100, chains=100,
        burn_in=round(14 / rate), seed=5,
    )  # fmt: skip
    deviations = result.draws["beta"].reshape(-1, len(mean)) - mean
    z = deviations @ np.linalg.inv(np.linalg.cholesky(covariance)).T  # should be N(0, I)
    assert len(z) == draws
    assert np.abs(z.mean(0)).max() < Z / np.sqrt(draws)
    assert np.abs((z**2).mean(0) - 1).max() < 0.05 + Z * np.sqrt(2 / draws)
    off = (z.T @ z / draws)[np.triu_indices(len(mean), 1)]
    assert np.abs(off).max() < 0.05 + Z / np.sqrt(draws)
