"""Where surrogates come from: analytic, from_draws, laplace, anchored.

Each is a function of (model, one client's data set, …) that a client can run alone; `fit` runs
one for every client of a simulation. All return natural parameters; all refuse in words what
they cannot do, and none returns NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fsgld import engines
from fsgld.algorithm import Rules, _take
from fsgld.dynamics import langevin
from fsgld.engines.compiled import advance
from fsgld.errors import InputError
from fsgld.likelihood import plain
from fsgld.model import FlatModel, Model, Params, Row, Theta
from fsgld.randomness import root_key, thresholds
from fsgld.shards import Data, Shards, gather
from fsgld.surrogates import Gaussian

BLOCK = 512  # rows whose derivatives are computed at once


def fit(
    model: Model, shards: list[Data] | dict[str, Data], method: Callable[..., Gaussian],
    **options: Any,
) -> list[Gaussian]:  # fmt: skip
    """Fit one surrogate a client with `analytic`, `from_draws`, `laplace` or `anchored`.

    Parameters
    ----------
    model, shards
        As for `fsgld.sample`.
    method
        A function (model, data, **options) → Gaussian.
    **options
        Passed on to the method, for every client alike.
    """
    table = gather(shards)
    surrogates = []
    for s, name in enumerate(table.names):
        try:
            surrogates.append(method(model, _alone(table, s), **options))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    return surrogates


def analytic(model: Model, data: Data) -> Gaussian:
    """Give the exact surrogate of a likelihood that is Gaussian in θ.

    For such models (a Gaussian mean, linear regression with known σ) log p(x_s | θ) is a
    quadratic, so its derivatives at one point are its natural parameters: for linear regression
    Λ_s = X_sᵀX_s/σ² and shift_s = X_sᵀy_s/σ². Checked at a second point; refused if it is not so.
    """
    flat, theta, shard = _prepare(model, data)
    q = _taylor(flat, theta, shard, "dense")
    elsewhere = theta + 1.0 + jnp.arange(len(theta), dtype=theta.dtype) / len(theta)
    want, have = _gradient(flat, elsewhere, shard), q.grad_log(elsewhere)
    size = jnp.abs(_gradient(flat, theta, shard)) + jnp.abs(want)
    tolerance = 1e3 * jnp.finfo(theta.dtype).eps * (size.max() + 1)
    if not jnp.abs(want - have).max() <= tolerance:
        raise InputError(
            "the log-likelihood is not quadratic in the parameters, so it has no analytic Gaussian"
            " form; use fsgld.anchored or fsgld.laplace"
        )
    return q


def anchored(
    model: Model, data: Data, anchor: Params | None = None, *, order: int = 2,
    diagonal: bool = False,
) -> Gaussian:  # fmt: skip
    """Expand the client's log-likelihood at a shared anchor a (Taylor).

    With gradient G_s and curvature H_s = −∇² log p(x_s | a):

        order 2:  Λ_s = H_s(a),  shift_s = G_s(a) + H_s(a) a      (diagonal: H_s's diagonal)
        order 1:  Λ_s = 0,       shift_s = G_s(a)

    No local mode is needed, and H_s may be indefinite.

    Parameters
    ----------
    model, data
        The model and one client's data set.
    anchor
        Parameters that all clients share; the model's start by default.
    order
        2 or 1; 1 gives the linear surrogates of SGLD-CV, SVRG-LD and SCAFFOLD.
    diagonal
        Keep only the diagonal of H_s.
    """
    if order not in (1, 2):
        raise InputError(f"order must be 1 or 2; got {order!r}")
    flat, theta, shard = _prepare(model, data, anchor)
    q = _taylor(flat, theta, shard, "linear" if order == 1 else "diagonal" if diagonal else "dense")
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(q)):
        raise InputError(
            "derivatives of the log-likelihood at the anchor are not finite; choose an anchor"
            " where the model is finite and differentiable"
        )
    return q


def laplace(model: Model, data: Data, *, diagonal: bool = False, max_steps: int = 100) -> Gaussian:
    """Fit a Gaussian at the client's own mode (the paper's Appendix F.2).

    Newton's method with damping climbs log p(x_s | θ) from the model's start; Λ_s is the curvature
    at the mode. A shard whose likelihood has no mode (one class only, fewer rows than
    parameters) has no Laplace surrogate: this is said in words.
    """
    flat, theta, shard = _prepare(model, data)
    theta, climbed = _climb(flat, theta, shard, max_steps)
    q = _taylor(flat, theta, shard, "dense")
    eigenvalues = np.linalg.eigvalsh(np.asarray(q.precision, float))
    flat_direction = eigenvalues.min() <= 1e-6 * max(eigenvalues.max(), 1e-30)
    if not climbed or not np.isfinite(eigenvalues).all() or flat_direction:
        raise InputError(
            f"the likelihood of these {shard[2]} rows has no mode (its smallest curvature is"
            f" {eigenvalues.min():.2g} after {max_steps} Newton steps at most), as with one class"
            " only or fewer rows than parameters; use fsgld.anchored, which needs no local mode"
        )
    if diagonal:
        return Gaussian.from_precision(theta, jnp.diagonal(q.precision))
    return q


def from_draws(
    model: Model, data: Data, *, draws: int = 3000, step_size: float | None = None,
    batch_size: int = 32, thin: int = 1, burn_in: int = 1000, diagonal: bool = False, seed: int = 0,
) -> Gaussian:  # fmt: skip
    """Fit a Gaussian to local SGLD draws from p(x_s | θ), as the paper does (3000 draws).

    Parameters
    ----------
    model, data
        The model and one client's data set; the prior is not used.
    draws, thin, burn_in
        Keep `draws` states, every thin-th step after burn_in steps.
    step_size, batch_size
        Of the local chain; by default h = 0.5/λ_max, λ_max the largest curvature at the start.
    diagonal
        Keep variances only, as for the paper's networks.
    seed
        Of the local chain.
    """
    flat, theta, shard = _prepare(model, data)
    d = len(theta)
    if not diagonal and draws <= d:
        raise InputError(
            f"{draws} draws cannot give a positive definite covariance of {d} parameters; keep"
            f" more than {d} draws, or use diagonal=True"
        )
    h = _stable_step(flat, theta, shard) if step_size is None else step_size
    chain = _local_chain(flat, theta, shard, h, batch_size, thin, burn_in + draws * thin, seed)
    kept = np.asarray(chain[-draws:], float)
    if not np.isfinite(kept).all():
        raise InputError(
            f"local SGLD with step size {float(h):.3g} diverged on these {shard[2]} rows (or their"
            " likelihood has no mode); give a smaller step_size, or use fsgld.anchored"
        )
    mean, centred = kept.mean(0), kept - kept.mean(0)
    covariance = (centred**2).mean(0) if diagonal else centred.T @ centred / (len(kept) - 1)
    lowest = covariance.min() if diagonal else np.linalg.eigvalsh(covariance).min()
    if not lowest > 0:
        raise InputError(
            f"the covariance of {draws} local draws is not positive definite (smallest eigenvalue"
            f" {lowest:.2g}); keep more draws, thin more, or use diagonal=True"
        )
    q = Gaussian.from_moments(jnp.asarray(mean), covariance)
    return jax.tree.map(lambda leaf: leaf.astype(theta.dtype), q)


Shard = tuple[Row, int, int]  # a table, where the client's rows begin, and how many there are


def _alone(table: Shards, s: int) -> Shards:
    """See one client of a table as a table of one client, without copying rows."""
    one = slice(s, s + 1)
    return Shards(table.rows, table.starts[one], table.sizes[one], table.names[one])


def _prepare(model: Model, data: Data, at: Params | None = None) -> tuple[FlatModel, Theta, Shard]:
    """Flatten the model, choose the point, and see the data as rows of a table."""
    one = data if isinstance(data, Shards) else gather({"this client": data})
    theta, _ = ravel_pytree(model.start() if at is None else at)
    flat = model.flatten()
    return flat, theta, (one.rows, int(one.starts[0]), int(one.sizes[0]))


def _sum_over_rows(fn: Callable[[Row, Array], Any], shard: Shard) -> Any:
    """Add fn(block of rows, weights) over a client's rows; the last block is padded, weight 0."""
    rows, start, size = shard
    last = jnp.asarray(start + size - 1)

    def block(b: Array) -> Any:
        index = start + b * BLOCK + jnp.arange(BLOCK)
        return fn(_take(rows, jnp.minimum(index, last)), (index <= last).astype(float))

    add = lambda b, total: jax.tree.map(jnp.add, total, block(b))  # noqa: E731
    zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(block, jnp.asarray(0)))
    return jax.lax.fori_loop(0, (size + BLOCK - 1) // BLOCK, add, zero)


def _weighted(flat: FlatModel, theta: Theta, rows: Row, weights: Array) -> Float[Array, ""]:
    """Evaluate Σ_i w_i log p(x_i | θ)."""
    return weights.astype(theta.dtype) @ flat.log_likelihood(theta, rows)


@partial(jax.jit, static_argnums=0)
def _value(flat: FlatModel, theta: Theta, shard: Shard) -> Float[Array, ""]:
    """Evaluate log p(x_s | θ)."""
    return _sum_over_rows(partial(_weighted, flat, theta), shard)


@partial(jax.jit, static_argnums=0)
def _gradient(flat: FlatModel, theta: Theta, shard: Shard) -> Theta:
    """Evaluate G_s(θ) = ∇log p(x_s | θ)."""
    gradient = jax.grad(_weighted, 1)
    return _sum_over_rows(lambda rows, w: gradient(flat, theta, rows, w), shard)


@partial(jax.jit, static_argnums=(0, 3))
def _curvature(flat: FlatModel, theta: Theta, shard: Shard, kind: str) -> Array:
    """Evaluate H_s(θ) = −∇² log p(x_s | θ), or its diagonal."""

    def column(rows: Row, w: Array, direction: Theta) -> Theta:
        gradient = lambda t: jax.grad(_weighted, 1)(flat, t, rows, w)  # noqa: E731
        return -jax.jvp(gradient, (theta,), (direction,))[1]

    def block(rows: Row, w: Array) -> Array:
        basis = jnp.eye(len(theta), dtype=theta.dtype)
        if kind == "diagonal":
            return jax.lax.map(lambda e: column(rows, w, e) @ e, basis)
        return jax.vmap(partial(column, rows, w))(basis)

    return _sum_over_rows(block, shard)


def _taylor(flat: FlatModel, theta: Theta, shard: Shard, kind: str) -> Gaussian:
    """Expand log p(x_s | ·) at θ: order 1 for kind "linear", else order 2."""
    G = _gradient(flat, theta, shard)
    if kind == "linear":
        return Gaussian(G)
    H = _curvature(flat, theta, shard, kind)
    H = H if kind == "diagonal" else (H + H.T) / 2
    return Gaussian.from_precision(theta, H) + Gaussian(G)


def _climb(flat: FlatModel, theta: Theta, shard: Shard, steps: int) -> tuple[Theta, bool]:
    """Climb to the mode of log p(x_s | θ) by damped Newton steps; say whether it was reached."""
    value, damping = float(_value(flat, theta, shard)), 1e-3
    for _ in range(steps):
        G = np.asarray(_gradient(flat, theta, shard), float)
        H = np.asarray(_curvature(flat, theta, shard, "dense"), float)
        ridge = damping * max(np.abs(np.diag(H)).max(), 1e-12)
        values, vectors = np.linalg.eigh(H)
        move = vectors @ ((vectors.T @ G) / np.maximum(np.abs(values), ridge))
        decrement = float(G @ move)
        if decrement < 1e-6 and values.min() > 0:
            return theta, True
        new = theta + jnp.asarray(move, theta.dtype)
        new_value = float(_value(flat, new, shard))
        if new_value >= value - 1e-6 * abs(value) and np.isfinite(new_value):
            theta, value, damping = new, new_value, damping / 10
        else:
            damping = max(damping, 1e-4) * 10
    return theta, False


def _stable_step(flat: FlatModel, theta: Theta, shard: Shard) -> float:
    """Choose h = 0.5/λ_max from the largest curvature at θ (power iteration)."""
    largest = _largest_curvature(flat, theta, shard)
    if not largest > 0:
        raise InputError(
            "the likelihood has no positive curvature at the model's start, so no step size can be"
            " derived from it; give step_size"
        )
    return 0.5 / float(largest)


@partial(jax.jit, static_argnums=0)
def _largest_curvature(flat: FlatModel, theta: Theta, shard: Shard) -> Array:
    """Find the largest |eigenvalue| of H_s(θ) by 30 power iterations."""
    gradient = lambda t: _gradient(flat, t, shard)  # noqa: E731

    def iterate(_: int, v: Theta) -> Theta:
        Hv = -jax.jvp(gradient, (theta,), (v / jnp.linalg.norm(v),))[1]
        return Hv

    v = jnp.cos(jnp.arange(1, len(theta) + 1, dtype=theta.dtype))
    return jnp.linalg.norm(jax.lax.fori_loop(0, 30, iterate, v))


def _flat_prior(params: Params) -> Array:
    """Say nothing about the parameters."""
    return jnp.zeros(())


def _local_chain(
    flat: FlatModel, theta: Theta, shard: Shard, h: float, m: int, thin: int, steps: int, seed: int
) -> Array:
    """Run SGLD on the likelihood alone: one client, no prior, no surrogate."""
    rounds = -(-steps // (100 * thin))
    rules = Rules(flat._replace(prior=_flat_prior), plain, m, thin)
    plan = engines.make_plan(1, rounds, 100 * thin, m, len(theta))._replace(rounds=rounds, group=1)
    d, one = len(theta), jnp.ones(1, theta.dtype)
    federation = engines.Federation(
        shard[0], jnp.array([shard[1]]), jnp.array([shard[2]]), one, thresholds(np.ones(1)),
        Gaussian(jnp.zeros((1, d), theta.dtype)), Gaussian(jnp.zeros(d, theta.dtype)), one[0], (),
    )  # fmt: skip
    dynamics = langevin(h)
    states = jax.tree.map(lambda leaf: leaf[None], dynamics.init(theta))
    _, trace = advance(rules, plan, dynamics, federation, states, root_key(seed), 0)
    return trace.draws.reshape(-1, d)[: steps // thin]
