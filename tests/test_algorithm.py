"""Identities of the paper, exact to 1e-10, on the very function that all engines call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from fsgld.algorithm import Client, Rules, client_update, conducive
from fsgld.fit import anchored, fit
from fsgld.randomness import Numbers
from fsgld.surrogates import Gaussian
from problems import logistic, regression

F = np.array([0.2, 0.5, 0.3])
THETA = jnp.array([0.3, -0.7, 1.1])


def estimates(model, shards, surrogates, f, theta, alpha=1.0, likelihood=fsgld.plain, memos=None):
    """Enumerate the gradient estimate of every client and every row (m = 1) with client_update.

    With h = 2 and no noise a Langevin step moves θ by the estimate itself. Give a list of (N_s, d).
    """
    total = Gaussian.stack(surrogates).total()
    rules = Rules(model.flatten(), likelihood, batch_size=1)
    dynamics = fsgld.langevin(2.0)
    out = []
    for s, data in enumerate(shards):
        n = len(jax.tree.leaves(data)[0])
        rows = jax.tree.map(jnp.asarray, data)
        g = conducive(total, surrogates[s], f[s], alpha)
        memo = () if memos is None else memos[s]
        client = Client(rows, jnp.asarray(0), jnp.asarray(n), jnp.asarray(f[s]), g, memo)
        bits = jnp.asarray(np.ceil(np.arange(n) * 2.0**32 / n), jnp.uint32)  # picks rows 0 … n−1 in turn

        def one(b, client=client):
            numbers = Numbers(b[None, None], jnp.zeros((1, len(theta))))
            state, _ = client_update(rules, dynamics, client, dynamics.init(theta), numbers)
            return state.theta - theta

        out.append(np.array(jax.vmap(one)(bits)))
    return out


def expectation(estimates, f):
    return sum(f_s * e.mean(0) for f_s, e in zip(f, estimates, strict=True))


def log_posterior_gradient(model, shards, theta):
    flat = model.flatten()
    rows = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *shards)
    return np.array(flat.grad_log_prior(theta) + flat.grad_log_likelihood(theta, rows))


SURROGATES = {
    "dense": lambda model, shards: fit(model, shards, anchored),
    "diagonal": lambda model, shards: fit(model, shards, anchored, diagonal=True),
    "linear": lambda model, shards: fit(model, shards, anchored, order=1),
    "wrong": lambda model, shards: [
        Gaussian(jnp.arange(_size(model)) + s * 1.0, -s * jnp.eye(_size(model))) for s in range(len(shards))
    ],
    "flat": lambda model, shards: [Gaussian.flat(_size(model))] * len(shards),
}


def _size(model):
    return sum(np.size(leaf) for leaf in jax.tree.leaves(model.init))


@pytest.mark.parametrize("problem", [regression, logistic])
@pytest.mark.parametrize("kind", SURROGATES)
@pytest.mark.parametrize("slot", ["plain", "control_variate"])
def test_lemma_1_by_enumeration(problem, kind, slot):
    """Lemma 1: Σ_s f_s E[d_s + g_s] = ∇log p(θ | x), for any surrogates, unequal N_s and f_s."""
    model, shards = problem()
    theta = jnp.linspace(-0.7, 1.1, _size(model))
    surrogates = SURROGATES[kind](model, shards)
    likelihood, memos = fsgld.plain, None
    if slot == "control_variate":
        anchor, flat = theta / 2 + 0.1, model.flatten()
        likelihood = fsgld.control_variate
        memos = [(anchor, flat.grad_log_likelihood(anchor, jax.tree.map(jnp.asarray, x))) for x in shards]
    all_estimates = estimates(model, shards, surrogates, F, theta, likelihood=likelihood, memos=memos)
    want = log_posterior_gradient(model, shards, theta)
    np.testing.assert_allclose(expectation(all_estimates, F), want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", SURROGATES)
def test_conducive_gradients_have_mean_zero(kind):
    """Σ_s f_s g_s = 0."""
    model, shards = regression()
    surrogates = SURROGATES[kind](model, shards)
    total = Gaussian.stack(surrogates).total()
    g = [conducive(total, q, f, 1.0).grad_log(THETA) for q, f in zip(surrogates, F, strict=True)]
    np.testing.assert_allclose(sum(f * x for f, x in zip(F, g, strict=True)), 0, atol=1e-10)


def test_conducive_gradient_is_the_papers_formula():
    """g_s = ∇log q − (1/f_s) ∇log q_s = ∇log(q / q_s^(1/f_s)), times α."""
    model, shards = regression()
    surrogates = fit(model, shards, anchored)
    total = Gaussian.stack(surrogates).total()
    q_s, f_s = surrogates[1], F[1]
    g = conducive(total, q_s, f_s, 0.7).grad_log(THETA)
    np.testing.assert_allclose(g, 0.7 * (total.grad_log(THETA) - q_s.grad_log(THETA) / f_s), rtol=1e-12)
    ratio = lambda t: sum(q.log(t) for q in surrogates) - q_s.log(t) / f_s  # noqa: E731
    np.testing.assert_allclose(g, 0.7 * jax.grad(ratio)(THETA), rtol=1e-10)


def test_flat_surrogates_give_dsgld():
    """With q_s ≡ 1 the estimate is v_s = ∇log p(θ) + N_s/(f_s m) ∇log p(x^(m) | θ), Eq. (4)."""
    model, shards = regression()
    for s, e in enumerate(estimates(model, shards, SURROGATES["flat"](model, shards), F, THETA)):
        X, y = shards[s]
        want = -THETA[None] + len(X) / F[s] * X * (y - X @ np.array(THETA))[:, None]
        np.testing.assert_allclose(e, want, rtol=1e-12)


def test_one_shard_gives_sgld():
    """With one client and f = 1 any surrogate cancels: g = ∇log q − ∇log q = 0, and Eq. (2) is left."""
    model, (X, y) = regression()[0], regression()[1][1]
    (e,) = estimates(model, [(X, y)], [Gaussian(THETA, jnp.eye(3))], [1.0], THETA)
    np.testing.assert_allclose(e, -THETA[None] + len(X) * X * (y - X @ np.array(THETA))[:, None], rtol=1e-12)


def test_alpha_scales_the_conducive_gradient():
    model, shards = regression()
    surrogates = fit(model, shards, anchored)
    zero, half, one = (estimates(model, shards, surrogates, F, THETA, alpha) for alpha in (0.0, 0.5, 1.0))
    for a, b, c in zip(zero, half, one, strict=True):
        np.testing.assert_allclose(b - a, (c - a) / 2, atol=1e-10)
        assert np.abs(c - a).max() > 1


def test_two_calls_with_half_the_numbers_do_the_same_as_one():
    model, shards = regression()
    rules = Rules(model.flatten(), fsgld.plain, 4)
    rows = jax.tree.map(jnp.asarray, shards[0])
    client = Client(rows, jnp.asarray(0), jnp.asarray(7), jnp.asarray(0.2), Gaussian.flat(3), ())
    keys = jax.random.split(jax.random.key(0))
    numbers = Numbers(jax.random.bits(keys[0], (10, 4), "uint32"), jax.random.normal(keys[1], (10, 3)))
    dynamics = fsgld.sghmc(1e-3)
    start = dynamics.init(THETA)
    whole, draws = client_update(rules, dynamics, client, start, numbers)
    half, first = client_update(rules, dynamics, client, start, Numbers(*(x[:6] for x in numbers)))
    rest, second = client_update(rules, dynamics, client, half, Numbers(*(x[6:] for x in numbers)))
    np.testing.assert_allclose(np.concatenate([first, second]), draws, rtol=1e-12)
    np.testing.assert_allclose(rest.memory, whole.memory, rtol=1e-12)
    assert int(rest.t) == int(whole.t) == 10
