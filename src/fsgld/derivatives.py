"""Derivatives of a client's log-likelihood over all of its rows, block by block.

G_s(θ) = ∇log p(x_s | θ) and H_s(θ) = −∇² log p(x_s | θ). Programs are compiled once for all clients
of a table: where a client's rows begin and how many there are is data, not shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fsgld.columns import take
from fsgld.model import FlatModel, Row, Theta
from fsgld.programs import put, quick
from fsgld.rows import Shards, asked
from fsgld.surrogates import Gaussian

BLOCK = 512  # rows whose derivatives are computed at once


class Shard(NamedTuple):
    """One client's rows: a table, where they begin in it, and how many there are."""

    rows: Row
    start: Int[Array, ""] | Int[np.ndarray, ""] | int
    size: Int[Array, ""] | Int[np.ndarray, ""] | int


@partial(jax.jit, static_argnums=0)
def value(flat: FlatModel, theta: Theta, shard: Shard) -> Float[Array, ""]:
    """Evaluate log p(x_s | θ)."""
    return sum_over_rows(partial(_weighted, flat, theta), shard)


@partial(jax.jit, static_argnums=0)
def gradient(flat: FlatModel, theta: Theta, shard: Shard) -> Theta:
    """Evaluate G_s(θ)."""
    block = jax.grad(_weighted, 1)
    return sum_over_rows(lambda rows, w: block(flat, theta, rows, w), shard)


@partial(jax.jit, static_argnums=(0, 3))
def curvature(flat: FlatModel, theta: Theta, shard: Shard, kind: str) -> Float[Array, "d d"] | Float[Array, " d"]:
    """Evaluate H_s(θ) ("dense") or its diagonal ("diagonal")."""
    column = partial(_block_curvature_times, flat, theta)

    def block(rows: Row, w: Array) -> Array:
        basis = jnp.eye(len(theta), dtype=theta.dtype)
        if kind == "diagonal":
            return jax.lax.map(lambda e: column(rows, w, e) @ e, basis)
        return jax.vmap(partial(column, rows, w))(basis)

    H = sum_over_rows(block, shard)
    return H if kind == "diagonal" else (H + H.T) / 2


def curvature_times(flat: FlatModel, theta: Theta, shard: Shard, v: Theta) -> Theta:
    """Evaluate H_s(θ) v."""
    return sum_over_rows(lambda rows, w: _block_curvature_times(flat, theta, rows, w, v), shard)


@partial(jax.jit, static_argnums=0)
def largest_curvature(flat: FlatModel, theta: Theta, shard: Shard) -> Float[Array, ""]:
    """Find the largest |eigenvalue| of H_s(θ) by 30 power iterations."""

    def iterate(_: Any, v: Theta) -> Theta:
        return curvature_times(flat, theta, shard, v / jnp.linalg.norm(v))

    v = jnp.cos(jnp.arange(1, len(theta) + 1, dtype=theta.dtype))
    return jnp.linalg.norm(jax.lax.fori_loop(0, 30, iterate, v))


def taylor(flat: FlatModel, theta: Theta, shard: Shard, kind: str, G: Theta | None = None) -> Gaussian:
    """Expand log p(x_s | ·) at θ: Λ_s = H_s, shift_s = G_s + H_s θ; Λ_s = 0 for kind "linear". G_s may be known."""
    G = gradient(flat, theta, shard) if G is None else G
    if kind == "linear":
        return Gaussian(G)
    return Gaussian.from_precision(theta, curvature(flat, theta, shard, kind)) + Gaussian(G)


@partial(quick, static_argnums=(0, 2))
def prior_taylor(flat: FlatModel, theta: Theta, kind: str = "dense") -> Gaussian:
    """Expand the log prior at θ to second order; exact for a Gaussian prior (an independent one, if diagonal)."""
    if kind == "dense":
        H = -jax.hessian(flat.log_prior)(theta)
    else:

        def entry(i: Array) -> Array:
            e = jnp.zeros_like(theta).at[i].set(1)
            return -jax.jvp(flat.grad_log_prior, (theta,), (e,))[1][i]

        H = jax.lax.map(entry, jnp.arange(len(theta)))
    return Gaussian.from_precision(theta, H) + Gaussian(flat.grad_log_prior(theta))


@asked
def all_clients(
    flat: FlatModel, theta: Theta, table: Shards, kind: str | None = None
) -> tuple[Float[Array, " S"], Float[Array, "S d"], Array | None]:
    """Let every client compute log p(x_s | θ), G_s(θ) and, if a kind is named, H_s(θ)."""
    return _all_clients(flat, theta, table.rows, put(table.starts), put(table.sizes), kind)


@asked
def mean_derivatives(
    flat: FlatModel, points: Float[Array, "K d"], table: Shards
) -> tuple[Float[np.ndarray, "S d"], Float[np.ndarray, "S d d"]]:
    """Let every client average G_s(θ_k) and H_s(θ_k) over points."""
    answers = [all_clients(flat, theta, table, "dense")[1:] for theta in points]
    G, H = (np.mean([np.asarray(answer[i], float) for answer in answers], axis=0) for i in (0, 1))
    return G, H


@partial(quick, static_argnums=(0, 5))
def _all_clients(
    flat: FlatModel, theta: Theta, rows: Row, starts: Array, sizes: Array, kind: str | None
) -> tuple[Array, Array, Array | None]:
    """Go through the clients one after the other."""
    value_and_gradient = jax.value_and_grad(_weighted, 1)

    def client(place: tuple[Array, Array]) -> tuple[Array, Array, Array | None]:
        shard = Shard(rows, *place)
        H = None if kind is None else curvature(flat, theta, shard, kind)
        return *sum_over_rows(lambda rows, w: value_and_gradient(flat, theta, rows, w), shard), H

    return jax.lax.map(client, (starts, sizes))


def _weighted(flat: FlatModel, theta: Theta, rows: Row, weights: Array) -> Float[Array, ""]:
    """Evaluate Σ_i w_i log p(x_i | θ)."""
    return weights.astype(theta.dtype) @ flat.log_likelihood(theta, rows)


def _block_curvature_times(flat: FlatModel, theta: Theta, rows: Row, weights: Array, v: Theta) -> Theta:
    """Evaluate −∇²(Σ_i w_i log p(x_i | θ)) v."""
    slope = lambda t: jax.grad(_weighted, 1)(flat, t, rows, weights)  # noqa: E731
    return -jax.jvp(slope, (theta,), (v,))[1]


def _add(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


def sum_over_rows(fn: Callable[[Row, Array], Any], shard: Shard, add: Callable[[Any, Any], Any] = _add) -> Any:
    """Add fn(block of rows, weights) over a client's rows; the last block is padded, weight 0."""
    rows, start, size = shard
    last = jnp.asarray(start + size - 1)

    def block(b: Array | int) -> Any:
        index = jnp.asarray(start) + b * BLOCK + jnp.arange(BLOCK)
        return fn(take(rows, jnp.minimum(index, last)), jnp.where(index <= last, 1.0, 0.0))

    further = lambda b, total: add(total, block(b))  # noqa: E731
    zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(block, jnp.asarray(0)))
    return jax.lax.fori_loop(0, (size + BLOCK - 1) // BLOCK, further, zero)
