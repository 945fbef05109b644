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

from fsgld.derivatives import Shard, all_clients, gradient, sum_over_rows
from fsgld.model import FlatModel, Row, Theta
from fsgld.shards import Shards
from fsgld.surrogates import Gaussian


class Probed(NamedTuple):
    """One client's answers, or those of all clients with a leading axis."""

    residual: Float[Array, "*S K d"]  # L'(∇log p(x_s|θ_k) − ∇log q_s(θ_k)), whitened
    noise: Float[Array, "*S K d"]  # N_s² Var_i of what a row adds to the estimate, as each parameter sees it
    leverage: Float[Array, "*S"]  # N_s max_i ‖L'v_i‖ over rows and probes


@partial(jax.jit, static_argnums=(0, 1))
def probe_all(
    flat: FlatModel, differences: bool, points: Float[Array, "K d"], anchor: Theta, factor: Array,
    surrogates: Gaussian, rows: Row, starts: Array, sizes: Array,
) -> Probed:  # fmt: skip
    """Let all clients answer, one after the other."""

    def client(one: tuple[Array, Array, Gaussian]) -> Probed:
        start, size, q_s = one
        return probe(flat, differences, points, anchor, factor, q_s, Shard(rows, start, size))

    return jax.lax.map(client, (starts, sizes, surrogates))


def probe(
    flat: FlatModel, differences: bool, points: Float[Array, "K d"], anchor: Theta, factor: Array,
    q_s: Gaussian, shard: Shard,
) -> Probed:  # fmt: skip
    """Let one client answer.

    Parameters
    ----------
    differences
        Whether a row's part in the estimate is v_i = ∇log p(x_i|θ) − ∇log p(x_i|a), as with `control_variate`,
        or ∇log p(x_i|θ), as with `plain`.
    points
        The probes θ_k.
    anchor, factor
        The control variate's a, and L (a matrix, or a vector if M is diagonal).
    """
    seen = _seen_by_parameters(factor)
    N = jnp.asarray(shard.size, anchor.dtype)

    def at(theta: Theta) -> tuple[Array, Array, Array]:
        def part(rows: Row, w: Array) -> tuple[Array, Array, Array, Array]:
            G, w = _row_gradients(flat, theta, rows), w.astype(theta.dtype)
            v = G - _row_gradients(flat, anchor, rows) if differences else G
            c = seen(v)
            return w @ G, w @ c, w @ c**2, jnp.max(w * jnp.linalg.norm(_whiten(factor, v), axis=-1))

        def add(a: tuple, b: tuple) -> tuple:
            return *map(jnp.add, a[:3], b[:3]), jnp.maximum(a[3], b[3])

        total, first, second, longest = sum_over_rows(part, shard, add)
        residual = _whiten(factor, total - q_s.grad_log(theta))
        return residual, jnp.maximum(N * second - first**2, 0.0), N * longest

    residual, noise, leverage = jax.lax.map(at, points)

    return Probed(residual, noise, leverage.max())


def excess_curvatures(
    flat: FlatModel, theta: Theta, factor: Array, surrogates: Gaussian, table: Shards
) -> Float[np.ndarray, "S 2"]:
    """Give the extreme eigenvalues of L'(H_s(θ) − Λ_s)L for every client: what surrogates miss of the curvature."""
    if surrogates.kind == "dense":
        L = np.asarray(factor, float) if factor.ndim == 2 else np.diag(np.asarray(factor, float))
        H = np.asarray(all_clients(flat, theta, table, "dense")[2], float)
        values = np.linalg.eigvalsh(L.T @ (H - np.asarray(surrogates.precision, float)) @ L)
        return values[:, [0, -1]]
    places = jnp.asarray(table.starts), jnp.asarray(table.sizes)
    return np.asarray(_excess_by_products(flat, theta, factor, surrogates, table.rows, *places), float)


@partial(jax.jit, static_argnums=0)
def _excess_by_products(
    flat: FlatModel, theta: Theta, factor: Array, surrogates: Gaussian, rows: Row, starts: Array, sizes: Array
) -> Float[Array, "S 2"]:
    """Find them from products of H_s with vectors, where H_s itself would be too large."""

    def client(one: tuple[Array, Array, Gaussian]) -> Array:
        start, size, q_s = one
        slope = lambda t: gradient(flat, t, Shard(rows, start, size))  # noqa: E731

        def apply(w: Theta) -> Theta:
            v = _unwhiten(factor, w)
            return _whiten(factor, -jax.jvp(slope, (theta,), (v,))[1] - _times(q_s, v))

        return extreme_eigenvalues(apply, len(theta), theta.dtype)

    return jax.lax.map(client, (starts, sizes, surrogates))


def _times(q: Gaussian, v: Theta) -> Theta:
    """Evaluate Λv."""
    return q.grad_log(jnp.zeros_like(v)) - q.grad_log(v)


def extreme_eigenvalues(
    apply: Callable[[Theta], Theta], d: int, dtype: np.dtype, iterations: int = 24
) -> Float[Array, " 2"]:
    """Find the smallest and the largest eigenvalue of a symmetric operator by Lanczos' method.

    Exact for d ≤ iterations. Directions are made orthogonal to all before; where a subspace is exhausted, a new
    random direction begins another.
    """
    n = min(d, iterations)
    random = jax.random.normal(jax.random.key(0), (n + 1, d), dtype)
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
    T = jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1)
    return jnp.linalg.eigvalsh(T)[jnp.array([0, -1])]


def _row_gradients(flat: FlatModel, theta: Theta, rows: Row) -> Float[Array, "n d"]:
    """Evaluate ∇log p(x_i | θ) for every row."""
    one = jax.grad(lambda t, row: flat.likelihood(flat.unravel(t), row))
    return jax.vmap(one, in_axes=(None, 0))(theta, rows)


def _whiten(factor: Array, g: Array) -> Array:
    """Evaluate L'g."""
    return g * jnp.broadcast_to(factor, g.shape) if factor.ndim == 1 else g @ factor


def _unwhiten(factor: Array, w: Array) -> Array:
    """Evaluate Lw."""
    return w * factor if factor.ndim == 1 else factor @ w


def _seen_by_parameters(factor: Array) -> Callable[[Array], Array]:
    """Give the map from a gradient g to (Mg)_j/√M_jj."""
    if factor.ndim == 1:
        return lambda g: _whiten(factor, g)
    rows = factor / jnp.linalg.norm(factor, axis=1, keepdims=True)
    return lambda g: (g @ factor) @ rows.T
