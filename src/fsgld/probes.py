"""What each client measures before a run: how far its surrogate is off, and how noisy its mini-batches are.

Everything is in the coordinates of prior × q: with M = (Λ₀ + Λ)⁻¹ = L Lᵀ, a vector g of gradients
becomes Lᵀg, and parameter j sees (Mg)_j/√M_jj, in posterior sds. A client answers at *probes*, points θ_k
drawn from prior × q by the server; it sends back sums over its rows, never rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fsgld.derivatives import Shard, all_clients, curvature_times, gradient, sum_over_rows
from fsgld.model import FlatModel, Row, Theta
from fsgld.programs import put, quick
from fsgld.rows import Shards, asked
from fsgld.surrogates import Gaussian


class Noise(NamedTuple):
    """What mini-batches of one client add, or those of all clients with a leading axis."""

    variance: Float[Array, "*S K d"]  # Var of w_i v_i for one row drawn, as each parameter sees it
    leverage: Float[Array, "*S"]  # max_i w_i ‖L'v_i‖ over rows and probes


class Residual(NamedTuple):
    """How far a surrogate is off at the probes, for one client or for all with a leading axis."""

    value: Float[Array, "*S K d"]  # r_s = L'(∇log p(x_s|θ_k) − ∇log q_s(θ_k))
    growth: Float[Array, "*S K d"]  # J_s r_s, with J_s = −L'(H_s − Λ_s)L its derivative: how it grows along itself


@asked
def residuals(
    flat: FlatModel, points: Float[Array, "K d"], factor: Array, surrogates: Gaussian, table: Shards
) -> Residual:
    """Let all clients evaluate their residuals, one after the other."""
    places = put(table.starts), put(table.sizes)
    return _residuals(flat, points, factor, surrogates, table.rows, *places)


@partial(jax.jit, static_argnums=0)
def _residuals(
    flat: FlatModel, points: Float[Array, "K d"], factor: Array, surrogates: Gaussian, rows: Row, starts: Array,
    sizes: Array,
) -> Residual:  # fmt: skip
    def client(one: tuple[Array, Array, Gaussian]) -> Residual:
        start, size, q_s = one
        return residual(flat, points, factor, q_s, Shard(rows, start, size))

    return jax.lax.map(client, (starts, sizes, surrogates))


def residual(flat: FlatModel, points: Float[Array, "K d"], factor: Array, q_s: Gaussian, shard: Shard) -> Residual:
    """Let one client evaluate its residual and how it grows."""

    def missed(theta: Theta) -> Theta:
        return whiten(factor, gradient(flat, theta, shard) - q_s.grad_log(theta))

    def at(theta: Theta) -> Residual:
        value = missed(theta)
        return Residual(value, jax.jvp(missed, (theta,), (_unwhiten(factor, value),))[1])

    return jax.lax.map(at, points)


@partial(quick, static_argnums=(0, 1))
def noise_all(
    flat: FlatModel, differences: bool, points: Float[Array, "K d"], anchor: Theta, factor: Array, rows: Row,
    weights: Float[Array, " N"], starts: Array, sizes: Array,
) -> Noise:  # fmt: skip
    """Let all clients measure their noise, one after the other."""
    client = lambda place: noise(flat, differences, points, anchor, factor, Shard((rows, weights), *place))  # noqa: E731
    return jax.lax.map(client, (starts, sizes))


def noise(
    flat: FlatModel, differences: bool, points: Float[Array, "K d"], anchor: Theta, factor: Array, shard: Shard
) -> Noise:
    """Let one client measure its noise.

    Parameters
    ----------
    differences
        Whether a row's part in the estimate is v_i = ∇log p(x_i|θ) − ∇log p(x_i|a), as with `control_variate`,
        or ∇log p(x_i|θ), as with `plain`.
    points
        The probes θ_k.
    anchor, factor
        The control variate's a, and L (a matrix, or a vector if M is diagonal).
    shard
        The client's rows, with the weight of each: 1, or 1/(N_s p_i) if it is drawn with probability p_i.
    """
    seen = _seen_by_parameters(factor)

    def at(theta: Theta) -> tuple[Array, Array]:
        def part(block: tuple[Row, Array], inside: Array) -> tuple[Array, Array, Array]:
            rows, weights = block
            v, inside = row_parts(flat, differences, theta, anchor, rows), inside.astype(theta.dtype)
            c, lengths = seen(v), jnp.linalg.norm(whiten(factor, v), axis=-1)
            return inside @ c, (inside * weights) @ c**2, jnp.max(inside * weights * lengths)

        def add(a: tuple, b: tuple) -> tuple:
            return a[0] + b[0], a[1] + b[1], jnp.maximum(a[2], b[2])

        first, second, longest = sum_over_rows(part, shard, add)
        n = jnp.asarray(shard.size, theta.dtype)
        return jnp.maximum(second / n - (first / n) ** 2, 0.0), longest

    variance, leverage = jax.lax.map(at, points)
    return Noise(variance, leverage.max())


def excess_curvatures(
    flat: FlatModel, theta: Theta, factor: Array, surrogates: Gaussian, table: Shards
) -> Float[np.ndarray, "S 2"]:
    """Give the extreme eigenvalues of L'(H_s(θ) − Λ_s)L for every client: what surrogates miss of the curvature."""
    if surrogates.kind == "dense":
        L = np.asarray(factor, float) if factor.ndim == 2 else np.diag(np.asarray(factor, float))
        H = np.asarray(all_clients(flat, theta, table, "dense")[2], float)
        return extreme_eigenvalues(L.T @ (H - np.asarray(surrogates.precision, float)) @ L)
    return np.asarray(excess_by_products(flat, theta, factor, surrogates, table), float)


@asked
def excess_by_products(
    flat: FlatModel, theta: Theta, factor: Array, surrogates: Gaussian, table: Shards
) -> Float[np.ndarray, "S 2"]:
    """Find them from products of H_s with vectors, where H_s itself would be too large."""
    places = put(table.starts), put(table.sizes)
    start = directions(len(theta), theta.dtype)
    program = EXCESS["few" if table.sizes.sum() < FEW else "many"]
    small = program(flat, theta, factor, surrogates, table.rows, *places, start)
    return extreme_eigenvalues(np.asarray(small))


def _excess_by_products(
    flat: FlatModel, theta: Theta, factor: Array, surrogates: Gaussian, rows: Row, starts: Array, sizes: Array,
    random: Float[Array, "n+1 d"] | Float[np.ndarray, "n+1 d"],
) -> Float[Array, "S n n"]:  # fmt: skip
    def client(one: tuple[Array, Array, Gaussian]) -> Array:
        start, size, q_s = one
        shard = Shard(rows, start, size)

        def apply(w: Theta) -> Theta:
            v = _unwhiten(factor, w)
            return whiten(factor, curvature_times(flat, theta, shard, v) - _times(q_s, v))

        return lanczos(apply, jnp.asarray(random))

    return jax.lax.map(client, (starts, sizes, surrogates))


FEW = 100_000  # rows; with fewer, compiling takes longer than running
EXCESS: dict[str, Callable[..., Array]] = {
    "few": quick(_excess_by_products, static_argnums=0),
    "many": jax.jit(_excess_by_products, static_argnums=0),
}


def _times(q: Gaussian, v: Theta) -> Theta:
    """Evaluate Λv."""
    return q.grad_log(jnp.zeros_like(v)) - q.grad_log(v)


def extreme_eigenvalues(matrices: Float[np.ndarray, "S n n"]) -> Float[np.ndarray, "S 2"]:
    """Find the smallest and the largest eigenvalue of symmetric matrices; NaN where one is not finite."""
    finite = np.isfinite(matrices).all((1, 2), keepdims=True)
    ends = np.linalg.eigvalsh(np.where(finite, matrices, 0.0).astype(float))[:, [0, -1]]
    return np.where(finite[:, 0], ends, np.nan)


def directions(d: int, dtype: np.dtype, iterations: int = 24) -> Float[np.ndarray, "n+1 d"]:
    """Draw directions for Lanczos' method with so many iterations, or d if that is less."""
    return np.random.default_rng(0).standard_normal((min(d, iterations) + 1, d), np.float32).astype(dtype)


def lanczos(apply: Callable[[Theta], Theta], random: Float[Array, "n+1 d"]) -> Float[Array, "n n"]:
    """Find a small tridiagonal matrix with the extreme eigenvalues of a symmetric operator by Lanczos' method.

    Exact for n = d. Directions are made orthogonal to all before; where a subspace is exhausted, a new random
    direction begins another.
    """
    n, d, dtype = len(random) - 1, random.shape[1], random.dtype
    tiny = jnp.asarray(30 * np.finfo(dtype).eps, dtype)

    def unit(v: Array, Q: Array) -> tuple[Array, Array]:
        for _ in range(2):
            v = v - Q.T @ (Q @ v)
        size = jnp.linalg.norm(v)
        return v / jnp.where(size > 0, size, 1.0), size

    def iterate(carry: tuple[Array, Array], j: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        Q, q = carry
        Q = Q.at[j].set(q)
        v = apply(q)
        alpha, norm = q @ v, jnp.linalg.norm(v)
        onward, beta = unit(v, Q)
        fresh, _ = unit(random[j + 1], Q)
        ended = ~(beta > tiny * jnp.maximum(norm, 1e-30))
        return (Q, jnp.where(ended, fresh, onward)), (alpha, jnp.where(ended, 0.0, beta))

    first = random[0] / jnp.linalg.norm(random[0])
    _, (alpha, beta) = jax.lax.scan(iterate, (jnp.zeros((n, d), dtype), first), jnp.arange(n))
    return jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1)


def row_parts(flat: FlatModel, differences: bool, theta: Theta, anchor: Theta, rows: Row) -> Float[Array, "n d"]:
    """Evaluate what every row adds: v_i = ∇log p(x_i|θ), less ∇log p(x_i|a) if differences are taken."""
    one = jax.vmap(jax.grad(lambda t, row: flat.likelihood(flat.unravel(t), row)), in_axes=(None, 0))
    return one(theta, rows) - one(anchor, rows) if differences else one(theta, rows)


def whiten(factor: Array, g: Array) -> Array:
    """Evaluate L'g."""
    return g * jnp.broadcast_to(factor, g.shape) if factor.ndim == 1 else g @ factor


def _unwhiten(factor: Array, w: Array) -> Array:
    """Evaluate Lw."""
    return w * factor if factor.ndim == 1 else factor @ w


def _seen_by_parameters(factor: Array) -> Callable[[Array], Array]:
    """Give the map from a gradient g to (Mg)_j/√M_jj."""
    if factor.ndim == 1:
        return lambda g: whiten(factor, g)
    rows = factor / jnp.linalg.norm(factor, axis=1, keepdims=True)
    return lambda g: (g @ factor) @ rows.T
