"""The paper's analysis: every formula of `fsgld.theory` against enumeration or a closed form."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from scipy.stats import norm

import fsgld
from fsgld import Gaussian, InputError, theory

FALSE_ALARM_RATE = 2e-5  # of each Monte Carlo test; seeds are fixed, so a test that passes goes on passing
F = np.array([0.2, 0.5, 0.3])

# Models are made once, so that compiled programs are found again
COIN = fsgld.Model(
    log_prior=lambda p: jnp.zeros(()),
    log_likelihood=lambda p, x: x * jnp.log(p) + (1 - x) * jnp.log1p(-p),
    init=jnp.array(0.5),
)
NORMAL_MEAN = fsgld.Model(
    log_prior=lambda p: -0.5 * jnp.sum(p**2),
    log_likelihood=lambda p, x: -0.5 * jnp.sum((x - p) ** 2),
    init=jnp.zeros(2),
)
LOGISTIC = fsgld.Model(
    log_prior=lambda p: -0.5 * (jnp.sum(p["w"] ** 2) + p["b"] ** 2),
    log_likelihood=lambda p, row: -jnp.logaddexp(0.0, (1 - 2 * row["y"]) * (row["x"] @ p["w"] + p["b"])),
    init={"w": jnp.zeros(2), "b": jnp.zeros(())},
)


def bernoulli():
    """Figure 1 of the paper: a coin on the probability scale, a uniform prior, 1, 5 and 9 heads of 10."""
    return COIN, [(np.arange(10.0) < heads) * 1.0 for heads in (1, 5, 9)]


def coin_gradient(x, theta):
    return x / theta - (1 - x) / (1 - theta)


def gaussian(sizes, centres, seed=0):
    """Rows around centres with the identity as their exact covariance; model N(x | θ, I), prior N(0, I)."""
    rng, shards = np.random.default_rng(seed), []
    for n, centre in zip(sizes, centres, strict=True):
        x = rng.normal(size=(n, 2))
        x = (x - x.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(x.T, ddof=0))).T
        shards.append(x + np.asarray(centre))
    return NORMAL_MEAN, shards


def logistic(sizes, seed=0):
    """Logistic regression with dict rows and dict parameters, d = 3."""
    rng = np.random.default_rng(seed)
    shards = [{"x": rng.normal(size=(n, 2)) + s, "y": rng.integers(0, 2, n) * 1.0} for s, n in enumerate(sizes)]
    return LOGISTIC, shards


PARAMS = {"w": jnp.array([0.4, -0.8]), "b": jnp.array(0.3)}
ANCHOR = {"w": jnp.array([0.1, -0.5]), "b": jnp.array(0.0)}


def wrong_surrogates():
    """Surrogates of d = 3 that fit nothing, of all three kinds; the last is indefinite."""
    return [
        Gaussian(jnp.array([1.0, -2.0, 0.5])),
        Gaussian(jnp.array([0.0, 3.0, 1.0]), jnp.array([1.0, 2.0, 0.5])),
        Gaussian(jnp.array([-1.0, 0.3, 0.0]), jnp.diag(jnp.array([1.0, -1.0, 4.0])) + 0.3),
    ]


def row_gradients(model, data, params):
    """Evaluate ∇log p(x_i | θ) row by row, with plain JAX; (N, d)."""
    gradient = jax.grad(model.log_likelihood)
    rows = [jax.tree.map(lambda leaf, i=i: leaf[i], data) for i in range(len(jax.tree.leaves(data)[0]))]
    return np.array([ravel_pytree(gradient(params, row))[0] for row in rows])


def enumerate_estimates(model, shards, params, surrogates, f, m, alpha, anchor=None):
    """Write down the estimates of every client and every mini-batch, and their probabilities."""
    theta, prior = ravel_pytree(params)[0], ravel_pytree(jax.grad(model.log_prior)(params))[0]
    slopes = [np.array(q.grad_log(theta)) for q in surrogates]
    values, weights = [], []
    for s, data in enumerate(shards):
        v = row_gradients(model, data, params)
        at_anchor = np.zeros_like(v) if anchor is None else row_gradients(model, data, anchor)
        conducive = alpha * (sum(slopes) - slopes[s] / f[s])
        for batch in product(range(len(v)), repeat=m):
            terms = (v - at_anchor)[list(batch)].sum(0)
            likelihood = at_anchor.sum(0) + len(v) / m * terms
            values.append(np.array(prior) + likelihood / f[s] + conducive)
            weights.append(f[s] / len(v) ** m)
    return np.array(values), np.array(weights)


def covariance(values, weights):
    centred = values - weights @ values
    return (weights[:, None] * centred).T @ centred


@pytest.mark.parametrize("theta", [0.02, 0.31, 0.5, 0.9])
def test_figure_1(theta):
    # ∇log p(x | θ) = (x − θ)/(θ(1 − θ)): the factor cancels in ratios, which are the same for every θ
    model, shards = bernoulli()
    q = [Gaussian(jnp.array([coin_gradient(x, theta).sum()])) for x in shards]  # ∇log q_s = ∇log p(x_s | θ)
    at = {"theta_params": jnp.array(theta), "batch_size": 5}
    sgld = theory.gradient_variance(model, [np.concatenate(shards)], **at)
    dsgld = theory.gradient_variance(model, shards, **at)
    fsgld_ = theory.gradient_variance(model, shards, surrogates=q, **at)
    unit = (theta * (1 - theta)) ** 2
    np.testing.assert_allclose([v.item() * unit for v in (sgld, dsgld, fsgld_)], [45, 121.8, 25.8], rtol=1e-10)
    assert np.sqrt(dsgld / sgld).item() == pytest.approx(1.645, abs=5e-4)
    assert np.sqrt(fsgld_ / sgld).item() == pytest.approx(0.757, abs=5e-4)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("alpha", [1.0, 0.7])
@pytest.mark.parametrize("anchor", [None, ANCHOR], ids=["plain", "control_variate"])
@pytest.mark.parametrize("surrogates", [None, wrong_surrogates()], ids=["DSGLD", "FSGLD"])
def test_exact_equals_enumeration_of_all_mini_batches(m, alpha, anchor, surrogates):
    model, shards = logistic((2, 3, 4))
    q = surrogates or [Gaussian.flat(3)] * 3
    values, weights = enumerate_estimates(model, shards, PARAMS, q, F, m, alpha, anchor)
    assert weights.sum() == pytest.approx(1)
    likelihood = fsgld.plain if anchor is None else fsgld.control_variate.at(anchor)
    have = theory.gradient_variance(
        model, shards, PARAMS, surrogates, probs=F, batch_size=m, alpha=alpha, likelihood=likelihood
    )
    np.testing.assert_allclose(have, covariance(values, weights), rtol=1e-10, atol=1e-10)


def test_formula_of_the_docstring():
    model, shards = logistic((2, 3, 4))
    q, m = wrong_surrogates(), 3
    theta = ravel_pytree(PARAMS)[0]
    slopes = np.array([q_s.grad_log(theta) for q_s in q])
    rows = [row_gradients(model, data, PARAMS) for data in shards]
    E = np.array([-theta + rows[s].sum(0) / F[s] + slopes.sum(0) - slopes[s] / F[s] for s in range(3)])
    total = np.zeros((3, 3))
    for s, v in enumerate(rows):
        deviation = E[s] - F @ E
        total += F[s] * (len(v) ** 2 / (F[s] ** 2 * m) * np.cov(v.T, ddof=0) + np.outer(deviation, deviation))
    have = theory.gradient_variance(model, shards, PARAMS, q, probs=F, batch_size=m)
    np.testing.assert_allclose(have, total, rtol=1e-10)


@pytest.mark.parametrize("anchor", [None, ANCHOR], ids=["plain", "control_variate"])
@pytest.mark.parametrize("surrogates", [None, wrong_surrogates()], ids=["DSGLD", "FSGLD"])
def test_monte_carlo_agrees_with_exact(anchor, surrogates):
    model, shards = logistic((2, 3, 4))
    q, draws = surrogates or [Gaussian.flat(3)] * 3, 20_000
    likelihood = fsgld.plain if anchor is None else fsgld.control_variate.at(anchor)
    options = {"probs": F, "batch_size": 2, "likelihood": likelihood}
    exact = theory.gradient_variance(model, shards, PARAMS, surrogates, **options)
    have = theory.gradient_variance(
        model, shards, PARAMS, surrogates, **options, method="monte_carlo", draws=draws, seed=1
    )
    values, weights = enumerate_estimates(model, shards, PARAMS, q, F, 2, 1.0, anchor)
    centred = values - weights @ values
    products = centred[:, :, None] * centred[:, None, :]
    error = np.sqrt(np.einsum("i,ijk->jk", weights, (products - exact) ** 2) / draws)
    z = norm.isf(FALSE_ALARM_RATE / 2 / 6)  # 6 different entries
    np.testing.assert_array_less(np.abs(have - exact), z * error)


def test_standard_error_of_monte_carlo_is_as_documented():
    model, shards = logistic((2, 3, 4))
    values, weights = enumerate_estimates(model, shards, PARAMS, [Gaussian.flat(3)] * 3, F, 2, 1.0)
    centred = values - weights @ values
    variances = weights @ centred**2
    kurtosis = weights @ centred**4 / variances**2
    draws, repeats = 500, 400
    options = {"probs": F, "batch_size": 2, "method": "monte_carlo", "draws": draws}
    runs = [theory.gradient_variance(model, shards, PARAMS, seed=seed, **options) for seed in range(repeats)]
    relative = np.diagonal(runs, axis1=1, axis2=2) / variances
    z = norm.isf(FALSE_ALARM_RATE / 2 / 3)
    documented = np.sqrt((kurtosis - 1) / draws)
    np.testing.assert_array_less(np.abs(relative.mean(0) - 1), z * documented / np.sqrt(repeats))  # unbiased
    np.testing.assert_allclose(relative.std(0), documented, rtol=z / np.sqrt(2 * repeats))


def test_monte_carlo_is_a_function_of_the_seed():
    model, shards = bernoulli()
    options = {"theta_params": jnp.array(0.4), "batch_size": 5, "method": "monte_carlo", "draws": 50}
    one, again, other = (theory.gradient_variance(model, shards, seed=seed, **options) for seed in (3, 3, 4))
    assert one == again != other


def test_closed_form_of_the_gaussian_toy():
    sizes, centres, theta, m = (20, 50, 30), np.array([[-4.0, 1], [2, 2], [0, -5]]), jnp.array([0.5, -1.0]), 10
    model, shards = gaussian(sizes, centres)
    N = np.array(sizes)
    within = (N**2 / F).sum() / m * np.eye(2)  # rows have covariance s² I with s = 1
    E = (N / F)[:, None] * (centres - np.array(theta))
    between = (F[:, None] * (E - F @ E)).T @ (E - F @ E)
    options = {"probs": F, "batch_size": m}
    dsgld = theory.gradient_variance(model, shards, theta, **options)
    np.testing.assert_allclose(dsgld, within + between, rtol=1e-10)
    q = fsgld.fit(model, shards, fsgld.analytic)
    np.testing.assert_allclose(theory.gradient_variance(model, shards, theta, q, **options), within, atol=1e-8)
    sgld = theory.gradient_variance(model, [shards[1]], theta, batch_size=m)
    np.testing.assert_allclose(sgld, 50**2 / m * np.eye(2), rtol=1e-10, atol=1e-10)


def test_control_variate_leaves_no_variance_within_clients_of_a_gaussian_mean():
    model, shards = gaussian((20, 50, 30), [[-4, 1], [2, 2], [0, -5]])
    theta, options = jnp.array([0.5, -1.0]), {"probs": F, "batch_size": 10, "likelihood": fsgld.control_variate}
    q = fsgld.fit(model, shards, fsgld.analytic)
    assert np.abs(theory.gradient_variance(model, shards, theta, q, **options)).max() < 1e-18 * 1e5
    plain = options | {"likelihood": fsgld.plain}
    between = theory.gradient_variance(model, shards, theta, **plain)
    between = between - theory.gradient_variance(model, shards, theta, q, **plain)
    np.testing.assert_allclose(theory.gradient_variance(model, shards, theta, **options), between, rtol=1e-10)


def test_default_anchor_is_the_mean_of_prior_times_q():
    model, shards = logistic((2, 3, 4))
    q = fsgld.fit(model, shards, fsgld.anchored)
    mean = (Gaussian(jnp.zeros(3), jnp.ones(3)) + Gaussian.stack(q).total()).mean
    slots = fsgld.control_variate, fsgld.control_variate.at(mean), fsgld.control_variate.at(ANCHOR)
    have, same, other = (
        theory.gradient_variance(model, shards, PARAMS, q, batch_size=2, likelihood=slot) for slot in slots
    )
    np.testing.assert_allclose(have, same, rtol=1e-12)
    assert np.abs(have - other).max() > 1e-3 * np.abs(have).max()


def test_surrogates_do_not_matter_for_a_single_client():
    model, shards = logistic((6,))
    plain = theory.gradient_variance(model, shards, PARAMS, batch_size=3)
    other = theory.gradient_variance(model, shards, PARAMS, wrong_surrogates()[2:], batch_size=3)
    np.testing.assert_allclose(plain, other, rtol=1e-12)


@pytest.mark.parametrize("sizes", [(1, 1300, 511), (512, 1299, 1)])
def test_blocks_of_rows_do_not_matter(sizes):
    model, shards = logistic(sizes)
    flat, rows = model.flatten(), []
    theta = ravel_pytree(PARAMS)[0]
    for data in shards:
        each = jax.jacobian(lambda t, data=data: flat.log_likelihood(t, data))
        rows.append(np.array(each(theta)))
    N = np.array(sizes)
    E = np.array([v.sum(0) for v in rows]) / F[:, None]
    want = (F[:, None] * (E - F @ E)).T @ (E - F @ E)
    want += sum(n**2 / (f * 7) * np.cov(v.T, ddof=0) for n, f, v in zip(N, F, rows, strict=True))
    named = {f"site {s}": data for s, data in enumerate(shards)}
    for given in (shards, named):
        have = theory.gradient_variance(model, given, PARAMS, probs=F, batch_size=7)
        np.testing.assert_allclose(have, want, rtol=1e-10)
    norms = [(v**2).sum(1) for v in rows]
    q = wrong_surrogates()
    gaps = [((v - np.array(q_s.grad_log(theta)) / len(v)) ** 2).sum(1).mean() for v, q_s in zip(rows, q, strict=True)]
    np.testing.assert_allclose(theory.gamma_squared(model, shards, PARAMS), [n.max() for n in norms], rtol=1e-12)
    np.testing.assert_allclose(theory.epsilon_squared(model, shards, q, PARAMS), gaps, rtol=1e-12)


def test_single_precision():
    model, shards = logistic((2, 3, 4))
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), model.start())
    narrow = fsgld.Model(model.log_prior, model.log_likelihood, single)
    small = [jax.tree.map(np.float32, data) for data in shards]
    for method in ("exact", "monte_carlo"):
        options = {"probs": F, "batch_size": 2, "method": method, "draws": 20_000}
        have = theory.gradient_variance(narrow, small, PARAMS, **options)
        want = theory.gradient_variance(model, shards, PARAMS, **options)
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


def test_constants_are_maxima_over_points():
    model, shards = logistic((2, 3, 4))
    rng = np.random.default_rng(1)
    draws = {"w": rng.normal(size=(2, 6, 2)), "b": rng.normal(size=(2, 6))}  # as Result.draws
    q = wrong_surrogates()
    points = [jax.tree.map(lambda leaf, c=c, i=i: jnp.asarray(leaf[c, i]), draws) for c in range(2) for i in range(6)]
    flat = np.array([ravel_pytree(point)[0] for point in points])
    rows = [[row_gradients(model, data, point) for data in shards] for point in points]
    gamma = np.max([[(v**2).sum(1).max() for v in at] for at in rows], axis=0)
    slopes = [[np.array(q_s.grad_log(theta)) for q_s in q] for theta in flat]
    mean = [
        [((v - g / len(v)) ** 2).sum(1).mean() for v, g in zip(*pair, strict=True)]
        for pair in zip(rows, slopes, strict=True)
    ]
    epsilon = np.max(mean, axis=0)
    for form in (draws, flat, flat.reshape(2, 6, 3)):
        np.testing.assert_allclose(theory.gamma_squared(model, shards, form), gamma, rtol=1e-10)
        np.testing.assert_allclose(theory.epsilon_squared(model, shards, q, form), epsilon, rtol=1e-10)


def test_epsilon_splits_as_in_remark_3():
    model, shards = logistic((2, 3, 4))
    q, theta = wrong_surrogates(), ravel_pytree(PARAMS)[0]
    for s, data in enumerate(shards):
        v = row_gradients(model, data, PARAMS)
        gap = v.sum(0) - np.array(q[s].grad_log(theta))
        want = np.trace(np.cov(v.T, ddof=0)) + gap @ gap / len(v) ** 2
        have = theory.epsilon_squared(model, shards, q, PARAMS)[s]
        assert have == pytest.approx(want, rel=1e-10)


def test_epsilon_is_much_smaller_than_gamma_on_the_blobs():
    # Section 5.1 on the square of the means, [−6, 6]². ε_s² is the same at all θ, γ_s² largest at a corner, so
    # the fineness of the grid does not matter. Measured over these five seeds: 125 on average, at least 80.
    model, points, ratios = NORMAL_MEAN, theory.grid([-6, -6], [6, 6], 13), []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        shards = [rng.normal(rng.uniform(-6, 6, 2), 1.0, (200, 2)) for _ in range(10)]
        gamma = theory.gamma_squared(model, shards, points)
        epsilon = theory.epsilon_squared(model, shards, fsgld.fit(model, shards, fsgld.analytic), points)
        corners = theory.grid([-6, -6], [6, 6], 2)
        distances = [((x[:, None] - corners) ** 2).sum(2).max() for x in shards]
        np.testing.assert_allclose(gamma, distances, rtol=1e-10)
        np.testing.assert_allclose(epsilon, [x.var(0).sum() for x in shards], rtol=1e-10)
        ratios.append(gamma / epsilon)
    assert np.min(ratios) > 75
    assert np.mean(ratios) == pytest.approx(125.4, abs=0.1)


def test_bound_is_the_printed_formula():
    c, N, f = np.array([2.0, 0.0, 1.0]), np.array([10, 20, 5]), F
    variance = 100 / 0.2 * 2.0 + 25 / 0.3 * 1.0
    have = theory.bound(c, N, f, batch_size=4, steps=1000, step_size=0.01, C=3.0)
    assert have == pytest.approx(3 * (variance / 4000 + 1 / 10 + 1e-4), rel=1e-14)
    uniform = theory.bound(c, N, None, 4, 1000, 0.01)
    assert uniform == pytest.approx((100 * 2 + 25) * 3 / 4000 + 1 / 10 + 1e-4, rel=1e-14)


def test_the_proofs_bound_on_the_variance():
    # tr Cov ≤ V = Σ_s (N_s²/f_s) c_s always, and ≤ V/m if m = 1 or q_s is exact; not otherwise
    model, shards = logistic((2, 3, 4))
    N, q, params = np.array([2, 3, 4]), wrong_surrogates(), PARAMS
    exact = fsgld.fit(model, shards, fsgld.anchored, order=1, anchor=params)  # ∇log q_s = ∇log p(x_s | θ) at θ
    for surrogates in (None, q, exact):
        c = (
            theory.gamma_squared(model, shards, params)
            if surrogates is None
            else theory.epsilon_squared(model, shards, surrogates, params)
        )
        V = np.sum(N**2 / F * c)
        traces = [
            np.trace(theory.gradient_variance(model, shards, params, surrogates, probs=F, batch_size=m))
            for m in (1, 2, 30)
        ]
        assert max(traces) <= V * (1 + 1e-12)
        if surrogates is exact:
            np.testing.assert_allclose(traces, V / np.array([1, 2, 30]), rtol=1e-10)


def test_the_proof_of_theorem_1_fails_on_figure_1():
    model, shards = bernoulli()
    theta = jnp.array(0.5)
    V = np.sum(np.full(3, 10.0) ** 2 * 3 * theory.gamma_squared(model, shards, theta))
    trace = theory.gradient_variance(model, shards, theta, batch_size=5).item()
    assert (trace, V / 5) == (pytest.approx(1948.8), pytest.approx(720))
    assert theory.gradient_variance(model, shards, theta, batch_size=1).item() == pytest.approx(V)  # m = 1: sharp


def test_best_probs_minimise_the_variance_term():
    rng = np.random.default_rng(0)
    c, N = rng.lognormal(size=6), rng.integers(5, 500, 6)
    best = theory.best_probs(c, N)
    assert best.sum() == pytest.approx(1)
    np.testing.assert_allclose(best / best[0], N * np.sqrt(c) / (N[0] * np.sqrt(c[0])), rtol=1e-12)

    def term(f):
        return np.sum(N**2 * c / f)

    least = np.sum(N * np.sqrt(c)) ** 2
    assert term(best) == pytest.approx(least, rel=1e-12)
    assert min(map(term, rng.dirichlet(np.ones(6), 1000))) > least

    def softmax(z):
        return np.exp(z) / np.exp(z).sum()

    found = minimize(lambda z: term(softmax(z)) / least, np.zeros(6), tol=1e-12)
    np.testing.assert_allclose(softmax(found.x), best, rtol=1e-3)
    settings = {"batch_size": 10, "steps": 100, "step_size": 0.1}
    assert theory.bound(c, N, best, **settings) < theory.bound(c, N, None, **settings)
    assert theory.bound(c, N, best, **settings) < theory.bound(c, N, N / N.sum(), **settings)


def test_grid():
    points = theory.grid([0, -1], [2, 1], 3)
    assert points.shape == (9, 2)
    assert {tuple(p) for p in points.tolist()} == set(product((0.0, 1.0, 2.0), (-1.0, 0.0, 1.0)))
    np.testing.assert_array_equal(theory.grid(0, 1, 5), np.linspace(0, 1, 5)[:, None])


def bad(name, **change):
    """Call a function of the module with one wrong argument."""
    model, shards = bernoulli()
    given = {"model": model, "shards": shards}
    right = {
        "gradient_variance": given | {"theta_params": jnp.array(0.5), "batch_size": 5},
        "gamma_squared": given | {"points": theory.grid(0.1, 0.9, 5)},
        "epsilon_squared": given | {"points": theory.grid(0.1, 0.9, 5), "surrogates": [Gaussian.flat(1)] * 3},
        "bound": {"constants": [1, 1], "sizes": [3, 4], "probs": None, "batch_size": 1, "steps": 10, "step_size": 0.1},
        "best_probs": {"epsilon_squared": [1, 1], "sizes": [3, 4]},
        "grid": {"low": 0, "high": 1, "n": 5},
    }[name]
    getattr(theory, name)(**right)
    getattr(theory, name)(**right | change)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gradient_variance", {"batch_size": 0}, "batch_size must be a whole number of at least 1; got 0"),
        ("gradient_variance", {"draws": 1}, "draws must be a whole number of at least 2; got 1"),
        ("gradient_variance", {"method": "guess"}, "method .* got 1 θ and 'guess'"),
        ("gradient_variance", {"theta_params": np.full(4, 0.5)}, "give one θ .* got 4"),
        ("gradient_variance", {"theta_params": {"p": 0.5}}, r"like the model's init .* got \{'p': \(\)\}"),
        ("gradient_variance", {"theta_params": jnp.array(0.0)}, "not finite at theta_params"),
        ("gradient_variance", {"theta_params": 0.0, "method": "monte_carlo"}, "not finite at theta_params"),
        ("gradient_variance", {"probs": [0.5, 0.5, 0.5]}, "sum to 1; got sum 1.5"),
        ("gradient_variance", {"surrogates": [Gaussian.flat(1)]}, "1 surrogates for 3 clients"),
        ("gradient_variance", {"method": "monte_carlo", "seed": -1}, "seed must be"),
        ("gradient_variance", {"model": None}, "model is None"),
        ("gradient_variance", {"likelihood": "plain"}, "likelihood is 'plain'; give fsgld.plain"),
        ("gradient_variance", {"alpha": -1}, "alpha must be a number of at least 0; got -1"),
        ("gamma_squared", {"model": []}, "model is "),
        ("gamma_squared", {"points": np.empty((0, 1))}, r"got \(0, 1\)"),
        ("gamma_squared", {"points": np.array([[0.5], [np.nan]])}, "client 0: a gradient is not finite"),
        ("gamma_squared", {"points": np.array([[0.5], [0.0], [0.2]])}, "client 0: a gradient is not finite"),
        ("gamma_squared", {"shards": []}, "shards must be a non-empty list"),
        ("epsilon_squared", {"points": np.array([[1.0], [0.5]])}, "not finite at some point"),
        ("epsilon_squared", {"surrogates": [Gaussian.flat(2)] * 3}, "the model has 1 parameters"),
        ("bound", {"constants": [1, -1]}, "constants must hold 2 finite numbers >= 0"),
        ("bound", {"sizes": [1, 2, 3]}, "sizes must hold 2 finite numbers"),
        ("bound", {"probs": [1.0, 0.0]}, "probs must be positive"),
        ("bound", {"steps": 0.5}, "steps must be a whole number"),
        ("bound", {"step_size": 0}, "step_size and C must be positive"),
        ("bound", {"step_size": "0.1"}, "step_size and C must be positive"),
        ("bound", {"constants": [], "sizes": []}, "one number a client; got none"),
        ("grid", {"low": [0, 0], "high": [1, 1, 1]}, "d numbers each"),
        ("grid", {"low": [], "high": []}, "d numbers each"),
        ("best_probs", {"epsilon_squared": [0.0, 1.0]}, "client 0 has .* would never be visited"),
        ("grid", {"low": 2}, "low < high"),
        ("grid", {"n": 1}, "n must be a whole number of at least 2"),
        ("grid", {"low": np.zeros(8), "high": np.ones(8), "n": 10}, r"n\*\*d <= 10\*\*7"),
    ],
)
def test_bad_input_is_explained(name, change, message):
    with pytest.raises(InputError, match=message):
        bad(name, **change)
