"""How the columns of a table of rows lie in memory, and how rows are fetched from it.

A column is a JAX array whose first axis is the rows. On a CPU, JAX's arrays begin at a multiple of 64 bytes, NumPy's
anywhere. So that a user's arrays can be read where they are, a column may also be `Unaligned`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, Shaped

Rows = Any  # a pytree of columns
LINE = 64  # bytes
LARGE = 2**25  # bytes; smaller columns are always copied


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Unaligned:
    """A column of a table in memory that is not JAX's, whose first row begins within a line of 64 bytes.

    JAX's arrays begin with a line, so this one begins with that of the first row: with w numbers a row, row i is
    flat[lead + i·w : lead + (i+1)·w]. What comes before `lead` is not ours and is never used. Programs are compiled for
    one `lead`; large arrays of NumPy's own all have the same.
    """

    flat: Shaped[Array, " lead+N*w"]
    lead: int = field(metadata={"static": True})
    shape: tuple[int, ...] = field(metadata={"static": True})  # (N, …), as if it were an array

    @property
    def dtype(self) -> np.dtype:
        return self.flat.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(np.asarray(self.flat)[self.lead :].reshape(self.shape), dtype, copy=copy)

    def take(self, index: Int[Array, ...]) -> Array:
        """Fetch rows."""
        w = int(np.prod(self.shape[1:]))
        whole_rows = jax.lax.GatherDimensionNumbers((index.ndim,), (), (0,))
        found = jax.lax.gather(
            self.flat, (self.lead + w * index)[..., None], whole_rows, (w,), mode="promise_in_bounds"
        )  # fmt: skip
        return found.reshape(*index.shape, *self.shape[1:])


def take(rows: Rows, index: Int[Array, ...]) -> Rows:
    """Fetch rows; the index is in bounds by construction, so nothing is checked or wrapped."""

    def fetch(column: Array | Unaligned) -> Array:
        if isinstance(column, Unaligned):
            return column.take(index)
        return column.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)

    return over_columns(fetch, rows)


def blank_row(rows: Rows) -> Rows:
    """Make a blank row: it has the shapes and types of a table's rows, and no values."""
    return over_columns(lambda column: np.empty(column.shape[1:], column.dtype), rows)


def num_rows(rows: Rows) -> int:
    """Count the rows of a table."""
    return int(jax.tree.leaves(over_columns(lambda column: column.shape[0], rows))[0])


def over_columns(function: Callable[[Any], Any], rows: Rows) -> Rows:
    """Apply a function to every column of a table."""
    return jax.tree.map(function, rows, is_leaf=lambda node: isinstance(node, Unaligned))


def join(parts: Sequence[np.ndarray], borrow: bool) -> Array | Unaligned:
    """Put arrays end to end, in one copy that JAX takes as it is; or without one, see `gather`."""
    dtype = jax.dtypes.canonicalize_dtype(parts[0].dtype.newbyteorder("="))
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    if not borrow or parts[0].dtype != dtype or not _can_borrow(parts):
        return jax.device_put(np.concatenate(parts, out=_aligned(shape, dtype), casting="same_kind"))
    before = parts[0].ctypes.data % LINE
    memory = np.asarray(_Memory(parts, before))
    if before:
        return Unaligned(jax.device_put(memory), before // dtype.itemsize, shape)
    return jax.device_put(memory.reshape(shape))


def _can_borrow(parts: Sequence[np.ndarray]) -> bool:
    """Whether arrays lie end to end in memory, as one large array that JAX can read where it is."""
    begins = np.array([part.ctypes.data for part in parts])
    ends = begins + [part.nbytes for part in parts]
    adjacent = all(part.flags.c_contiguous for part in parts) and (begins[1:] == ends[:-1]).all()
    size, item = int(ends[-1] - begins[0]), parts[0].itemsize
    countable = begins[0] % LINE == 0 or size // item < 2**31 - LINE  # `Unaligned` counts numbers, not rows
    fits = size >= LARGE and begins[0] % item == 0 and countable
    return jax.default_backend() == "cpu" and bool(adjacent and fits)


class _Memory:
    """The memory of arrays that lie end to end, from `before` bytes ahead of them on; it keeps them alive."""

    def __init__(self, parts: Sequence[np.ndarray], before: int) -> None:
        self.parts = parts
        begin, dtype = parts[0].ctypes.data - before, parts[0].dtype
        size = (before + sum(part.nbytes for part in parts)) // dtype.itemsize
        self.__array_interface__ = {"data": (begin, True), "shape": (size,), "typestr": dtype.str, "version": 3}


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Make an array that begins with a line; on a CPU JAX copies others once more."""
    size = np.dtype(dtype).itemsize * int(np.prod(shape))
    raw = np.empty(size + LINE, np.uint8)
    begin = -raw.ctypes.data % LINE
    return raw[begin : begin + size].view(dtype).reshape(shape)
