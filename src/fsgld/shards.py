"""The clients' data x_1 … x_S, checked, and helpers that split one data set into shards.

A data set is an array or a pytree of arrays (a tuple, a dict of columns) with equal first axes;
a row is what is left without that axis. Shards are a list of data sets, one a client, or a dict
from client name to data set. Client probabilities f_s are an argument of `fsgld.sample`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fsgld.errors import InputError

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
        begin = int(self.starts[s])
        end = begin + int(self.sizes[s])
        return jax.tree.map(lambda leaf: leaf[begin:end], self.rows)


def gather(shards: list[Data] | dict[str, Data] | Shards) -> Shards:
    """Check the clients' data sets and put them into one table."""
    if isinstance(shards, Shards):
        return shards
    if not isinstance(shards, list | dict) or not shards:
        raise InputError(
            "shards must be a non-empty list of data sets, one a client, or a dict from client"
            f" name to data set; got {_describe(shards)}. For a single data set give [data]"
        )
    names = tuple(map(str, shards)) if isinstance(shards, dict) else _number(len(shards))
    values = list(shards.values()) if isinstance(shards, dict) else shards
    datasets = [jax.tree.map(np.asarray, data) for data in values]
    sizes = np.array([_check(data, name) for data, name in zip(datasets, names, strict=True)])
    for data, name in zip(datasets[1:], names[1:], strict=True):
        _check_alike(datasets[0], data, names[0], name)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = jax.tree.map(lambda *parts: _join(parts), *datasets)
    return Shards(rows, starts.astype(np.int32), sizes.astype(np.int32), names)


def iid(data: Data, clients: int, seed: int = 0) -> list[Data]:
    """Deal the rows to clients at random, in parts as equal as can be."""
    order = np.random.default_rng(seed).permutation(_clients(data, clients))
    return _deal(data, np.array_split(order, clients))


def by_column(data: Data, values: np.ndarray, clients: int) -> list[Data]:
    """Sort the rows by a column's values and cut into equal parts: each client sees one range."""
    _labels(values, _clients(data, clients))
    return _deal(data, np.array_split(np.argsort(values, kind="stable"), clients))


def by_label(data: Data, labels: np.ndarray, clients: int | None = None) -> list[Data]:
    """Give each client classes of its own; class k goes to client k mod clients.

    By default there are as many clients as classes.
    """
    classes = np.unique(_labels(labels, _clients(data, 1)))
    clients = len(classes) if clients is None else clients
    if not 1 <= clients <= len(classes):
        raise InputError(f"by_label needs from 1 to {len(classes)} clients, one class each at least; got {clients}")
    owner = np.searchsorted(classes, labels) % clients
    return _deal(data, [np.flatnonzero(owner == s) for s in range(clients)])


def beta(
    data: Data, labels: np.ndarray, clients: int, a: float, b: float,
    size: int | None = None, seed: int = 0,
) -> list[Data]:  # fmt: skip
    """Draw each client's share of positive labels, π_s ~ Beta(a, b), as the paper's Section 5.3.

    All shards have `size` rows, by default the most that the data allow; rows are used once.
    """
    positive = np.asarray(_labels(labels, _clients(data, clients))) > 0
    rng = np.random.default_rng(seed)
    share = rng.beta(a, b, clients)
    most = int(min(positive.sum() / share.sum(), (~positive).sum() / (1 - share).sum()))
    size = most - 1 if size is None else size
    ones = np.rint(share * size).astype(int)
    pools = rng.permutation(np.flatnonzero(positive)), rng.permutation(np.flatnonzero(~positive))
    if size < 1 or ones.sum() > len(pools[0]) or (size - ones).sum() > len(pools[1]):
        raise InputError(
            f"{clients} shards of {size} rows need more rows of one label than there are;"
            f" with these shares at most {max(most - 1, 0)} rows a shard are possible"
        )
    parts = zip(_cut(pools[0], ones), _cut(pools[1], size - ones), strict=True)
    return _deal(data, [np.concatenate(pair) for pair in parts])


def dirichlet(data: Data, labels: np.ndarray, clients: int, concentration: float, seed: int = 0) -> list[Data]:
    """Deal each class to the clients in shares ~ Dirichlet(concentration) (Hsu et al., 2019)."""
    n = _clients(data, clients)
    labels, rng = _labels(labels, n), np.random.default_rng(seed)
    for _ in range(100):
        owner = np.empty(n, int)
        for k in np.unique(labels):
            mine = np.flatnonzero(labels == k)
            shares = rng.dirichlet(np.full(clients, concentration))
            owner[mine] = rng.choice(clients, len(mine), p=shares)
        if len(np.unique(owner)) == clients:
            return _deal(data, [np.flatnonzero(owner == s) for s in range(clients)])
    raise InputError(
        f"dirichlet left a client without rows in 100 tries ({n} rows, {clients} clients,"
        f" concentration {concentration:g}); use fewer clients or a larger concentration"
    )


def _number(count: int) -> tuple[str, ...]:
    """Name clients that have no names."""
    return tuple(f"client {s}" for s in range(count))


def _check(data: Data, name: str) -> int:
    """Check one client's data set and give its number of rows."""
    leaves = jax.tree_util.tree_leaves_with_path(data)
    if not leaves:
        raise InputError(f"{name}: the data set holds no array; got {_describe(data)}")
    first = _column(leaves[0][0])
    for path, leaf in leaves:
        where = f"{name}{_column(path)}"
        if leaf.dtype.kind not in "biuf":
            raise InputError(f"{where}: values of type {leaf.dtype} cannot be used; give numbers or booleans")
        if leaf.ndim == 0:
            raise InputError(f"{where}: a data set needs a first axis for its rows; got a scalar")
        if len(leaf) != len(leaves[0][1]):
            raise InputError(
                f"{where} has {len(leaf)} rows, but {name}{first} has {len(leaves[0][1])};"
                " all columns of a client need the same number of rows"
            )
        _check_finite(leaf, where)
    if len(leaves[0][1]) == 0:
        raise InputError(f"{name} has no rows; leave it out of the shards")
    return len(leaves[0][1])


def _check_finite(leaf: np.ndarray, where: str) -> None:
    """Refuse NaN and infinite values, naming the first row; block by block, to save memory."""
    if leaf.dtype.kind != "f":
        return
    for begin in range(0, len(leaf), 65536):
        block = leaf[begin : begin + 65536]
        bad = ~np.isfinite(block).reshape(len(block), -1).all(1)
        if bad.any():
            row = int(np.argmax(bad))
            value = block[row].ravel()[~np.isfinite(block[row].ravel())][0]
            raise InputError(f"{where}: row {begin + row} holds {value}; remove or fill in such rows first")


def _check_alike(one: Data, other: Data, name: str, other_name: str) -> None:
    """Check that two clients' rows have one structure, one shape and one dtype."""
    trees: Any = jax.tree.structure(one), jax.tree.structure(other)
    if trees[0] != trees[1]:
        raise InputError(
            f"{other_name} has data of structure {trees[1]}, but {name} has {trees[0]};"
            " all clients need the same columns"
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(other), jax.tree.leaves(one), strict=True)
    for (path, b), a in pairs:
        if (a.shape[1:], a.dtype) != (b.shape[1:], b.dtype):
            raise InputError(
                f"{other_name}{_column(path)} has rows of shape {b.shape[1:]} and dtype {b.dtype},"
                f" but {name}'s have shape {a.shape[1:]} and dtype {a.dtype};"
                " all clients need the same columns"
            )


def _join(parts: Sequence[np.ndarray]) -> jax.Array:
    """Put arrays end to end; without a copy where they already lie so in memory."""
    ends = [part.ctypes.data + part.nbytes for part in parts]
    adjacent = all(part.flags.c_contiguous for part in parts) and all(
        end == part.ctypes.data for end, part in zip(ends, parts[1:], strict=False)
    )
    if not adjacent:
        return jnp.asarray(np.concatenate(parts))
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    return jnp.asarray(np.lib.stride_tricks.as_strided(parts[0], shape, parts[0].strides))


def _clients(data: Data, clients: int) -> int:
    """Check the data set to be split and the number of clients; give the number of rows."""
    n = _check(jax.tree.map(np.asarray, data), "the data set")
    if not isinstance(clients, int | np.integer) or not 1 <= clients <= n:
        raise InputError(f"clients must be a whole number from 1 to {n} (rows); got {clients!r}")
    return n


def _labels(labels: np.ndarray, n: int) -> np.ndarray:
    """Check that there is one label a row."""
    if np.shape(labels) != (n,):
        raise InputError(f"expected one value for each of {n} rows; got shape {np.shape(labels)}")
    return np.asarray(labels)


def _deal(data: Data, parts: list[np.ndarray]) -> list[Data]:
    """Take the rows of every part."""
    return [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], data) for i in parts]


def _cut(pool: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Take counts[0], counts[1], … rows from a pool, in order."""
    return np.split(pool[: counts.sum()], np.cumsum(counts)[:-1])


def _column(path: Any) -> str:
    """Name a column of a pytree for messages; nothing for a plain array."""
    name = jax.tree_util.keystr(path, simple=True, separator=".")
    return f", column {name}" if name else ""


def _describe(value: Any) -> str:
    """Say in a few words what was given."""
    return f"{type(value).__name__} {value!r}"[:80]
