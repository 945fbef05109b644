"""What the pre-flight knows: all clients' answers at probes from prior × q, and what follows for the chain's law."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from fsgld.algorithm import Lots
from fsgld.columns import num_rows, take
from fsgld.errors import InputError
from fsgld.likelihood import plain
from fsgld.model import FlatModel, Theta
from fsgld.parts import Parts
from fsgld.probes import Noise, excess_curvatures, noise_all, residuals
from fsgld.programs import put
from fsgld.rows import Shards, asked

PROBES = 64  # at most
WORK = 2e9  # multiplications that one pass of measuring may take, about; five times that for the rows of large clients


class Measured(NamedTuple):
    """What all clients answered at probes from prior × q."""

    points: np.ndarray  # (K, d): the probes, θ_k = centre + L z_k
    z: np.ndarray  # (K, d), in antithetic pairs: the second half is minus the first
    residual: np.ndarray  # (S, K, d), whitened: r_s = L'(∇log p(x_s|θ_k) − ∇log q_s(θ_k))
    growth: np.ndarray  # (S, K, d), whitened: J_s r_s, how r_s grows along itself
    noise: np.ndarray  # (S, K, d): N_s² Var(w_i v_i), as each parameter sees it
    leverage: np.ndarray  # (S,): N_s max_i w_i ‖L'v_i‖
    low: np.ndarray  # (S,): extreme eigenvalues of L'(H_s − Λ_s)L at the centre and two points two sds out
    high: np.ndarray
    seen: np.ndarray  # (d, d): how parameters see whitened vectors


def measure(flat: FlatModel, parts: Parts, table: Shards) -> Measured:
    """Let all clients answer, with rows drawn evenly."""
    dtype, factor = parts.anchor.dtype, factor_of(parts)
    L, around = np.asarray(factor, float), np.asarray(parts.centre, float)
    K = int(np.clip(WORK / (table.sizes.sum() * L.size), 4, PROBES))
    z = np.random.default_rng(0).standard_normal((K // 2, len(L)))
    z = np.concatenate([z, -z])  # antithetic: means over probes are exact for what is linear
    points = around + (z * L if L.ndim == 1 else z @ L.T)
    found = residuals(flat, put(points, dtype), factor, parts.surrogates, table)
    residual, growth = np.asarray(found.value, float), np.asarray(found.growth, float)
    # two sds out: z has length √d about, but with few parameters it may be short by chance
    lengths = np.linalg.norm(z[:2], axis=1, keepdims=True) if len(L) < 4 else np.sqrt(len(L))
    far = np.concatenate([around[None], around + 2 * np.sqrt(len(L)) / lengths * (points[:2] - around)])
    ends = np.stack([excess_curvatures(flat, put(t, dtype), factor, parts.surrogates, table) for t in far])
    seen = np.eye(len(L)) if L.ndim == 1 else L / np.linalg.norm(L, axis=1)[:, None]
    noise, leverage = measure_noise(flat, parts, table, points)
    measured = Measured(points, z, residual, growth, noise, leverage, ends[..., 0].min(0), ends[..., 1].max(0), seen)
    for s, name in enumerate(table.names):
        if not all(np.isfinite(leaf[s]).all() for leaf in measured[2:8]):
            raise InputError(
                f"{name}: gradients of the log-likelihood are not finite within two sds of the mean of prior × q; give"
                " surrogates that fit better (fsgld.anchored at the mode), or a likelihood that is finite there"
            )
    return measured


def measure_noise(
    flat: FlatModel, parts: Parts, table: Shards, points: np.ndarray, lots: Lots | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Let all clients measure the noise of their mini-batches; gives `noise` and `leverage` of `Measured`."""
    dtype, factor, N = parts.anchor.dtype, factor_of(parts), table.sizes.astype(float)
    given = takes_differences(parts), put(points, dtype), parts.anchor, factor
    found = noise_of_some(flat, *given, int(5 * WORK / (len(points) * factor.size)), lots, table)
    return np.asarray(found.variance, float) * (N**2)[:, None, None], np.asarray(found.leverage, float) * N


@asked
def noise_of_some(
    flat: FlatModel, differences: bool, points: jax.Array, anchor: Theta, factor: jax.Array, most: int,
    lots: Lots | None, table: Shards,
) -> Noise:  # fmt: skip
    """Let all clients measure their noise on some of their rows (see `some_rows`)."""
    weights = np.ones(num_rows(table.rows), points.dtype) if lots is None else np.asarray(lots.weights)
    few = some_rows(Shards((table.rows, weights), table.starts, table.sizes, table.names), most)
    places = put(few.rows[1]), put(few.starts), put(few.sizes)
    return noise_all(flat, differences, points, anchor, factor, few.rows[0], *places)


def factor_of(parts: Parts) -> jax.Array:
    """Give L in the precision of the run."""
    return parts.dynamics.constants["factor"].astype(parts.anchor.dtype)


def takes_differences(parts: Parts) -> bool:
    """Whether a row's part in the estimate is a difference to the anchor."""
    return parts.likelihood.name != plain.name


def some_rows(table: Shards, most: int) -> Shards:
    """Take evenly spaced rows of large clients, if all rows together would take too long; never fewer than 1000."""
    if table.sizes.sum() <= most or type(table) is not Shards:  # rows elsewhere are the clients' own matter
        return table
    each = max(most // len(table), 1000)
    picks = [a + np.linspace(0, n - 1, min(n, each)).astype(int)
             for a, n in zip(table.starts, table.sizes, strict=True)]  # fmt: skip
    sizes = np.array([len(pick) for pick in picks], np.int32)
    rows = jax.jit(take)(table.rows, np.concatenate(picks).astype(np.int32))
    return Shards(rows, (np.cumsum(sizes) - sizes).astype(np.int32), sizes, table.names)


def check_langevin(flat: FlatModel, parts: Parts, table: Shards) -> list[str]:
    """Check h λ_max(B_s) < 4 for every client at the anchor, with B_s ⪯ (λ_max(Λ₀ + Λ) + λ_max(H_s − Λ_s)/f_s) I."""
    assert parts.approximation is not None
    h = parts.dynamics.first_step()
    P, d = np.asarray(parts.approximation.precision, float), len(parts.anchor)
    raw = put(np.ones(d) if P.ndim == 1 else np.eye(d), parts.anchor.dtype)
    few = some_rows(table, int(WORK / (100 * max(d, P.size / 100))))
    share = few.sizes / table.sizes  # of a client's rows; its curvature is taken to be so much less
    part = jax.vmap(lambda q_s, x: q_s * x)(parts.surrogates, put(share, parts.anchor.dtype))
    excess = excess_curvatures(flat, parts.anchor, raw, part, few)[:, 1] / share
    high = (P.max() if P.ndim == 1 else np.linalg.eigvalsh(P)[-1]) + np.maximum(excess, 0) / parts.probs
    s = int(np.nanargmax(high))
    if not h * high[s] >= 4:
        return []
    return [
        f"{table.names[s]}: step size {h:.3g} may be unstable there (h λ is up to {h * high[s]:.3g} and should stay"
        f" below 4); use at most {1 / high[s]:.2g}, or the default dynamics, which choose for themselves"
    ]


def mini_batch_noise(measured: Measured, f: np.ndarray) -> tuple[float, np.ndarray]:
    """Give V_m for the parameter that sees most of it, and each client's part."""
    parts = measured.noise.mean(1) / f[:, None]
    worst = int(np.argmax(parts.sum(0)))
    return float(parts.sum(0)[worst]), np.asarray(parts[:, worst])


def disagreement(measured: Measured, f: np.ndarray) -> tuple[float, np.ndarray]:
    """Bound V_b for the parameter with the largest bound, and give each client's part in the mean over probes.

    At a probe, r_s²/f_s − r_s Σ_t r_t + z J_s r_s/f_s is the part of client s; the last term is there because
    residuals grow in the tails. The bound is the mean over probes plus two of its standard errors.
    """
    r, growth = measured.residual @ measured.seen.T, measured.growth @ measured.seen.T  # (S, K, d)
    parts = (r**2 + measured.z @ measured.seen.T * growth) / f[:, None, None] - r * r.sum(0)
    pairs = parts.sum(0).reshape(2, -1, parts.shape[-1]).mean(0)
    bound = pairs.mean(0) + 2 * pairs.std(0, ddof=1) / np.sqrt(len(pairs))
    worst = int(np.argmax(bound))
    return float(bound[worst]), np.asarray(parts.mean(1)[:, worst])
