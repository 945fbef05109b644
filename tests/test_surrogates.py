"""Surrogates: arithmetic of natural parameters is arithmetic of log densities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fsgld
from fsgld import Gaussian

KEY = jax.random.key(0)
THETA = jnp.array([0.3, -1.2, 2.0])
KINDS = ("linear", "diagonal", "dense")


def make(kind, seed=0):
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(3, 3))
    precision = {"linear": None, "diagonal": jnp.asarray(rng.normal(size=3)), "dense": jnp.asarray(A + A.T)}[kind]
    return Gaussian(jnp.asarray(rng.normal(size=3)), precision)  # improper and indefinite on purpose


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_sums_are_products_of_densities(one, other):
    p, q = make(one, 1), make(other, 2)
    np.testing.assert_allclose((p + q).log(THETA), p.log(THETA) + q.log(THETA), rtol=1e-12)
    np.testing.assert_allclose((p - q).log(THETA), p.log(THETA) - q.log(THETA), rtol=1e-12)
    assert (p + q).kind == max(one, other, key=KINDS.index)


@pytest.mark.parametrize("kind", KINDS)
def test_multiples_are_powers_and_grad_log_is_the_gradient(kind):
    q = make(kind)
    np.testing.assert_allclose((q * 2.5).log(THETA), 2.5 * q.log(THETA), rtol=1e-12)
    np.testing.assert_allclose((2.5 * q).log(THETA), 2.5 * q.log(THETA), rtol=1e-12)
    np.testing.assert_allclose((q / 4).log(THETA), q.log(THETA) / 4, rtol=1e-12)
    np.testing.assert_allclose((-q).log(THETA), -q.log(THETA), rtol=1e-12)
    np.testing.assert_allclose(q.grad_log(THETA), jax.grad(q.log)(THETA), rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_richer_forms_say_the_same(kind):
    q = make(kind)
    for richer in KINDS[KINDS.index(kind) :]:
        np.testing.assert_allclose(q.to(richer).log(THETA), q.log(THETA), rtol=1e-12)
    if kind == "dense":
        with pytest.raises(fsgld.InputError, match="cannot be written"):
            q.to("diagonal")


def test_moments_and_precision_agree_with_scipy():
    A = np.random.default_rng(3).normal(size=(3, 3))
    mean, covariance = np.array([1.0, 2.0, -1.0]), A @ A.T + np.eye(3)
    q = Gaussian.from_moments(jnp.asarray(mean), covariance)
    p = Gaussian.from_precision(jnp.asarray(mean), jnp.asarray(np.linalg.inv(covariance)))
    law = stats.multivariate_normal(mean, covariance)
    for g in (q, p):
        difference = g.log(THETA) - g.log(jnp.zeros(3))
        np.testing.assert_allclose(difference, law.logpdf(THETA) - law.logpdf(np.zeros(3)), rtol=1e-10)
        np.testing.assert_allclose(g.mean, mean, rtol=1e-10)
        np.testing.assert_allclose(g.covariance, covariance, rtol=1e-10)
    variances = Gaussian.from_moments(jnp.asarray(mean), np.array([1.0, 4.0, 9.0]))
    assert variances.kind == "diagonal"
    np.testing.assert_allclose(variances.precision, [1, 1 / 4, 1 / 9], rtol=1e-12)


def test_stacks_take_apart_and_multiply():
    parts = [make("linear", 1), make("dense", 2), make("diagonal", 3)]
    stack = Gaussian.stack(parts)
    assert stack.kind == "dense"
    for s, q in enumerate(parts):
        np.testing.assert_allclose(stack[s].log(THETA), q.log(THETA), rtol=1e-12)
    np.testing.assert_allclose(stack.total().log(THETA), sum(q.log(THETA) for q in parts), rtol=1e-12)


def test_flat_says_nothing():
    q = Gaussian.flat(3)
    assert q.kind == "linear"
    assert float(q.log(THETA)) == 0
    np.testing.assert_array_equal(q.grad_log(THETA), np.zeros(3))


def test_stacks_are_not_taken_for_one_surrogate():
    stack = Gaussian.stack([make("diagonal", s) for s in range(3)])  # S = d: shapes alone would not tell
    with pytest.raises(fsgld.InputError, match="take one client out"):
        stack.grad_log(THETA)
    with pytest.raises(fsgld.InputError, match=r"use jax\.vmap for many"):
        make("dense").grad_log(jnp.ones((3, 3)))
    with pytest.raises(IndexError, match="client 7 of a stack of 3"):
        stack[7]
    assert len(stack) == len(list(stack)) == 3


def test_whole_numbers_are_not_cut_off():
    q = Gaussian.from_precision([1, 0], [2, 2]) + Gaussian.from_precision(np.array([0, 3]), np.array([2, 4]))
    np.testing.assert_allclose(q.mean, [0.5, 2.0])
    np.testing.assert_allclose(Gaussian.from_precision([1, 0], [[2, 0], [0, 2]]).covariance, np.eye(2) / 2)
    moments = Gaussian.from_moments([1, 0], [[4, 1], [1, 4]])
    np.testing.assert_allclose(moments.covariance, [[4, 1], [1, 4]], rtol=1e-6)
    np.testing.assert_allclose(Gaussian(np.array([1, 0]), np.array([2, 4])).mean, [0.5, 0])


@pytest.mark.parametrize(
    ("nonsense", "message"),
    [
        (lambda q: q * q, "by one number; got a surrogate"),
        (lambda q: q / jnp.ones(3), "by one number"),
        (lambda q: Gaussian.stack([q, q]) * jnp.array([1.0, 2.0]), r"use jax\.vmap"),
        (lambda q: q + Gaussian.flat(2), "do not go together"),
        (lambda q: Gaussian.flat(1) - q, "do not go together"),
        (lambda q: Gaussian.stack([q, q]) + Gaussian.stack([q] * 3), "do not go together"),
        (lambda q: Gaussian.stack([q, Gaussian.flat(2)]), "do not go together"),
        (lambda q: Gaussian.stack([]), "no surrogate to stack"),
        (lambda q: q.total(), "one client's"),
    ],
)
def test_arithmetic_that_means_nothing_is_refused(nonsense, message):
    with pytest.raises(fsgld.InputError, match=f"(?i){message}"):
        nonsense(make("diagonal"))


def test_stacks_are_made_inside_of_programs_too():
    parts = [make("dense", s) for s in range(3)]
    eager, traced = Gaussian.stack(parts), jax.jit(Gaussian.stack)(parts)
    jax.tree.map(np.testing.assert_array_equal, eager, traced)
