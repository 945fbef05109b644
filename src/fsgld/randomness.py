"""All randomness of a run, as a function of (seed, chain, round).

Engines never invent keys: they ask `round_keys`. Hence every engine draws the same chain for
the same seed, a resumed run equals one that was not stopped, and which client answers first never
changes a result.

Numbers are drawn for many steps at once, because drawing per step costs more than the
step. Threefry is counter-based, so any block of steps can be drawn alone: number i depends on the
key and on i only. `bits` equals `jax.random.bits` to the bit; it is unrolled, which is 1.1 to
2 times faster on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from fsgld.errors import InputError, brief

u32 = jnp.uint32


class RoundKeys(NamedTuple):
    """The keys of one round of one chain."""

    client: Key[Array, ""]
    rows: Key[Array, ""]
    noise: Key[Array, ""]


class Numbers(NamedTuple):
    """The random numbers of T steps: bits for the mini-batches, normals for the noise."""

    row_bits: UInt32[Array, "T m"]
    xi: Float[Array, "T d"]


def root_key(seed: int) -> Key[Array, ""]:
    """Make the key of a run from its seed, always with threefry."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise InputError(f"seed must be a whole number from 0 to 2**32 - 1; got {brief(seed)}")
    return jax.random.key(np.uint32(seed), impl="threefry2x32")


def round_keys(root: Key[Array, ""], chain: Int[Array, ""] | int, round: Int[Array, ""] | int) -> RoundKeys:
    """Derive the keys of one round of one chain. The only place where keys come from."""
    key = jax.random.fold_in(jax.random.fold_in(root, chain), round)
    client, rows, noise = jax.random.split(key, 3)
    return RoundKeys(client, rows, noise)


def numbers(keys: RoundKeys, steps: int, m: int, d: int, dtype: np.dtype, first: Int[Array, ""] | int = 0) -> Numbers:
    """Draw the numbers of the steps first … first + steps − 1 of a round."""
    first = jnp.asarray(first, u32)
    row_bits = bits(keys.rows, steps * m, first * u32(m))
    xi = normal(keys.noise, steps * d, dtype, first * u32(d))
    return Numbers(row_bits.reshape(steps, m), xi.reshape(steps, d))


def pick_client(key: Key[Array, ""], thresholds: UInt32[Array, " edges"]) -> Int[Array, ""]:
    """Draw c ~ Categorical(f) by inversion; probabilities are kept to 2⁻³² (see `thresholds`)."""
    return jnp.searchsorted(thresholds, bits(key, 1)[0], side="right").astype(jnp.int32)


def thresholds(probs: Float[np.ndarray, " S"]) -> UInt32[np.ndarray, " S-1"]:
    """Turn probabilities f into the inner edges of the cdf, in units of 2⁻³²."""
    edges = np.cumsum(np.asarray(probs, float))[:-1] * 2.0**32
    return np.minimum(np.rint(edges), 2.0**32 - 1).astype(np.uint32)


def pick_rows(row_bits: UInt32[Array, ...], size: Int[Array, ""] | int) -> Int[Array, ...]:
    """Map bits to row numbers 0 … N−1, with replacement.

    Multiply and shift: the number is ⌊bits · N / 2³²⌋. A row's probability differs from 1/N by at
    most a share N/2³² of it (1e-4 at half a million rows), evenly spread over the rows.
    """
    return jax.lax.mulhi(row_bits, jnp.broadcast_to(u32(size), row_bits.shape)).astype(jnp.int32)


def bits(key: Key[Array, ""], n: int, first: UInt32[Array, ""] | int = 0) -> UInt32[Array, " n"]:
    """Draw 32 random bits, n times, beginning at counter `first`."""
    high, low = _threefry(key, n, first)
    return high ^ low


def normal(key: Key[Array, ""], n: int, dtype: np.dtype, first: UInt32[Array, ""] | int = 0) -> Float[Array, " n"]:
    """Draw n standard normals: √2 erf⁻¹(u) with u uniform on (−1, 1), as `jax.random.normal`."""
    if jnp.dtype(dtype) == jnp.float64:
        high, low = _threefry(key, n, first)
        raw = (high.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)
        mantissa = (raw >> jnp.uint64(12)) | jnp.uint64(0x3FF0000000000000)
    else:
        mantissa = (bits(key, n, first) >> u32(9)) | u32(0x3F800000)
        dtype = np.dtype(np.float32)
    unit = jax.lax.bitcast_convert_type(mantissa, dtype) - jnp.ones((), dtype)
    low_end = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    u = jnp.maximum(low_end, unit * (1 - low_end) + low_end)
    return jnp.asarray(np.sqrt(2), dtype) * jax.lax.erf_inv(u)


def _threefry(key: Key[Array, ""], n: int, first: UInt32[Array, ""] | int) -> tuple[Array, Array]:
    """Threefry-2x32, 20 rounds, of the counters first … first + n − 1 (Salmon et al., 2011)."""
    words = jax.random.key_data(key)
    keys = (words[0], words[1], words[0] ^ words[1] ^ u32(0x1BD11BDA))
    low = jax.lax.iota(u32, n) + jnp.asarray(first, u32)
    x, y = jnp.zeros_like(low) + keys[0], low + keys[1]
    for i in range(5):
        for shift in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x = x + y
            y = x ^ ((y << u32(shift)) | (y >> u32(32 - shift)))
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + u32(i + 1)
    return x, y
