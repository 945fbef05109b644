"""Helpers that split one data set into shards, one a client, to simulate clients that differ.

A data set is an array or a pytree of arrays (a tuple, a dict of columns) with equal first axes. Rows are used once.
"""

from __future__ import annotations

import jax
import numpy as np

from fsgld.errors import InputError, brief, check_whole, first_line, is_number
from fsgld.rows import Data, check_rows, read


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
    labels = _labels(labels, _clients(data, clients))
    if labels.dtype.kind not in "biuf":
        raise InputError(f"beta needs labels that are numbers, positive or not; got values of type {labels.dtype}")
    positive = labels > 0
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


def _clients(data: Data, clients: int) -> int:
    """Check the data set to be split and the number of clients; give the number of rows."""
    n = check_rows(read(data, "the data set"), "the data set")
    whole = isinstance(clients, int | np.integer) and not isinstance(clients, bool)
    if not whole or not 1 <= clients <= n:
        raise InputError(f"clients must be a whole number from 1 to {n} (rows); got {brief(clients)}")
    return n


def _labels(labels: np.ndarray, n: int, what: str = "labels") -> np.ndarray:
    """Check that there is one label a row."""
    if np.shape(labels) != (n,):
        raise InputError(f"{what} must hold one value for each of {n} rows; got shape {np.shape(labels)}")
    array = np.asarray(labels)
    try:
        missing = bool((array != array).any())  # NaN
        np.sort(array)  # fails for numbers beside text
    except TypeError as error:
        raise InputError(f"{what} must be of one kind, all numbers or all text; {first_line(error)}") from error
    if missing:
        raise InputError(f"{what} must not be missing; row {int(np.argmax(array != array))} has none")
    return array


def _rng(seed: int) -> np.random.Generator:
    """Make a generator from a seed."""
    check_whole(0, seed=seed)
    return np.random.default_rng(seed)


def _deal(data: Data, parts: list[np.ndarray]) -> list[Data]:
    """Take the rows of every part."""
    arrays = read(data, "the data set")
    return [jax.tree.map(lambda leaf, i=i: np.asarray(leaf)[i], arrays) for i in parts]


def _cut(pool: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Take counts[0], counts[1], … rows from a pool, in order."""
    return np.split(pool[: counts.sum()], np.cumsum(counts)[:-1])
