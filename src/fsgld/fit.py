"""Where surrogates come from: analytic, from_draws, laplace, anchored.

Each is a function of (model, one client's data set, …) that a client can run alone; `fit` runs
one for every client of a simulation. All return natural parameters; all refuse in words what
they cannot do, and none returns NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fsgld import engines
from fsgld.algorithm import Rules
from fsgld.checks import check_kind
from fsgld.derivatives import Shard, curvature, gradient, largest_curvature, taylor, value
from fsgld.dynamics import langevin
from fsgld.engines.compiled import advance
from fsgld.errors import InputError, brief, check_whole, first_line
from fsgld.likelihood import plain
from fsgld.model import FlatModel, Model, Params, Theta, as_theta, ravel
from fsgld.model_checks import check_model
from fsgld.newton import find_mode
from fsgld.programs import put
from fsgld.randomness import root_key
from fsgld.refresh import Table
from fsgld.rows import Data, Shards, gather
from fsgld.schedules import Schedule
from fsgld.surrogates import Gaussian


def fit(
    model: Model, shards: list[Data] | dict[str, Data], method: Callable[..., Gaussian],
    **options: Any,
) -> list[Gaussian]:  # fmt: skip
    """Fit one surrogate a client with `analytic`, `from_draws`, `laplace` or `anchored`.

    Parameters
    ----------
    model, shards
        As for `fsgld.sample`; not to be changed meanwhile.
    method
        A function (model, data, **options) → Gaussian.
    **options
        Passed on to the method, for every client alike.
    """
    check_kind("model", model)
    if not callable(method):
        raise InputError(f"method is {brief(method)}; give a function such as fsgld.laplace or fsgld.anchored")
    table = gather(shards, borrow=method in OWN)
    surrogates = []
    for s, name in enumerate(table.names):
        try:
            q = method(model, _alone(table, s) if method in OWN else table.shard(s), **options)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
        except Exception as error:
            raise InputError(f"{name}: the fit fails: {first_line(error)}; see the error above this one") from error
        if not isinstance(q, Gaussian):
            raise InputError(f"{name}: the method must return an fsgld.Gaussian; it returns {type(q).__name__}")
        surrogates.append(q)
    jax.block_until_ready(surrogates)  # type: ignore[no-untyped-call]  # from here on the user may change the data
    return surrogates


def analytic(model: Model, data: Data) -> Gaussian:
    """Give the exact surrogate of a likelihood that is Gaussian in θ.

    For such models (a Gaussian mean, linear regression with known σ) log p(x_s | θ) is a
    quadratic, so its derivatives at one point are its natural parameters: for linear regression
    Λ_s = X_sᵀX_s/σ² and shift_s = X_sᵀy_s/σ². Checked at a second point; refused if it is not so.
    """
    flat, theta, shard, _ = _prepare(model, data)
    q = taylor(flat, theta, shard, "dense")
    elsewhere = theta + 1.0 + jnp.arange(len(theta), dtype=theta.dtype) / len(theta)
    want, have = gradient(flat, elsewhere, shard), q.grad_log(elsewhere)
    size = jnp.abs(gradient(flat, theta, shard)) + jnp.abs(want)
    tolerance = 1e3 * np.finfo(theta.dtype).eps * (float(size.max()) + 1)
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
    flat, theta, shard, _ = _prepare(model, data, anchor)
    q = taylor(flat, theta, shard, "linear" if order == 1 else "diagonal" if diagonal else "dense")
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
    flat, theta, shard, name = _prepare(model, data)
    if not np.isfinite(value(flat, theta, shard)):
        raise InputError("the log-likelihood is not finite at the model's start (init); give another init")
    check_whole(max_steps=max_steps)
    table = Shards(shard.rows, np.array([shard.start]), np.array([shard.size]), (name,))
    try:
        theta = find_mode(flat._replace(prior=_flat_prior), theta, table, max_steps).theta
    except InputError as error:
        raise InputError(
            f"the likelihood of these {shard.size} rows has no Laplace surrogate; use fsgld.anchored, which needs no"
            f" local mode ({error})"
        ) from error
    if diagonal:
        return Gaussian.from_precision(theta, curvature(flat, theta, shard, "diagonal"))
    return taylor(flat, theta, shard, "dense")


def from_draws(
    model: Model, data: Data, *, draws: int = 3000, step_size: float | Schedule | None = None,
    batch_size: int = 32, thin: int = 1, burn_in: int = 1000, diagonal: bool = False, check: bool = True, seed: int = 0,
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
    check
        Refuse moments of a chain that still travels, or of a likelihood without a mode; the paper did not look.
    seed
        Of the local chain. `fit` lets every client draw numbers of its own; clients that run alone give seeds that
        differ.
    """
    flat, theta, shard, name = _prepare(model, data)
    d = len(theta)
    check_whole(draws=draws, batch_size=batch_size, thin=thin)
    check_whole(0, burn_in=burn_in)
    if not diagonal and draws <= d:
        raise InputError(
            f"{draws} draws cannot give a positive definite covariance of {d} parameters; keep"
            f" more than {d} draws, or use diagonal=True"
        )
    h = _stable_step(flat, theta, shard) if step_size is None else step_size
    chain = _local_chain(flat, theta, shard, h, batch_size, thin, burn_in + draws * thin, seed, name)
    kept = np.asarray(chain[-draws:], float)
    if not np.isfinite(kept).all() or (check and _grows(kept)):
        words = h if isinstance(h, Schedule) else f"{h:.3g}"
        raise InputError(
            f"local SGLD with step size {words} diverged on these {shard.size} rows (or their likelihood has no mode);"
            " give a smaller step_size, or use fsgld.anchored"
        )
    mean, centred = kept.mean(0), kept - kept.mean(0)
    covariance = (centred**2).mean(0) if diagonal else centred.T @ centred / (len(kept) - 1)
    lowest = covariance.min() if diagonal else np.linalg.eigvalsh(covariance).min()
    if not lowest > 0:
        raise InputError(
            f"the covariance of {draws} local draws is not positive definite (smallest eigenvalue"
            f" {lowest:.2g}); keep more draws, thin more, or use diagonal=True"
        )
    if check and not _falls_beyond(flat, theta, mean, centred, shard):
        raise InputError(
            f"the likelihood of these {shard.size} rows has no mode: beyond the local draws it still grows, as with one"
            " class only, or stays level, as with fewer rows than parameters; use fsgld.anchored, which needs no local"
            " mode"
        )
    q = Gaussian.from_moments(jnp.asarray(mean), covariance)
    return jax.tree.map(lambda leaf: leaf.astype(theta.dtype), q)


WIDEST = 20  # directions of local draws that are looked at
OWN = (analytic, anchored, laplace, from_draws)  # they find one client's rows in a table of all; others get the data


def _alone(table: Shards, s: int) -> Shards:
    """See one client of a table as a table of one client, without copying rows."""
    one = slice(s, s + 1)
    return Shards(table.rows, table.starts[one], table.sizes[one], table.names[one])


def _prepare(model: Model, data: Data, at: Params | None = None) -> tuple[FlatModel, Theta, Shard, str]:
    """Flatten the model, choose the point, and see the data as rows of a table."""
    check_kind("model", model)
    one = data if isinstance(data, Shards) else gather({"this client": data})
    theta = ravel(model.start()) if at is None else as_theta(model, at, "anchor")
    flat = check_model(model, theta, one)
    return flat, theta, Shard(one.rows, int(one.starts[0]), int(one.sizes[0])), one.names[0]


def _falls_beyond(flat: FlatModel, start: Theta, mean: np.ndarray, centred: np.ndarray, shard: Shard) -> bool:
    """Whether the likelihood falls five sds beyond the mean: away from the start, and where draws are widest.

    A Gaussian falls by 12.5 there. Where the likelihood is level, draws wander: such directions are among the widest.
    """
    sd = np.maximum(np.sqrt((centred**2).mean(0)), 1e-300)
    away = (mean - np.asarray(start, float)) / sd
    _, length, axes = np.linalg.svd(centred / np.sqrt(len(centred)), full_matrices=False)
    moves = [sd * away / max(float(np.linalg.norm(away)), 1e-300), *(length[:, None] * axes)[:WIDEST]]

    def at(theta: np.ndarray) -> float:
        return float(value(flat, put(theta, start.dtype), shard))

    here = at(mean)
    least = min(0.5 + 10 * float(np.finfo(start.dtype).eps) * abs(here), 6.0)
    sides = [(at(mean + 5 * move), at(mean - 5 * move)) for move in moves]
    return sides[0][0] < here and all(here - max(both) > least for both in sides[1:])


def _grows(draws: np.ndarray) -> bool:
    """Whether a chain's excursions grow without end: its second half is a thousand times wider."""
    if len(draws) < 4:
        return False
    first, second = (np.abs(half - draws[0]).max() for half in np.array_split(draws, 2))
    return bool(second > 1e3 * max(first, np.finfo(float).tiny))


def _stable_step(flat: FlatModel, theta: Theta, shard: Shard) -> float:
    """Choose h = 0.5/λ_max from the largest curvature at θ (power iteration)."""
    largest = largest_curvature(flat, theta, shard)
    if not largest > 0:
        raise InputError(
            "the likelihood has no positive curvature at the model's start, so no step size can be"
            " derived from it; give step_size"
        )
    return 0.5 / float(largest)


def _flat_prior(params: Params) -> Array:
    """Say nothing about the parameters."""
    return jnp.zeros(())


def _local_chain(
    flat: FlatModel, theta: Theta, shard: Shard, h: float | Schedule, m: int, thin: int, steps: int, seed: int,
    name: str,
) -> Array:  # fmt: skip
    """Run SGLD on the likelihood alone: one client, no prior, no surrogate."""
    rounds = -(-steps // (100 * thin))
    rules = Rules(flat._replace(prior=_flat_prior), plain, m, thin)
    plan = engines.make_plan(1, rounds, 100 * thin, m, len(theta))._replace(rounds=rounds, group=1)
    d, one = len(theta), jnp.ones(1, theta.dtype)
    federation = engines.Federation(
        shard.rows, jnp.array([shard.start]), jnp.array([shard.size]), one,
        Table(Gaussian(jnp.zeros((1, d), theta.dtype)), Gaussian(jnp.zeros(d, theta.dtype)), ()), one[0],
        engines.everyone(np.ones(1)),
    )  # fmt: skip
    dynamics = langevin(h)
    chain = engines.Chain(jax.tree.map(lambda leaf: leaf[None], dynamics.init(theta)), None)
    root = jax.random.fold_in(root_key(seed), crc32(name.encode()))  # numbers of this client's own
    _, trace = advance(rules, plan, dynamics, federation, chain, root, 0)
    return trace.draws.reshape(-1, d)[: steps // thin]
