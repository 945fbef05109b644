"""The clients' data x_1 … x_S, checked and put into one table.

A data set is an array or a pytree of arrays (a tuple, a dict of columns) with equal first axes; a row is what is left
without that axis. A data frame with names is read as a dict of its columns. Shards are a list of data sets, one a
client, or a dict from client name to data set. Client probabilities f_s are an argument of `fsgld.sample`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fsgld.checkpoint import digest
from fsgld.columns import join, over_columns, take
from fsgld.errors import InputError, brief, first_line

Data = Any


@dataclass(frozen=True)
class Shards:
    """The rows of all clients in one table; client s owns rows starts[s] … + sizes[s]."""

    rows: Data
    starts: np.ndarray
    sizes: np.ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def shard(self, s: int) -> Data:
        """Give client s its own rows, and nothing else."""
        return take(self.rows, jnp.arange(self.sizes[s]) + self.starts[s])

    def fingerprint(self) -> str:
        """Say in one word which rows these are."""
        return digest(over_columns(np.asarray, self.rows))

    def ask(self, question: str, given: dict[str, Any]) -> Any:
        """Pass a question on to clients whose rows are not here; only tables without rows do this."""
        raise NotImplementedError


def asked(question: Callable) -> Callable:
    """Mark a question about rows, `question(flat, …, table)`: a table that has no rows here passes it on to clients.

    Answers have a leading axis of clients, so those of single clients can be put together.
    """
    names = signature(question)

    @wraps(question)
    def ask(*args: Any, **kwargs: Any) -> Any:
        bound = names.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        table = given.pop("table")
        return table.ask(question.__name__, given) if type(table) is not Shards else question(*args, **kwargs)

    return ask


def gather(shards: list[Data] | dict[str, Data] | Shards, borrow: bool = False) -> Shards:
    """Check the clients' data sets and put them into one table.

    The table is a copy. With `borrow`, large columns that lie end to end already, as after `np.array_split`, are used
    where they are. Borrow only where every result is waited for before the user has control again: JAX may still be
    computing when its functions return.
    """
    if isinstance(shards, Shards):
        return shards
    if not isinstance(shards, list | dict) or not shards:
        raise InputError(
            "shards must be a non-empty list of data sets, one a client, or a dict from client"
            f" name to data set; got {type(shards).__name__} {brief(shards)}. For a single data set give [data]"
        )
    names = tuple(map(str, shards)) if isinstance(shards, dict) else _number(len(shards))
    values = list(shards.values()) if isinstance(shards, dict) else shards
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two clients read {twice!r}; give clients different names")
    datasets = [read(data, name) for data, name in zip(values, names, strict=True)]
    sizes = np.array([check_rows(data, name) for data, name in zip(datasets, names, strict=True)])
    for data, name in zip(datasets[1:], names[1:], strict=True):
        _check_alike(datasets[0], data, names[0], name)
    if sizes.sum() > 2**31 - 1:
        raise InputError(f"got {sizes.sum()} rows; one process can hold {2**31 - 1} at most, give fewer")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = jax.tree.map(lambda *parts: join(parts, borrow), *datasets)
    return Shards(rows, starts.astype(np.int32), sizes.astype(np.int32), names)


def _number(count: int) -> tuple[str, ...]:
    """Name clients that have no names."""
    return tuple(f"client {s}" for s in range(count))


def read(data: Data, name: str) -> Data:
    """See a data set as arrays; a data frame whose columns have names as a dict of these, whatever their order."""

    def arrays(leaf: Any) -> Data:
        columns = list(leaf.columns) if hasattr(leaf, "columns") and hasattr(leaf, "to_numpy") else []
        if columns == list(range(len(columns))):  # no names, or no data frame
            return np.asanyarray(leaf)
        if len(set(columns)) < len(columns):
            raise InputError(f"{name}: a data frame has two columns of one name; got {brief(columns)}")
        return {column: leaf[column].to_numpy() for column in columns}

    try:
        return jax.tree.map(lambda leaf: leaf, jax.tree.map(arrays, data))  # also sorts the columns of a data frame
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{name}: the data set cannot be read ({first_line(error)}); give arrays of numbers, a tuple of them, or a"
            " dict of columns with names as keys"
        ) from error


def check_rows(data: Data, name: str, values: bool = True) -> int:
    """Check one client's data set, its values only if wanted, and give its number of rows."""
    leaves = jax.tree_util.tree_leaves_with_path(data)
    if not leaves:
        raise InputError(f"{name}: the data set holds no array; got {brief(data)}")
    first = _column(leaves[0][0])
    for path, leaf in leaves:
        where = f"{name}{_column(path)}"
        if leaf.dtype.kind not in "biuf" or leaf.dtype.itemsize > 8:
            raise InputError(f"{where}: values of type {leaf.dtype} cannot be used; give numbers or booleans")
        if leaf.ndim == 0:
            raise InputError(
                f"{where}: a data set needs a first axis for its rows, but this is a scalar; give an array"
                " (a Python list of numbers is read as columns: use np.array)"
            )
        if len(leaf) != len(leaves[0][1]):
            raise InputError(
                f"{where} has {len(leaf)} rows, but {name}{first} has {len(leaves[0][1])};"
                " all columns of a client need the same number of rows"
            )
        if values:
            _check_values(leaf, where)
    if len(leaves[0][1]) == 0:
        raise InputError(f"{name} has no rows; leave it out of the shards")
    return len(leaves[0][1])


def _check_values(leaf: np.ndarray, where: str) -> None:
    """Refuse masked values, NaN, infinities and what JAX's type cannot hold; block by block, to save memory."""
    target = jax.dtypes.canonicalize_dtype(leaf.dtype.newbyteorder("="))
    if leaf.dtype.kind != "f" and target.itemsize == leaf.dtype.itemsize and not np.ma.isMaskedArray(leaf):
        return
    limits = np.finfo(target) if leaf.dtype.kind == "f" else np.iinfo(target)
    step = max(1, 2**16 // max(1, leaf[:1].size))  # 65,536 values at a time
    for begin in range(0, len(leaf), step):
        block = leaf[begin : begin + step]
        values = np.asarray(block)
        bad = np.ma.getmaskarray(block) | ~((values >= limits.min) & (values <= limits.max))
        bad = bad.reshape(len(block), -1)
        if bad.any():
            row = int(np.argmax(bad.any(1)))
            value = block[row].reshape(-1)[np.argmax(bad[row])]
            if value is np.ma.masked or not np.isfinite(value):
                held = "a masked value" if value is np.ma.masked else value
                raise InputError(f"{where}: row {begin + row} holds {held}; remove or fill in such rows first")
            raise InputError(
                f"{where}: row {begin + row} holds {value}, too large for {target}; rescale the data or turn on"
                " JAX's jax_enable_x64"
            )


def _check_alike(one: Data, other: Data, name: str, other_name: str) -> None:
    """Check that two clients' rows have one structure, one shape and one dtype."""
    trees: list[Any] = [jax.tree.structure(one), jax.tree.structure(other)]
    if trees[0] != trees[1]:
        raise InputError(
            f"{other_name} has {_columns(other)}, but {name} has {_columns(one)}; all clients need the same columns"
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(other), jax.tree.leaves(one), strict=True)
    for (path, b), a in pairs:
        if (a.shape[1:], a.dtype) != (b.shape[1:], b.dtype):
            raise InputError(
                f"{other_name}{_column(path)} has rows of shape {b.shape[1:]} and dtype {b.dtype},"
                f" but {name}'s have shape {a.shape[1:]} and dtype {a.dtype};"
                " all clients need the same columns, of one type (give numbers as floats everywhere)"
            )


def _column(path: Any) -> str:
    """Name a column of a pytree for messages; nothing for a plain array."""
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    return f", column {name}" if name else ""


def _columns(data: Data) -> str:
    """Name the columns of a data set for messages."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(data)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    if names == [""]:
        return "a plain array"
    return f"a {type(data).__name__} of columns {', '.join(names)}"[:150]
