"""Mini-batches in which rows that matter more come more often.

Row i is drawn with probability p_i and weighted by 1/(N_s p_i), so estimates stay unbiased whatever p is. The noise of
one draw is Σ_i c_i²/p_i − (Σ_i c_i)² where c_i is what row i adds, least for p_i ∝ |c_i|. Half of p is even, so that no
weight exceeds 2; the other half goes by the length of c_i in the coordinates of prior × q, over a few probes.
A client does this alone, and p stays with it.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fsgld.algorithm import Lots
from fsgld.columns import num_rows, take
from fsgld.derivatives import BLOCK
from fsgld.model import FlatModel, Row, Theta
from fsgld.probes import row_parts, whiten
from fsgld.programs import put
from fsgld.rows import Shards, asked

LOTS_A_ROW = 4  # on average; p_i is kept to a quarter of 1/N_s


@asked
def by_leverage(
    flat: FlatModel, differences: bool, points: Float[Array, "K d"], anchor: Theta, factor: Array, table: Shards
) -> Lots:
    """Give each row lots in proportion to half an even part and half its length."""
    lengths = np.asarray(row_lengths(flat, differences, points, anchor, factor, table.rows), float)
    rows, counts, weights = [], [], []
    for start, size in zip(table.starts, table.sizes, strict=True):
        share = lengths[start : start + size]
        share = share / share.sum() if share.sum() > 0 else np.full(size, 1 / size)
        count = np.rint(LOTS_A_ROW * size * (0.5 / size + 0.5 * share)).astype(int)
        rows.append(np.repeat(np.arange(start, start + size), count))
        counts.append(count.sum())
        weights.append(count.sum() / (size * count))
    sizes = np.array(counts)
    starts = np.cumsum(sizes) - sizes
    dtype = points.dtype
    return Lots(
        put(np.concatenate(rows), np.int32), put(np.concatenate(weights), dtype), put(starts, np.int32),
        put(sizes, np.int32),
    )  # fmt: skip


@partial(jax.jit, static_argnums=(0, 1))
def row_lengths(
    flat: FlatModel, differences: bool, points: Float[Array, "K d"], anchor: Theta, factor: Array, rows: Row
) -> Float[Array, " N"]:
    """Give the root mean square over probes of ‖L'v_i‖ for every row."""

    def length(i: Array) -> Array:
        one = take(rows, i[None])

        def squared(theta: Theta) -> Array:
            return jnp.sum(whiten(factor, row_parts(flat, differences, theta, anchor, one)) ** 2)

        return jnp.sqrt(jnp.mean(jax.vmap(squared)(points)))

    lengths: Array = jax.lax.map(length, jnp.arange(num_rows(rows)), batch_size=BLOCK)
    return lengths
