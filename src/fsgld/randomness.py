"""All randomness of a run, as a function of (seed, chain, round).

Engines never invent keys: they ask `round_keys`. Hence every engine draws the same chain for
the same seed, a resumed run equals one that was not stopped, and which client answers first never
changes a result.

Numbers are drawn for many steps at once, because drawing per step costs more than the
step. Threefry is counter-based, so any block of steps can be drawn alone: number i depends on the
key and on i only. A counter gives two words, and both are used: they leave XLA's loop together, as the
two parts of a complex number, because XLA would compute them twice for two arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, Int, Key, UInt32

from fsgld.errors import InputError, brief
from fsgld.programs import put

u32 = jnp.uint32
TILE = 32  # numbers that are taken apart together: 16 real parts, then 16 imaginary parts


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
    return jax.random.key(put(seed, np.uint32), impl="threefry2x32")


def round_keys(root: Key[Array, ""], chain: Int[Array, ""] | int, round: Int[Array, ""] | int) -> RoundKeys:
    """Derive the keys of one round of one chain. The only place where keys come from."""
    key = jax.random.fold_in(jax.random.fold_in(root, chain), round)
    client, rows, noise = jax.random.split(key, 3)
    return RoundKeys(client, rows, noise)


def numbers(
    keys: RoundKeys,
    steps: int,
    m: int,
    d: int,
    dtype: np.dtype,
    first: Int[Array, ""] | int = 0,
    once: Callable[..., Any] = lambda draw: draw(),
) -> Numbers:
    """Draw the numbers of the steps first … first + steps − 1 of a round.

    `once(draw)` returns `draw()`; a compiled engine gives one that keeps XLA from drawing anew for each use.
    """
    rows = _step_by_step(partial(bit_pairs, keys.rows), steps, m, first, once)
    xi = _step_by_step(partial(normal_pairs, keys.noise, dtype=dtype), steps, d, first, once)
    return Numbers(jax.lax.bitcast_convert_type(rows, u32), xi)


def _step_by_step(pairs: Callable[..., Array], steps: int, width: int, first: Any, once: Callable[..., Any]) -> Array:
    """Draw pairs and take them apart, tile by tile, into `width` numbers for each step."""
    n, half = steps * width, TILE // 2
    begin = first * width if isinstance(first, int) else first.astype(u32) * u32(width)
    tile, skip = begin // TILE, begin % TILE  # the tile that holds the first number, and its place there
    tiles = -(-n // TILE) + (0 if isinstance(skip, int) and skip == 0 else 1)
    z = once(partial(pairs, tiles * half, first=tile * half)).reshape(tiles, half)
    flat = jnp.concatenate([jax.lax.real(z), jax.lax.imag(z)], -1).reshape(-1)
    return jax.lax.dynamic_slice(flat, (skip,), (n,)).reshape(steps, width)


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


def bits(key: Key[Array, ""], n: int) -> UInt32[Array, " n"]:
    """Draw 32 random bits, n times, as `jax.random.bits`."""
    high, low = _threefry(key, n, 0)
    return high ^ low


def bit_pairs(key: Key[Array, ""], n: int, first: UInt32[Array, ""] | int = 0) -> Complex[Array, " n"]:
    """Draw the two words of n counters: the bits of a complex number's parts, which are no numbers themselves."""
    word = lambda bits: jax.lax.bitcast_convert_type(bits, jnp.float32)  # noqa: E731
    return jax.lax.complex(*map(word, _threefry(key, n, first)))


def normal_pairs(
    key: Key[Array, ""], n: int, dtype: np.dtype, first: UInt32[Array, ""] | int = 0
) -> Complex[Array, " n"]:
    """Draw n pairs of independent standard normals, √(−2 log u) (cos 2πv + i sin 2πv) (Box and Muller, 1958).

    u and v come from 53 bits each in float64. In float32 they come from 31 and 32 bits, u rounded to float32: the
    largest radius is 6.66, and the smallest but zero 3.5e-4.
    """
    if jnp.dtype(dtype) == jnp.float64:
        u, v = (_unit64(*_threefry(key, n, first, high)) for high in (0, 1))
        cos, sin = jnp.cos(2 * np.pi * v), jnp.sin(2 * np.pi * v)
    else:
        x, y = _threefry(key, n, first)
        u = ((x >> u32(1)).astype(jnp.int32).astype(jnp.float32) + np.float32(0.5)) * np.float32(2**-31)
        cos, sin = cos_sin(y)
    radius = jnp.sqrt(-2 * jnp.log(u))
    return jax.lax.complex(radius * cos, radius * sin)


def _unit64(high: UInt32[Array, " n"], low: UInt32[Array, " n"]) -> Float[Array, " n"]:
    """Turn 53 bits into a number above 0 and up to 1."""
    word = (high.astype(jnp.uint64) << jnp.uint64(32)) | low.astype(jnp.uint64)
    return ((word >> jnp.uint64(11)).astype(jnp.float64) + 0.5) * 2.0**-53


def cos_sin(turn: UInt32[Array, ...]) -> tuple[Float[Array, ...], Float[Array, ...]]:
    """Evaluate the cosine and sine of 2π · turn / 2³² in float32, to 1.2e-7.

    The nearest quarter turn is taken off in whole numbers, exactly; polynomials (those of Cephes) do the rest.
    With jnp.cos and jnp.sin a pair takes three and a half times as long: they prepare for angles of any size.
    """
    f32, cast = np.float32, jax.lax.bitcast_convert_type
    quarter = (turn + u32(2**29)) >> u32(30)
    a = (turn - (quarter << u32(30))).astype(jnp.int32).astype(jnp.float32) * f32(np.pi / 2**31)
    b = a * a
    sin = a + a * b * (f32(-1.6666654611e-1) + b * (f32(8.3321608736e-3) + b * f32(-1.9515295891e-4)))
    cos = f32(4.166664568298827e-2) + b * (f32(-1.388731625493765e-3) + b * f32(2.443315711809948e-5))
    cos = 1 - f32(0.5) * b + b * b * cos
    swap = (quarter & u32(1)) == 1
    signed: Any = lambda x, sign: cast(cast(x, u32) ^ ((sign & u32(2)) << u32(30)), jnp.float32)  # noqa: E731
    return signed(jnp.where(swap, sin, cos), quarter + u32(1)), signed(jnp.where(swap, cos, sin), quarter)


def _threefry(key: Key[Array, ""], n: int, first: UInt32[Array, ""] | int, high: int = 0) -> tuple[Array, Array]:
    """Threefry-2x32, 20 rounds, of the counters (high, first … first + n − 1) (Salmon et al., 2011)."""
    words = jax.random.key_data(key)
    keys = (words[0], words[1], words[0] ^ words[1] ^ u32(0x1BD11BDA))
    low = jax.lax.iota(u32, n) + jnp.asarray(first, u32)
    x, y = jnp.full_like(low, high) + keys[0], low + keys[1]
    for i in range(5):
        for shift in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            x = x + y
            y = x ^ ((y << u32(shift)) | (y >> u32(32 - shift)))
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + u32(i + 1)
    return x, y
