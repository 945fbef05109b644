"""The paper's analysis as numbers: variance of the gradient estimate, γ_s², ε_s², Theorems 1 and 2.

These functions see the rows of all clients, so they are for simulations. Rows go through in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from fsgld.algorithm import Rules, client_update
from fsgld.checks import check_alpha, check_kind, check_probs, stack_surrogates
from fsgld.derivatives import BLOCK, Shard, all_clients, prior_taylor, sum_over_rows
from fsgld.dynamics import Dynamics
from fsgld.engines import Federation, everyone
from fsgld.errors import InputError, check_whole, is_number
from fsgld.likelihood import Likelihood, plain
from fsgld.model import FlatModel, Model, Params, Row, Theta, ravel
from fsgld.model_checks import check_model
from fsgld.parts import choose_anchor, make_memos
from fsgld.randomness import numbers, root_key, round_keys
from fsgld.refresh import Table
from fsgld.rows import Data, gather
from fsgld.schedules import constant
from fsgld.surrogates import Gaussian

Clients = list[Data] | dict[str, Data]
PerClient = Float[np.ndarray, " S"]


def gradient_variance(
    model: Model, shards: Clients, theta_params: Params, surrogates: Sequence[Gaussian] | None = None, *,
    probs: ArrayLike | None = None, batch_size: int, likelihood: Likelihood = plain, alpha: float = 1.0,
    method: str = "exact", draws: int = 10_000, seed: int = 0,
) -> Float[np.ndarray, "d d"]:  # fmt: skip
    """Give the covariance of the gradient estimate d_s + α g_s at θ, over clients and mini-batches.

    With E_s the mean of the estimate at client s, E = Σ_s f_s E_s, and v_i = ∇log p(x_i | θ), or
    v_i = ∇log p(x_i | θ) − ∇log p(x_i | a) for `control_variate` (a as in `sample`),

        Cov = Σ_s f_s [ N_s²/(f_s² m) Cov_{i∈s}(v_i) + (E_s − E)(E_s − E)ᵀ ].

    Parameters
    ----------
    model, shards, theta_params, surrogates, probs, batch_size, likelihood, alpha
        As for `fsgld.sample`; θ as parameters or a flat vector. No surrogates: DSGLD; a single shard: SGLD.
    method, draws, seed
        "exact" goes through all rows; "monte_carlo" takes the sampler's own step `draws` times. A variance
        then has relative standard error √((κ − 1)/draws), where κ is the kurtosis of that component of the
        estimate: 1.4 % by default if κ = 3, as for a normal law.
    """
    check_kind("model", model)
    check_kind("likelihood", likelihood)
    check_alpha(alpha)
    check_whole(1, batch_size=batch_size)
    check_whole(2, draws=draws)
    points, table = _points(model, theta_params), gather(shards)
    if len(points) != 1 or method not in ("exact", "monte_carlo"):
        raise InputError(f'give one θ and method "exact" or "monte_carlo"; got {len(points)} θ and {method!r}')
    theta, init, f = points[0], ravel(model.start()), check_probs(probs, len(table), table.names)
    flat = check_model(model, theta, table)
    stack = stack_surrogates(surrogates, table.names, theta)
    around = None if stack.kind == "linear" else prior_taylor(flat, init, stack.kind) + stack.total()
    memos = make_memos(likelihood, flat, choose_anchor(likelihood, model, init, None, around), table)
    federation = Federation(
        table.rows, jnp.asarray(table.starts), jnp.asarray(table.sizes), jnp.asarray(f, theta.dtype),
        Table(stack, stack.total(), memos), jnp.asarray(alpha, theta.dtype), everyone(f),
    )  # fmt: skip
    rules = Rules(flat, replace(likelihood, anchor=None), int(batch_size))
    if method == "exact":
        G = all_clients(flat, theta, table)[1]
        within, between = _exact(flat, rules.likelihood, federation, theta, G)
        covariance = np.asarray(within / batch_size + between, float)
    else:
        estimates = _estimates(rules, federation, theta, root_key(seed), int(draws))
        covariance = np.cov(np.asarray(estimates, float), rowvar=False).reshape(len(theta), -1)
    if not np.isfinite(covariance).all():
        raise InputError("the gradient estimate is not finite at theta_params; give a θ inside the model's support")
    return covariance


def gamma_squared(model: Model, shards: Clients, points: Params) -> PerClient:
    """Give γ_s² = max_θ max_{i∈s} ‖∇log p(x_i | θ)‖² of Assumption 1, with θ going through `points`.

    Points are an array (P, d) of flat vectors (see `grid`), or parameters with leading axes (`Result.draws`).
    """
    return _worst_case(model, shards, None, points, average=False)


def epsilon_squared(model: Model, shards: Clients, surrogates: Sequence[Gaussian], points: Params) -> PerClient:
    """Give ε_s² = max_θ (1/N_s) Σ_{i∈s} ‖∇log p(x_i | θ) − ∇log q_s(θ)/N_s‖² of Lemma 2.

    At one θ this is tr Cov_{i∈s}(∇log p(x_i | θ)) + ‖∇log p(x_s | θ) − ∇log q_s(θ)‖²/N_s², of which only
    the second part depends on q_s (Remark 3). Points as for `gamma_squared`.
    """
    return _worst_case(model, shards, surrogates, points, average=True)


def bound(
    constants: ArrayLike, sizes: ArrayLike, probs: ArrayLike | None, batch_size: int, steps: int, step_size: float,
    C: float = 1.0,
) -> float:  # fmt: skip
    """Bound the mean squared error of a posterior expectation after T steps, as the paper prints it.

        C ( Σ_s (N_s²/f_s) c_s / (m T) + 1/(h T) + h² )

    Theorem 1 (DSGLD) has c_s = γ_s², Theorem 2 (FSGLD) c_s = ε_s². C is unknown: compare, do not predict.

    The proofs bound tr Cov of the estimate by V/m with V = Σ_s (N_s²/f_s) c_s, as if the terms of a mini-batch
    had mean zero at every client. This holds for m = 1, or if ∇log q_s = ∇log p(x_s | θ). Else the variance
    between clients does not shrink with m, and only V itself is an upper bound: in the paper's Figure 1 (m = 5,
    θ = ½) tr Cov is 1949 and V/m only 720. `gradient_variance` gives the truth.
    """
    check_whole(1, batch_size=batch_size, steps=steps)
    c, N = _per_client(constants=constants, sizes=sizes)
    if not all(is_number(x) and x > 0 for x in (step_size, C)):
        raise InputError(f"step_size and C must be positive finite numbers; got {step_size!r} and {C!r}")
    variance = float(np.sum(N**2 / check_probs(probs, len(c)) * c)) / batch_size
    return C * (variance / steps + 1 / (step_size * steps) + step_size**2)


def best_probs(epsilon_squared: ArrayLike, sizes: ArrayLike) -> PerClient:
    """Give f_s ∝ N_s ε_s, which minimises Σ_s N_s² ε_s²/f_s; the least value is (Σ_s N_s ε_s)².

    This is best for Theorem 2 (Cauchy and Schwarz), and with γ_s² for Theorem 1; stability is another matter.
    """
    c, N = _per_client(epsilon_squared=epsilon_squared, sizes=sizes)
    if not (c * N > 0).all():
        raise InputError(f"client {(c * N).argmin()} has ε² or N of 0 and would never be visited; give it a small ε²")
    return np.asarray(N * np.sqrt(c) / np.sum(N * np.sqrt(c)))


def grid(low: ArrayLike, high: ArrayLike, n: int) -> Float[np.ndarray, "points d"]:
    """Give the n**d points of a regular grid from `low` to `high`, d numbers each; the ends are included."""
    check_whole(2, n=n)
    try:
        a, b = np.broadcast_arrays(np.atleast_1d(np.asarray(low, float)), np.asarray(high, float))
    except ValueError as error:
        raise InputError(f"give low and high with d numbers each; got {low!r} and {high!r}") from error
    if a.ndim != 1 or not a.size or not (np.isfinite(b - a) & (a < b)).all() or n > 10 ** (7 / a.size):
        raise InputError(f"give low < high, d numbers each, and n**d <= 10**7; got {low!r}, {high!r} and n = {n}")
    return np.stack(np.meshgrid(*np.linspace(a, b, n).T, indexing="ij"), axis=-1).reshape(-1, a.size)


@partial(jax.jit, static_argnums=(0, 1))
def _exact(
    flat: FlatModel, likelihood: Likelihood, federation: Federation, theta: Theta, G: Float[Array, "S d"]
) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
    """Give the covariances within clients (m = 1) and between them; G_s(θ) is the mean of estimates from one row."""
    N, f = federation.sizes.astype(theta.dtype), federation.probs

    def estimate(row: Row, s: Array) -> Theta:
        batch, memo = (
            jax.tree.map(lambda leaf: leaf[None], row),
            jax.tree.map(lambda leaf: leaf[s], federation.table.memos),
        )
        return likelihood.gradient(flat, theta, batch, N[s], likelihood.offset(flat, memo, batch, N[s], None))

    def spread(block: tuple[Row, Array], w: Array) -> Array:
        centred = jax.vmap(estimate)(*block) - G[block[1]]
        return ((w / (N * f)[block[1]])[:, None] * centred).T @ centred

    # ∇log p(θ) + α ∇log q(θ) is common to all E_s and cancels in E_s − E
    q = jax.vmap(lambda q_s: q_s.grad_log(theta))(federation.table.surrogates)
    E = (G - federation.alpha * q) / f[:, None]
    E, owner = E - (f @ E)[None], _owner(federation.rows, federation.sizes)
    within = sum_over_rows(spread, Shard((federation.rows, owner), 0, len(owner)))
    return within, (f[:, None] * E).T @ E


@partial(jax.jit, static_argnums=(0, 4))
def _estimates(rules: Rules, federation: Federation, theta: Theta, root: Key[Array, ""], draws: int) -> Array:
    """Take the first step of Algorithm 1 from θ in many rounds; keep the estimates d_s + α g_s, not the moves."""
    keep = Dynamics("keep", lambda c, h, theta, memory, v, xi: (v, memory), lambda theta: (), constant(1.0))

    def estimate(r: Array) -> Theta:
        keys = round_keys(root, 0, r)
        s, mass = federation.presence.reassign(keys.client, r)
        client = federation.client(s, None, mass)
        step = numbers(keys, 1, rules.batch_size, len(theta), theta.dtype)
        return client_update(rules, keep, client, keep.init(theta), step)[1][0]

    return jax.lax.map(estimate, jnp.arange(draws), batch_size=BLOCK)


def _worst_case(model: Model, shards: Clients, surrogates: Any, points: Params, average: bool) -> PerClient:
    """Check what was given, go through the points, and name the client if a gradient is not finite."""
    check_kind("model", model)
    table, thetas = gather(shards), _points(model, points)
    stack, sizes = stack_surrogates(surrogates, table.names, thetas[0]), jnp.asarray(table.sizes)
    worst = np.asarray(_largest(check_model(model, thetas[0], table), average, thetas, table.rows, sizes, stack), float)
    if not np.isfinite(worst).all():
        name = table.names[int(np.argmin(np.isfinite(worst)))]
        raise InputError(f"{name}: a gradient is not finite at some point; give finite points in the model's support")
    return worst


@partial(jax.jit, static_argnums=(0, 1))
def _largest(
    flat: FlatModel, average: bool, points: Float[Array, "P d"], rows: Row, sizes: Int[Array, " S"], stack: Gaussian
) -> Float[Array, " S"]:
    """Maximise over points the average, or largest, ‖∇log p(x_i | θ) − ∇log q_s(θ)/N_s‖² of every client."""
    slope = jax.grad(lambda theta, row: flat.likelihood(flat.unravel(theta), row))
    N, owner = sizes.astype(points.dtype), _owner(rows, sizes)

    def larger(worst: Array, theta: Theta) -> tuple[Array, None]:
        centre = jax.vmap(lambda q_s: q_s.grad_log(theta))(stack) / N[:, None]
        square = lambda item: jnp.sum((slope(theta, item[0]) - centre[item[1]]) ** 2)  # noqa: E731
        squares = jax.lax.map(square, (rows, owner), batch_size=BLOCK)
        mean, most = jax.ops.segment_sum(squares, owner, len(N)) / N, jax.ops.segment_max(squares, owner, len(N))
        return jnp.maximum(worst, mean if average else most), None

    return jax.lax.scan(larger, jnp.zeros_like(N), points)[0]


def _owner(rows: Row, sizes: Int[Array, " S"]) -> Int[Array, " N"]:
    """Name the client that owns each row of the table."""
    return jnp.repeat(jnp.arange(len(sizes)), sizes, total_repeat_length=len(jax.tree.leaves(rows)[0]))


def _points(model: Model, points: Params) -> Float[Array, "P d"]:
    """Read parameters with leading axes, or an array of flat vectors, as flat vectors (P, d)."""
    start = model.start()
    theta = ravel(start)
    for like in (start, theta):
        if len({jax.tree.structure(points), jax.tree.structure(like)}) > 1:
            continue
        pairs = list(zip(map(np.asarray, jax.tree.leaves(points)), jax.tree.leaves(like), strict=True))
        if all(x.shape[max(x.ndim - one.ndim, 0) :] == one.shape for x, one in pairs):
            columns = [x.reshape(-1, one.size) for x, one in pairs]
            if len({len(column) for column in columns}) == 1 and len(columns[0]) > 0:
                return jnp.asarray(np.concatenate(columns, axis=1), theta.dtype)
    shapes = jax.tree.map(np.shape, points)
    raise InputError(f"give θ as an array (…, {len(theta)}), or like the model's init with leading axes; got {shapes}")


def _per_client(**given: ArrayLike) -> list[PerClient]:
    """Check that arguments hold one finite number of at least 0 for each client."""
    arrays = [np.asarray(value, float) for value in given.values()]
    if not arrays[0].size:
        raise InputError(f"{' and '.join(given)} must hold one number a client; got none")
    for name, value in zip(given, arrays, strict=True):
        if value.shape != (arrays[0].size,) or not (np.isfinite(value) & (value >= 0)).all():
            raise InputError(f"{name} must hold {arrays[0].size} finite numbers >= 0, one a client; got {value}")
    return arrays
