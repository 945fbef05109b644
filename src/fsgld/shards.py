"""The clients' data x_1 … x_S, checked, and helpers that split one data set into shards.

A data set is an array or a pytree of arrays (a tuple, a dict of columns) with equal first axes;
a row is what is left without that axis. Shards are a list of data sets, one a client, or a dict
from client name to data set. Client probabilities f_s are an argument of `fsgld.sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fsgld.checkpoint import digest
from fsgld.errors import InputError, brief, check_whole, is_number

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

    def fingerprint(self) -> str:
        """Say in one word which rows these are."""
        return digest(self.rows)

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


def gather(shards: list[Data] | dict[str, Data] | Shards) -> Shards:
    """Check the clients' data sets and put them into one table."""
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
    datasets = [jax.tree.map(np.asanyarray, data) for data in values]
    sizes = np.array([_check(data, name) for data, name in zip(datasets, names, strict=True)])
    for data, name in zip(datasets[1:], names[1:], strict=True):
        _check_alike(datasets[0], data, names[0], name)
    if sizes.sum() > 2**31 - 1:
        raise InputError(f"got {sizes.sum()} rows; one process can hold {2**31 - 1} at most, give fewer")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = jax.tree.map(lambda *parts: _join(parts), *datasets)
    return Shards(rows, starts.astype(np.int32), sizes.astype(np.int32), names)


def iid(data: Data, clients: int, seed: int = 0) -> list[Data]:
    """Deal the rows to clients at random, in parts as equal as can be."""
    order = _rng(seed).permutation(_clients(data, clients))
    return _deal(data, np.array_split(order, clients))


def by_column(data: Data, values: np.ndarray, clients: int) -> list[Data]:
    """Sort the rows by a column's values and cut into equal parts: each client sees one range."""
    _labels(values, _clients(data, clients), "values")
    return _deal(data, np.array_split(np.argsort(values, kind="stable"), clients))


def by_label(data: Data, labels: np.ndarray, clients: int | None = None) -> list[Data]:
    """Give each client classes of its own; class k goes to client k mod clients.

    By default there are as many clients as classes.
    """
    n = _clients(data, 1 if clients is None else clients)
    classes = np.unique(_labels(labels, n))
    clients = len(classes) if clients is None else clients
    if clients > len(classes):
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
    if positive.all() or not positive.any():
        raise InputError(f"beta needs labels of both kinds; got {positive.sum()} positive and {(~positive).sum()} not")
    for name, value in (("a", a), ("b", b)):
        if not is_number(value) or not value > 0:
            raise InputError(f"{name} must be a positive number; got {brief(value)}")
    if size is not None:
        check_whole(size=size)
    rng = _rng(seed)
    share = rng.beta(a, b, clients)
    pools = rng.permutation(np.flatnonzero(positive)), rng.permutation(np.flatnonzero(~positive))

    def fits(n: int) -> bool:
        ones = np.rint(share * n).sum()
        return bool(ones <= len(pools[0]) and n * clients - ones <= len(pools[1]))

    most = next(n for n in range(len(positive) // clients, -1, -1) if fits(n))
    size = most if size is None else size
    if size < 1 or not fits(size):
        raise InputError(
            f"{clients} shards of {size} rows need more rows of one label than there are (labels: {len(pools[0])}"
            f" positive, {len(pools[1])} not); with these shares at most {most} rows a shard are possible"
        )
    ones = np.rint(share * size).astype(int)
    parts = zip(_cut(pools[0], ones), _cut(pools[1], size - ones), strict=True)
    return _deal(data, [np.concatenate(pair) for pair in parts])


def dirichlet(data: Data, labels: np.ndarray, clients: int, concentration: float, seed: int = 0) -> list[Data]:
    """Deal each class to the clients in shares ~ Dirichlet(concentration) (Hsu et al., 2019)."""
    n = _clients(data, clients)
    labels, rng = _labels(labels, n), _rng(seed)
    if not is_number(concentration) or not concentration > 0:
        raise InputError(f"concentration must be a positive number; got {brief(concentration)}")
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
        _check_values(leaf, where)
    if len(leaves[0][1]) == 0:
        raise InputError(f"{name} has no rows; leave it out of the shards")
    return len(leaves[0][1])


def _check_values(leaf: np.ndarray, where: str) -> None:
    """Refuse masked values, NaN, infinities and what JAX's type cannot hold; block by block, to save memory."""
    target = jax.dtypes.canonicalize_dtype(leaf.dtype)
    if leaf.dtype.kind != "f" and target.itemsize == leaf.dtype.itemsize and not np.ma.isMaskedArray(leaf):
        return
    limits = np.finfo(target) if leaf.dtype.kind == "f" else np.iinfo(target)
    for begin in range(0, len(leaf), 65536):
        block = leaf[begin : begin + 65536]
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
                " all clients need the same columns"
            )


def _join(parts: Sequence[np.ndarray]) -> jax.Array:
    """Put arrays end to end; without a copy where they already lie so in one owner's memory."""
    ends = [part.ctypes.data + part.nbytes for part in parts]
    adjacent = all(part.flags.c_contiguous and _owner(part) is _owner(parts[0]) for part in parts) and all(
        end == part.ctypes.data for end, part in zip(ends, parts[1:], strict=False)
    )
    if not adjacent:
        return jnp.asarray(np.concatenate(parts))
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    # Not parts[0].strides: an axis of length 1 is contiguous whatever its stride
    line = np.lib.stride_tricks.as_strided(parts[0], (int(np.prod(shape)),), (parts[0].itemsize,))
    return jnp.asarray(line.reshape(shape))


def _owner(array: Any) -> Any:
    """Find the object that keeps an array's memory alive."""
    while getattr(array, "base", None) is not None:
        array = array.base
    return array


def _clients(data: Data, clients: int) -> int:
    """Check the data set to be split and the number of clients; give the number of rows."""
    n = _check(jax.tree.map(np.asanyarray, data), "the data set")
    whole = isinstance(clients, int | np.integer) and not isinstance(clients, bool)
    if not whole or not 1 <= clients <= n:
        raise InputError(f"clients must be a whole number from 1 to {n} (rows); got {brief(clients)}")
    return n


def _labels(labels: np.ndarray, n: int, what: str = "labels") -> np.ndarray:
    """Check that there is one label a row."""
    if np.shape(labels) != (n,):
        raise InputError(f"{what} must hold one value for each of {n} rows; got shape {np.shape(labels)}")
    return np.asarray(labels)


def _rng(seed: int) -> np.random.Generator:
    """Make a generator from a seed."""
    check_whole(0, seed=seed)
    return np.random.default_rng(seed)


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


def _columns(data: Data) -> str:
    """Name the columns of a data set for messages."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(data)]
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]
    if names == [""]:
        return "a plain array"
    return f"a {type(data).__name__} of columns {', '.join(names)}"[:150]
