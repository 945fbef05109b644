"""The pre-flight: every formula of its docstrings, both sides; what it chooses, and what it says."""

import sys
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fsgld
from fsgld import theory
from fsgld.measure import check_langevin
from fsgld.model_checks import check_model
from fsgld.parts import choose_parts
from fsgld.preflight import NOISE, TRAVEL
from fsgld.probes import directions, extreme_eigenvalues, lanczos
from fsgld.rows import gather
from fsgld.surrogates import Gaussian
from problems import Z

SIZES, D = (30, 50, 20), 3
F = np.array([0.25, 0.45, 0.3])


@cache
def problem():
    """Logistic regression with a N(0, I) prior; made once, so that compiled programs are found again."""
    rng = np.random.default_rng(0)
    shards = {}
    for name, n in zip("abc", SIZES, strict=True):
        X = rng.normal(size=(n, D)) * [1.0, 1.5, 0.5]
        shards[name] = X, (rng.uniform(size=n) < 1 / (1 + np.exp(-X @ rng.normal(size=D)))) * 1.0
    model = fsgld.Model(
        log_prior=lambda p: -0.5 * jnp.sum(p**2),
        log_likelihood=lambda p, row: row[1] * (row[0] @ p) - jnp.logaddexp(0.0, row[0] @ p),
        init=jnp.zeros(D),
    )
    return model, shards


@cache
def good():
    """Surrogates anchored at the mode."""
    model, shards = problem()
    mode = fsgld.approximate(model, shards).mean
    return fsgld.fit(model, shards, fsgld.anchored, anchor=mode)


def scaled(*factors):
    return [q * x for q, x in zip(good(), factors, strict=True)]


def preflight(surrogates="auto", **given):
    return fsgld.preflight(*problem(), surrogates, **given)


def row_gradients(shard, theta):
    X, y = shard
    return X * (y - 1 / (1 + np.exp(-X @ theta)))[:, None]


def curvature(shard, theta):
    X, p = shard[0], 1 / (1 + np.exp(-shard[0] @ theta))
    return X.T @ (X * (p * (1 - p))[:, None])


def coordinates(surrogates):
    """Give the mean of prior × q and L with L Lᵀ = M its covariance; the root that the library takes is upper."""
    P = np.eye(D) + sum(np.array(q.to("dense").precision) for q in surrogates)
    mean = np.linalg.solve(P, sum(np.array(q.shift) for q in surrogates))
    return mean, np.linalg.inv(np.linalg.cholesky(P)).T


def probes(surrogates):
    """Give the probes: 64 draws of prior × q in antithetic pairs."""
    mean, L = coordinates(surrogates)
    z = np.random.default_rng(0).standard_normal((32, D))
    return mean + np.concatenate([z, -z]) @ L.T


def growth(surrogates, theta):
    """Give z J_s r_s/f_s, summed over clients, at a probe θ = mean + L z, as each parameter sees it."""
    mean, L = coordinates(surrogates)
    z, seen, total = np.linalg.solve(L, theta - mean), L / np.linalg.norm(L, axis=1)[:, None], 0
    for shard, q, f in zip(problem()[1].values(), surrogates, F, strict=True):
        r = L.T @ (row_gradients(shard, theta).sum(0) - np.array(q.grad_log(jnp.asarray(theta))))
        J = -L.T @ (curvature(shard, theta) - np.array(q.precision)) @ L
        total += (seen @ z) * (seen @ J @ r) / f
    return total


def bound(V_b):
    """Give the mean over probes (K, d) plus two standard errors; probes come in antithetic pairs."""
    pairs = (V_b[: len(V_b) // 2] + V_b[len(V_b) // 2 :]) / 2
    return pairs.mean(0) + 2 * pairs.std(0, ddof=1) / np.sqrt(len(pairs))


@pytest.mark.parametrize("slot", ["control_variate", "plain"])
def test_noise_and_disagreement_are_the_variances_of_theory(slot, monkeypatch):
    """V_m and V_b against `theory.gradient_variance` = V_m/m + V_b, whitened, as a parameter sees it, over the probes.

    At m = 1 and m = 2 the two parts can be told apart. Probes are few here, as theory takes its time.
    """
    monkeypatch.setattr(sys.modules["fsgld.measure"], "PROBES", 6)
    surrogates, anchor = scaled(0.9, 1.2, 0.8), jnp.array([0.1, -0.4, 0.2])
    likelihood = fsgld.plain if slot == "plain" else fsgld.control_variate.at(anchor)
    found = preflight(surrogates, likelihood=likelihood, probs=F, mini_batches="uniform")
    mean, L = coordinates(surrogates)
    z = np.random.default_rng(0).standard_normal((3, D))
    M, V_m, V_b = L @ L.T, [], []
    for theta in mean + np.concatenate([z, -z]) @ L.T:
        one, two = (
            theory.gradient_variance(*problem(), theta, surrogates, probs=F, batch_size=m, likelihood=likelihood)
            for m in (1, 2)
        )
        V_m.append(np.diag(M @ (2 * one - 2 * two) @ M) / np.diag(M))
        V_b.append(np.diag(M @ (2 * two - one) @ M) / np.diag(M) + growth(surrogates, theta))
    assert found.noise.sum() == pytest.approx(np.mean(V_m, axis=0).max(), rel=1e-9)
    worst = bound(np.array(V_b)).argmax()
    assert found.disagreement.sum() == pytest.approx(np.mean(V_b, axis=0)[worst], rel=1e-9)


@pytest.mark.parametrize("slot", ["control_variate", "plain"])
def test_what_each_client_measures(slot):
    """Noise, disagreement and leverage of every client in plain NumPy, at all 64 probes."""
    surrogates, anchor = scaled(0.9, 1.2, 0.8), np.array([0.1, -0.4, 0.2])
    likelihood = fsgld.plain if slot == "plain" else fsgld.control_variate.at(jnp.asarray(anchor))
    found = preflight(surrogates, likelihood=likelihood, probs=F, batch_size=16, mini_batches="uniform")
    _, L = coordinates(surrogates)
    noise, residual, leverage = np.zeros((3, D)), [], np.zeros(3)
    for theta in probes(surrogates):
        residual.append([])
        for s, (shard, q) in enumerate(zip(problem()[1].values(), surrogates, strict=True)):
            v = row_gradients(shard, theta) - (slot != "plain") * row_gradients(shard, anchor)
            seen = v @ L @ L.T / np.linalg.norm(L, axis=1)  # (M v_i)_j/√M_jj
            noise[s] += SIZES[s] ** 2 / F[s] * seen.var(0) / 64
            leverage[s] = max(leverage[s], SIZES[s] / (F[s] * 16) * np.linalg.norm(v @ L, axis=1).max())
            r = row_gradients(shard, theta).sum(0) - np.array(q.grad_log(jnp.asarray(theta)))
            residual[-1].append(L @ L.T @ r / np.linalg.norm(L, axis=1))
    r = np.array(residual).transpose(1, 0, 2)  # (S, K, d)
    more = np.array([growth(surrogates, theta) for theta in probes(surrogates)])
    V_b = bound((r**2 / F[:, None, None]).sum(0) - r.sum(0) ** 2 + more)
    parts = (r * (r / F[:, None, None] - r.sum(0))).mean(1).sum(0) + more.mean(0)
    np.testing.assert_allclose(found.noise, noise[:, noise.sum(0).argmax()], rtol=1e-9)
    assert found.disagreement.sum() == pytest.approx(parts[V_b.argmax()], rel=1e-9)
    np.testing.assert_allclose(found.leverage, leverage, rtol=1e-9)
    inflation = noise.sum(0).max() / 16 * np.tanh(found.step_size / 4)
    inflation += V_b.max() * np.tanh(found.step_size * found.local_steps / 4)
    assert found.inflation == pytest.approx(inflation, rel=1e-9)


@pytest.mark.parametrize("diagonal", [False, True], ids=["dense", "diagonal"])
def test_low_and_high_are_the_extreme_eigenvalues_of_the_whitened_drift(diagonal):
    """B_s = Λ₀ + Λ + (H_s − Λ_s)/f_s, whitened, over the centre and two points 2√d sds out."""
    surrogates = scaled(0.9, 1.2, 0.8)
    if diagonal:
        surrogates = [Gaussian(q.shift, jnp.diag(q.precision)) for q in surrogates]
    found = preflight(surrogates, probs=F)
    mean, L = coordinates(surrogates)
    total = np.eye(D) + sum(np.array(q.to("dense").precision) for q in surrogates)
    z = np.random.default_rng(0).standard_normal((2, D))
    z *= 2 * np.sqrt(D) / np.linalg.norm(z, axis=1, keepdims=True)
    far = mean + np.concatenate([np.zeros((1, D)), z]) @ L.T
    for s, (shard, q) in enumerate(zip(problem()[1].values(), surrogates, strict=True)):
        drifts = [total + (curvature(shard, t) - np.array(q.to("dense").precision)) / F[s] for t in far]
        values = np.linalg.eigvalsh([L.T @ B @ L for B in drifts])
        np.testing.assert_allclose([found.low[s], found.high[s]], [values.min(), values.max()], rtol=1e-9)


def extremes(A):
    small = jax.jit(lambda A: lanczos(lambda v: A @ v, jnp.asarray(directions(len(A), A.dtype))))(A)
    return extreme_eigenvalues(np.asarray(small)[None])[0]


def rotated(values, seed=0):
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    return Q @ np.diag(values) @ Q.T


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 5.0, 2.0, 3.0, 4.0, 0.5], [3.0] * 6, [0.0] * 6, [-1.0, -1.0, -1.0, 7.0, 7.0, 7.0],
        [-5.0, -4.0, -1.0, -2.0, -3.0, -8.0], [1e-12, 1e12, 1.0, 2.0, 3.0, 4.0], np.linspace(-1, 1, 24),
    ],
    ids=["six", "multiple of I", "nought", "two values", "negative", "scales", "as many as iterations"],
)  # fmt: skip
def test_lanczos_is_exact_up_to_its_number_of_iterations(values):
    A = rotated(values)
    want = np.linalg.eigvalsh(A)[[0, -1]]
    np.testing.assert_allclose(extremes(jnp.asarray(A)), want, rtol=1e-9, atol=1e-9 * np.abs(A).max())


@pytest.mark.parametrize("values", ["ends apart", "multiple of I", "indefinite"])
def test_lanczos_finds_the_ends_of_larger_matrices_from_within(values):
    """24 iterations on d = 60: ends that stand apart to 1e-6; never beyond the ends, whatever the spectrum."""
    spectrum = {
        "ends apart": np.concatenate([[-3.0], np.linspace(0, 1, 58), [5.0]]), "multiple of I": np.full(60, 2.5),
        "indefinite": np.linspace(-4, 2, 60),
    }[values]  # fmt: skip
    A = rotated(spectrum)
    low, high = np.array(extremes(jnp.asarray(A)))
    assert spectrum.min() - 1e-9 <= low <= high <= spectrum.max() + 1e-9
    tolerance = 0.2 if values == "indefinite" else 1e-6
    np.testing.assert_allclose([low, high], [spectrum.min(), spectrum.max()], atol=tolerance)


@pytest.mark.slow
def test_the_inflation_foretold_is_the_one_that_is_drawn():
    """Where residuals do not depend on θ both terms are exact: V_m/m tanh(h/4) and V_b tanh(Lh/4).

    A Gaussian mean with plain mini-batches, and surrogates of the right curvature whose shifts are off. Draws are taken
    at the ends of visits, e^(−10) apart; z-tests at Z = 4 of the two variances and two means, false-alarm rate 2.5e-4.
    """
    rng = np.random.default_rng(3)
    shards = {name: rng.normal(rng.uniform(-1, 1, 2), 1, (n, 2)) for name, n in zip("abc", (20, 40, 15), strict=True)}
    model = fsgld.Model(lambda p: -0.5 * jnp.sum(p**2), lambda p, x: -0.5 * jnp.sum((x - p) ** 2), jnp.zeros(2))
    errors = np.array([[3.0, -2.0], [1.0, 4.0], [-4.0, -2.0]])  # sum to nought: q itself has the right mean
    surrogates = [
        Gaussian(jnp.asarray(x.sum(0) + e), len(x) * jnp.eye(2)) for x, e in zip(shards.values(), errors, strict=True)
    ]
    h, m, steps = 0.5, 8, 2
    found = fsgld.preflight(
        model, shards, surrogates, likelihood=fsgld.plain, step_size=h, batch_size=m, local_steps=steps, probs=F,
        mini_batches="uniform",
    )  # fmt: skip
    P, N = 76.0, np.array([20, 40, 15])  # M = I/76
    V_m = sum(n**2 / f * x.var(0) for n, f, x in zip(N, F, shards.values(), strict=True)) / P
    V_b = (errors**2 / F[:, None]).sum(0) / P
    assert found.noise.sum() == pytest.approx(V_m.max(), rel=1e-9)
    assert found.disagreement.sum() == pytest.approx(V_b.max(), rel=1e-9)
    rho = np.exp(-h / 2)
    assert np.tanh(h / 4) == pytest.approx((1 - rho) / (1 + rho), rel=1e-12)  # of the AR(1) recursion
    assert np.tanh(steps * h / 4) == pytest.approx((1 - rho**steps) / (1 + rho**steps), rel=1e-12)
    foretold = V_m / m * np.tanh(h / 4) + V_b * np.tanh(steps * h / 4)
    assert (foretold > 0.15).all()
    assert found.inflation == pytest.approx(V_m.max() / m * np.tanh(h / 4) + V_b.max() * np.tanh(h * steps / 4))
    with pytest.warns(UserWarning) as caught:
        draws = fsgld.sample(
            model, shards, surrogates, dynamics=fsgld.whitened(h), likelihood=fsgld.plain, batch_size=m, probs=F,
            local_steps=steps, rounds=2200, chains=100, thin=20 * steps, seed=1,
        ).draws.reshape(-1, 2)  # fmt: skip
    words = f"variances may be up to {100 * found.inflation:.0f} % too large"
    assert [one for one in caught if str(one.message).startswith(words)]
    mean = sum(x.sum(0) for x in shards.values()) / P
    z = (draws - mean) * np.sqrt(P)
    assert (np.abs(z.mean(0)) < Z * z.std(0) / np.sqrt(len(z))).all()
    error = (z**2).std(0) / np.sqrt(len(z))
    assert (error < 0.05).all()
    assert (np.abs((z**2).mean(0) - 1 - foretold) < Z * error).all()


@pytest.mark.parametrize("visit", [0.02, 0.1, 0.3])
def test_the_inflation_of_residuals_that_grow(visit):
    """Where r_s = b_s z, with Σ b_s = 0, the variance at the ends of visits has a closed form, which V_b bounds.

    Client s pulls with the rate 1 − b_s/f_s =: k_s, so a visit of time t makes of a variance v the variance
    e^(−k_s t) v + (1 − e^(−k_s t))/k_s, and V_b = Σ b_s²/f_s + Σ b_s²/f_s: residuals, and their growth.
    """
    b = np.array([0.3, -0.2, -0.1])
    shards = {name: np.zeros((n, 1)) for name, n in zip("abc", (20, 40, 15), strict=True)}
    P = 76.0
    model = fsgld.Model(lambda p: -0.5 * jnp.sum(p**2), lambda p, x: -0.5 * jnp.sum((x - p) ** 2), jnp.zeros(1))
    precisions = np.array([20, 40, 15]) + P * b  # r_s = L'(Λ_s − N_s)L z = b_s z
    surrogates = [Gaussian(jnp.zeros(1), jnp.array([[x]])) for x in precisions]
    found = fsgld.preflight(model, shards, surrogates, step_size=visit, local_steps=1, probs=F)
    k = 1 - b / F
    kept = np.exp(-k * visit)
    drawn = (F @ ((1 - kept) / k)) / (1 - F @ kept) - 1
    V_b = 2 * (b**2 / F).sum()
    z2 = np.mean(np.random.default_rng(0).standard_normal(32) ** 2)  # of the probes
    assert found.disagreement.sum() == pytest.approx(V_b * z2, rel=1e-5)
    assert drawn == pytest.approx(V_b * np.tanh(visit / 4), rel=visit / 2)  # to first order
    assert drawn < found.inflation + 2 * found.inflation**2  # what is left out is of second order


SURROGATES = {"auto": lambda: "auto", "too wide": lambda: scaled(0.3, 0.3, 0.3), "one off": lambda: scaled(1, 3, 1)}


@pytest.mark.parametrize("local_steps", ["auto", 1, 20, 200])
@pytest.mark.parametrize("surrogates", SURROGATES)
def test_chosen_values_keep_the_inflation_below_what_is_allowed(surrogates, local_steps):
    for given in ({}, {"likelihood": fsgld.plain, "batch_size": 4, "probs": None}):
        found = preflight(SURROGATES[surrogates](), local_steps=local_steps, **given)
        assert 0 < found.inflation <= (NOISE + TRAVEL) * (1 + 1e-9)
        assert found.step_size * found.high.max() <= 1 + 1e-9
        assert not [note for note in found.notes if "too long" in note or "unstable" in note or "too large" in note]
        if local_steps != "auto":  # as asked for, or capped with a word about it
            assert found.local_steps == local_steps or "is capped at" in found.notes[0]


def test_forced_local_steps_shrink_the_step():
    """A visit may not last longer than the clients' disagreement allows: h falls as 1/L."""
    surrogates = scaled(0.5, 1.6, 1.0)
    steps = [preflight(surrogates, local_steps=L, rounds=100).step_size for L in (1, 20, 200)]
    assert steps[0] > 15 * steps[1] > 100 * steps[2] > 0
    free = preflight(surrogates)
    assert free.step_size * free.local_steps <= 1.1 * steps[0]


def test_plain_mini_batches_need_a_much_smaller_step():
    """V_m is some forty times as large without control variates; at a fixed batch the step makes up for it."""
    fixed = {"batch_size": 8, "mini_batches": "uniform"}
    plain, control = preflight(likelihood=fsgld.plain, **fixed), preflight(**fixed)
    ratio = plain.noise.sum() / control.noise.sum()
    assert ratio > 10
    assert plain.step_size < control.step_size / 10
    np.testing.assert_allclose(plain.step_size, 4 * np.arctanh(NOISE * 8 / plain.noise.sum()), rtol=0.1)
    assert preflight(likelihood=fsgld.plain, mini_batches="uniform").batch_size > control.batch_size


def test_explicit_values_are_respected_and_a_good_run_gets_no_notes():
    found = preflight(step_size=0.05, batch_size=7, local_steps=11, rounds=13, chains=3, probs=F)
    assert (found.step_size, found.batch_size, found.local_steps, found.rounds) == (0.05, 7, 11, 13)
    np.testing.assert_allclose(found.probs, F)
    assert found.notes == ()


@pytest.mark.parametrize(("client", "factor"), [(0, 3.0), (1, 3.0), (2, 3.0), (0, 0.1), (1, 0.1), (2, 0.1)])
def test_a_bad_surrogate_is_named(client, factor):
    """One client's surrogate is scaled; whatever its probability, the sentence names that client and a remedy."""
    factors = [1.0, 1.0, 1.0]
    factors[client] = factor
    for probs in ("auto", None):
        found = preflight(scaled(*factors), step_size=0.1, local_steps=20, probs=probs)
        first = found.notes[0]
        assert first.startswith(f"{'abc'[client]}: a visit of 20 × 0.1 (local steps × step size) is too long")
        assert first.endswith("smaller step size")
        assert f"most of it from {'abc'[client]};" in found.notes[-1]


def test_a_surrogate_that_lets_a_chain_drift_away_is_named():
    """B_b has a negative eigenvalue: a visit must be shorter than log(1/f_b)/|λ|."""
    found = preflight(scaled(1, 3, 1), step_size=0.1, local_steps=200, probs=[0.49, 0.02, 0.49])
    assert found.low[1] < 0 < min(found.low[0], found.low[2])
    assert found.notes[0].startswith("b: a visit of 200 × 0.1")
    chosen = preflight(scaled(1, 3, 1), local_steps=200, rounds=100, probs=[0.49, 0.02, 0.49])
    assert chosen.step_size * 200 <= 0.5 * np.log(1 / 0.02) / -chosen.low[1]


def test_a_step_that_is_too_long_for_a_curvature_is_named():
    found = preflight(scaled(1, 1, 0.1), step_size=2.0, local_steps=1, probs=None)
    assert [note for note in found.notes if note.startswith(f"c: its curvature is {found.high[2]:.3g} times")]
    assert [note for note in found.notes if note.endswith(f"use at most {1 / found.high[2]:.2g}")]


def test_laplace_on_shards_that_disagree_is_found_out():
    """Local modes are far apart: the variances would be many times too large; where the step is chosen they are not."""
    surrogates = fsgld.fit(*problem(), fsgld.laplace)
    given = preflight(surrogates, step_size=0.1, local_steps=20)
    assert given.inflation > 1
    worst = "abc"[int(np.argmax(given.noise / given.batch_size + given.disagreement))]
    assert f"variances may be up to {100 * given.inflation:.0f} % too large, most of it from {worst}" in given.notes[-1]
    chosen = preflight(surrogates)
    assert chosen.inflation <= NOISE + TRAVEL
    assert chosen.step_size * chosen.local_steps < 0.1  # the price


def parts_of(surrogates, dynamics, probs="auto"):
    model, shards = problem()
    table, theta = gather(shards), ravel_pytree(model.start())[0]
    flat = check_model(model, theta, table)
    return flat, choose_parts(model, flat, theta, table, surrogates, dynamics, None, probs), table


def test_langevin_steps_are_checked_against_every_client():
    """h (λ_max(Λ₀ + Λ) + λ_max(H_s − Λ_s)/f_s) < 4 at the anchor, which here is the mean of prior × q."""
    surrogates = scaled(1, 1, 0.5)
    mean, _ = coordinates(surrogates)
    P = np.eye(D) + sum(np.array(q.precision) for q in surrogates)
    excess = [
        np.linalg.eigvalsh(curvature(shard, mean) - np.array(q.precision))[-1]
        for shard, q in zip(problem()[1].values(), surrogates, strict=True)
    ]
    high = np.linalg.eigvalsh(P)[-1] + np.maximum(excess, 0) / F
    assert high.argmax() == 2
    h = 4 / high.max()
    assert check_langevin(*parts_of(surrogates, fsgld.langevin(0.99 * h), F)) == []
    (line,) = check_langevin(*parts_of(surrogates, fsgld.langevin(1.01 * h), F))
    assert line.startswith(
        f"c: step size {1.01 * h:.3g} may be unstable there (h λ is up to 4.04 and should stay below 4)"
    )
    assert f"use at most {1 / high[2]:.2g}, or the default dynamics" in line


def test_sample_warns_of_unstable_langevin_steps_and_is_silent_for_stable_ones():
    """The run itself is refused, for want of draws, after its steps were checked; warnings are errors here."""

    def run(h):
        with pytest.raises(fsgld.InputError, match="no draw is left"):
            fsgld.sample(*problem(), good(), dynamics=fsgld.langevin(h), rounds=20, burn_in=1000)

    P = np.eye(D) + sum(np.array(q.precision) for q in good())
    h = 4 / np.linalg.eigvalsh(P)[-1]
    with pytest.warns(UserWarning, match=r"^[abc]: step size .* may be unstable there"):
        run(1.3 * h)
    run(0.9 * h)


@pytest.mark.slow
def test_a_run_that_meets_its_limit_says_so():
    """One client's surrogate lets the chain drift away: residuals are tamed, the chain stays, and the result tells."""
    with pytest.warns(UserWarning) as caught:
        result = fsgld.sample(
            *problem(), scaled(1, 4, 1), step_size=0.5, batch_size=32, local_steps=100, rounds=50, chains=2,
            probs=[0.3, 0.4, 0.3],
        )  # fmt: skip
    lines = [str(one.message) for one in caught]
    assert [line for line in lines if line.startswith("b: a visit of 100 × 0.5")]
    tamed = result.settings["tamed"]
    assert max(tamed) > 0.01
    assert [
        line for line in lines if line.startswith(f"{100 * max(tamed):.1f} % of the steps of a chain met a gradient")
    ]
    assert not any(status.diverged for status in result.status)
    _, L = coordinates(scaled(1, 4, 1))
    limit = result.settings["preflight"]["limit"]
    z = np.linalg.solve(L, (result.draws - coordinates(scaled(1, 4, 1))[0]).reshape(-1, D).T)
    assert np.linalg.norm(z, axis=0).max() < limit + 10  # ‖z'‖ ≤ ρ‖z‖ + (1 − ρ) c + noise


@pytest.mark.parametrize("clients", [3, 20, 21, 50])
def test_the_table_has_a_row_a_client_or_the_twenty_worst(clients):
    found, rng = preflight(), np.random.default_rng(0)
    columns = ("rows", "probs", "shares", "low", "high", "leverage")
    noise, disagreement = rng.permutation(clients) / 10, rng.permutation(clients) / 1000
    many = replace(
        found, clients=tuple(f"client {s}" for s in range(clients)), noise=noise, disagreement=disagreement,
        **{name: np.resize(getattr(found, name), clients) for name in columns},
    )  # fmt: skip
    lines = str(many).splitlines()
    assert lines[0].split() == ["rows", "f", "share", "low", "B", "high", "B", "noise", "disagree", "leverage"]
    shown = [int(line.split()[1]) for line in lines if line.startswith("client ")]
    worst = np.argsort(-(noise / many.batch_size + disagreement))[:20]
    assert shown == sorted(worst)
    assert ("… the 20 noisiest of" in str(many)) == (clients > 20)
    assert len(lines) == min(clients, 20) + 2 + (clients > 20)
    assert lines[-1].startswith(f"step size {found.step_size:.3g}, {found.batch_size} rows a batch")
    assert str(replace(many, notes=("what is wrong",))).endswith("\nwhat is wrong")


def test_probabilities_are_shares_of_the_information():
    """Linear regression: tr(M X_s'X_s)/Σ, and at least a tenth of an equal part before they are normalised."""
    rng = np.random.default_rng(1)
    X = [rng.normal(size=(n, D)) * scale for n, scale in ((10, 1.0), (40, 1.0), (20, 2.0), (3, 1e-3))]
    y = [rng.normal(size=len(x)) for x in X]
    surrogates = [Gaussian(jnp.asarray(a.T @ b), jnp.asarray(a.T @ a)) for a, b in zip(X, y, strict=True)]
    model = fsgld.Model(lambda p: -0.5 * jnp.sum(p**2), lambda p, row: -0.5 * (row[1] - row[0] @ p) ** 2, jnp.zeros(D))
    table, theta = gather(list(zip(X, y, strict=True))), jnp.zeros(D)
    flat = check_model(model, theta, table)
    choose = lambda q, probs="auto": choose_parts(model, flat, theta, table, q, fsgld.sghmc(0.1), fsgld.plain, probs)  # noqa: E731
    M = np.linalg.inv(np.eye(D) + sum(x.T @ x for x in X))
    shares = np.array([np.trace(M @ x.T @ x) for x in X])
    shares /= shares.sum()
    found = choose(surrogates)
    np.testing.assert_allclose(found.shares, shares, rtol=1e-9)
    raised = np.maximum(shares, 0.1 / 4)
    assert shares[3] < 1e-5
    np.testing.assert_allclose(found.probs, raised / raised.sum(), rtol=1e-9)
    diagonal = choose([Gaussian(q.shift, jnp.diag(q.precision)) for q in surrogates])
    P = 1 + sum((x**2).sum(0) for x in X)
    np.testing.assert_allclose(
        diagonal.shares, np.array([((x**2).sum(0) / P).sum() for x in X]) / (D - (1 / P).sum()), rtol=1e-9
    )
    assert choose([Gaussian(q.shift) for q in surrogates]).probs.tolist() == [0.25] * 4
    assert choose(None).shares is None
    np.testing.assert_allclose(choose(surrogates, None).probs, 0.25)
    with pytest.raises(fsgld.InputError, match=r'probs must be "auto", None for equal ones, or one number a client'):
        choose(surrogates, "equal")


# Four independent Cauchy likelihoods: their curvature changes sign a sd and a half from the mode. The last term is
# nought, but its gradient is no number below −3
CAUCHY = fsgld.Model(
    lambda p: -0.5 * jnp.sum(p**2) / 400, lambda p, x: -jnp.sum(jnp.log1p((x - p) ** 2) + 0 * jnp.sqrt(p + 3)),
    jnp.zeros(4),
)  # fmt: skip


@pytest.mark.slow
def test_one_client_alone_cannot_drift_away():
    """Its B is the posterior's own curvature, negative or not; no visit is too long for it."""
    found = fsgld.preflight(CAUCHY, [np.full((1, 4), 1.0)])
    assert found.low[0] < 0
    assert found.step_size == 0.1
    assert found.notes == ()


@pytest.mark.slow
def test_gradients_that_are_no_numbers_nearby_are_refused_with_the_clients_name():
    with pytest.raises(fsgld.InputError, match=r"^ward: gradients of the log-likelihood are not finite within two sds"):
        fsgld.preflight(CAUCHY, {"ward": np.full((1, 4), -2.9)})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"surrogates": "laplace"}, "surrogates must be \"auto\", None or a list of fsgld.Gaussian; got 'laplace'"),
        ({"surrogates": None}, "surrogates is None or linear; give surrogates with a"),
        ({"step_size": 0.0}, 'step_size must be "auto" or a positive number; got 0.0'),
        ({"step_size": "small"}, "step_size must be \"auto\" or a positive number; got 'small'"),
        ({"local_steps": 0}, "local_steps must be a whole number of at least 1; got 0"),
        ({"batch_size": "all"}, "batch_size must be \"auto\" or a whole number of at least 1; got 'all'"),
        ({"rounds": 1.5}, "rounds must be a whole number of at least 1; got 1.5"),
        ({"chains": 0}, "chains must be a whole number of at least 1; got 0"),
        ({"likelihood": "plain"}, "likelihood is 'plain'; give fsgld.plain or fsgld.control_variate"),
        ({"mini_batches": "large"}, 'mini_batches must be "auto", "uniform" or "leverage"; got \'large\''),
        ({"probs": [0.5, 0.5]}, "probs must hold one number for each of 3 clients"),
    ],
)
def test_bad_input_is_refused_in_words(given, words):
    with pytest.raises(fsgld.InputError, match=words):
        preflight(**given)


def test_a_step_size_and_dynamics_with_one_of_their_own_are_refused():
    with pytest.raises(fsgld.InputError, match=r"step_size is for the default dynamics; got 0.1 and dynamics as well"):
        fsgld.sample(*problem(), step_size=0.1, dynamics=fsgld.langevin(1e-3))
