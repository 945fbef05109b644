"""Shards: every row reaches its client exactly once, whatever the data look like in memory.

A row lost, doubled or read from a wrong place would give a wrong posterior without a sign.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch

from fsgld import InputError, columns, shards
from fsgld.rows import Shards, gather

N = 60
RNG = np.random.default_rng(2021)
LABELS = RNG.permuted(np.arange(N) % 3)
SIGNS = RNG.permuted(np.where(np.arange(N) < 25, 1, -1))
VALUES = RNG.normal(size=N)
quickly = settings(max_examples=60, deadline=None, derandomize=True, database=None)


class Table(NamedTuple):
    """A data set of several columns."""

    number: Any
    more: Any


def table(n: int = N) -> Table:
    """Give rows that can be told apart, in columns of every kind."""
    number = np.arange(n)
    x = 10.0 * number[:, None] + np.arange(3)
    return Table(number, {"x": x, "flag": number % 2 == 0, "half": number.astype(np.float32) / 2})


def numbers(parts: list[Any]) -> list[list[int]]:
    """Give the numbers of the rows each client has, and check that rows were kept whole."""
    whole = table()
    for part in parts:
        assert jax.tree.structure(part) == jax.tree.structure(whole)
        for ours, theirs in zip(jax.tree.leaves(part), jax.tree.leaves(whole), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs[part.number])
    return [part.number.tolist() for part in parts]


def dealt_once(parts: list[list[int]]) -> bool:
    return sorted(row for part in parts for row in part) == list(range(N))


# --- splitting helpers

HELPERS: dict[str, Callable[..., list[Any]]] = {
    "iid": lambda data, clients, seed: shards.iid(data, clients, seed),
    "by_column": lambda data, clients, seed: shards.by_column(data, VALUES, clients),
    "by_label": lambda data, clients, seed: shards.by_label(data, LABELS, min(clients, 3)),
    "dirichlet": lambda data, clients, seed: shards.dirichlet(data, LABELS, clients, 5.0, seed),
}


@pytest.mark.parametrize("name", HELPERS)
@pytest.mark.parametrize("clients", [1, 2, 3, 7])
def test_every_row_is_dealt_once(name: str, clients: int) -> None:
    split = HELPERS[name]
    parts = numbers(split(table(), clients, 0))
    assert len(parts) == (min(clients, 3) if name == "by_label" else clients)
    assert all(parts)
    assert dealt_once(parts)
    assert parts == numbers(split(table(), clients, 0))


@pytest.mark.parametrize("name", ["iid", "dirichlet"])
def test_seed_changes_the_split(name: str) -> None:
    first, second = (numbers(HELPERS[name](table(), 4, seed)) for seed in (0, 1))
    assert first != second
    assert dealt_once(second)


@quickly
@given(n=st.integers(1, 40), data=st.data())
def test_iid_parts_are_as_equal_as_can_be(n: int, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, n))
    parts = shards.iid(np.arange(n), clients, seed=data.draw(st.integers(0, 2**32)))
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(n))


def test_iid_does_not_keep_the_order() -> None:
    """The data may be sorted, so a plain cut would not be iid."""
    assert numbers(shards.iid(table(), 2))[0] != list(range(N // 2))


@quickly
@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=30), data=st.data())
def test_by_column_gives_each_client_one_range(values: list[int], data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, len(values)))
    rows = np.arange(len(values))
    parts = shards.by_column(rows, np.array(values), clients)
    joined = np.concatenate(parts)
    assert sorted(joined.tolist()) == rows.tolist()
    assert joined.tolist() == sorted(rows.tolist(), key=values.__getitem__)  # ties keep their order
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_by_column_sorts_text() -> None:
    parts = shards.by_column(np.arange(4), np.array(["d", "b", "a", "c"]), 2)
    assert [part.tolist() for part in parts] == [[2, 1], [3, 0]]


@quickly
@given(labels=st.lists(st.sampled_from("abcde"), min_size=1, max_size=30), data=st.data())
def test_by_label_gives_each_client_its_own_classes(labels: list[str], data: st.DataObject) -> None:
    classes = sorted(set(labels))
    clients = data.draw(st.integers(1, len(classes)))
    parts = shards.by_label(np.arange(len(labels)), np.array(labels), clients)
    for s, part in enumerate(parts):
        want = [i for i, label in enumerate(labels) if classes.index(label) % clients == s]
        assert part.tolist() == want
    assert len(parts) == clients


def test_by_label_has_a_client_a_class_by_default() -> None:
    parts = numbers(shards.by_label(table(), LABELS))
    assert [set(LABELS[part].tolist()) for part in parts] == [{0}, {1}, {2}]
    assert dealt_once(parts)


def shares(seed: int, clients: int, a: float, b: float) -> np.ndarray:
    """Draw π_s ~ Beta(a, b) as documented: the first numbers of the seed's generator."""
    return np.random.default_rng(seed).beta(a, b, clients)


@pytest.mark.parametrize("labels", [SIGNS, SIGNS > 0, (SIGNS > 0).astype(float), 5 * SIGNS])
def test_beta_takes_any_two_signs(labels: np.ndarray) -> None:
    assert numbers(shards.beta(table(), labels, 4, 2.0, 3.0)) == numbers(shards.beta(table(), SIGNS, 4, 2.0, 3.0))


@quickly
@given(
    n=st.integers(60, 400),
    positive=st.floats(0.3, 0.7),
    clients=st.integers(1, 6),
    a=st.floats(0.3, 5),
    b=st.floats(0.3, 5),
    seed=st.integers(0, 2**31),
)
def test_beta_shares(n: int, positive: float, clients: int, a: float, b: float, seed: int) -> None:
    """Equal sizes, each row at most once, and the label shares π_s up to half a row."""
    labels = np.arange(n) < positive * n
    parts = shards.beta(np.arange(n), labels, clients, a, b, seed=seed)
    size = len(parts[0])
    assert [len(part) for part in parts] == [size] * clients
    joined = np.concatenate(parts)
    assert len(np.unique(joined)) == len(joined)
    ones = np.array([labels[part].sum() for part in parts])
    assert np.abs(ones - shares(seed, clients, a, b) * size).max() <= 0.5 + 1e-9
    again = shards.beta(np.arange(n), labels, clients, a, b, seed=seed)
    np.testing.assert_array_equal(joined, np.concatenate(again))


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 8.0), (8.0, 0.5)])
def test_beta_takes_the_most_that_the_data_allow(a: float, b: float) -> None:
    """As documented for size=None; a row more for each is refused, naming the most."""
    labels = np.arange(200) < 100
    for seed in range(30):
        size = len(shards.beta(np.arange(200), labels, 5, a, b, seed=seed)[0])
        ones = np.rint(shares(seed, 5, a, b) * (size + 1))
        assert ones.sum() > 100 or 5 * (size + 1) - ones.sum() > 100
        with pytest.raises(InputError, match=f"at most {size} rows"):
            shards.beta(np.arange(200), labels, 5, a, b, size=size + 1, seed=seed)


def test_beta_of_a_given_size() -> None:
    parts = numbers(shards.beta(table(), SIGNS, 4, 2.0, 3.0, size=7, seed=3))
    assert [len(part) for part in parts] == [7] * 4
    ones = [int((SIGNS[part] > 0).sum()) for part in parts]
    assert ones == np.rint(7 * shares(3, 4, 2.0, 3.0)).astype(int).tolist()
    assert parts != numbers(shards.beta(table(), SIGNS, 4, 2.0, 3.0, size=7, seed=4))


def test_dirichlet_concentration_rules_how_uneven_clients_are() -> None:
    """Standard deviation over clients of a class's share, from one class a client to iid."""
    labels, spread = np.arange(2000) % 2, []
    for concentration in (0.3, 3.0, 3000.0):
        parts = shards.dirichlet(np.arange(2000), labels, 4, concentration)
        assert sorted(np.concatenate(parts).tolist()) == list(range(2000))
        spread.append(np.std([labels[part].mean() for part in parts]))
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 0.05


def test_splits_take_jax_arrays_and_single_arrays() -> None:
    parts = shards.iid(jnp.arange(10.0), 3)
    assert sorted(np.concatenate(parts).tolist()) == np.arange(10.0).tolist()
    assert shards.by_label(np.arange(4), jnp.array([1, 0, 1, 0]))[0].tolist() == [1, 3]


def test_splits_feed_gather() -> None:
    """What a helper returns is what `sample` takes."""
    parts = shards.dirichlet(table(), LABELS, 5, 1.0)
    gathered = gather(parts)
    assert gathered.sizes.tolist() == [len(part.number) for part in parts]
    for s, part in enumerate(parts):
        jax.tree.map(np.testing.assert_array_equal, gathered.shard(s), part)


# --- gather


def assert_gathered(parts: list[Any], borrow: bool = False) -> None:
    """Check that every client finds its own rows, in order, and nothing else."""
    gathered = gather(parts, borrow)
    assert len(gathered) == len(parts)
    assert gathered.names == tuple(f"client {s}" for s in range(len(parts)))
    assert gathered.sizes.tolist() == [len(jax.tree.leaves(part)[0]) for part in parts]
    assert gathered.starts.tolist() == [0, *np.cumsum(gathered.sizes)[:-1].tolist()]
    rows = columns.over_columns(np.asarray, gathered.rows)
    for part, start, size in zip(parts, gathered.starts, gathered.sizes, strict=True):
        mine = jax.tree.map(lambda leaf, i=start, n=size: leaf[i : i + n], rows)
        jax.tree.map(np.testing.assert_array_equal, mine, part)
        if borrow:
            fetched = columns.take(gathered.rows, start + np.arange(size))
            jax.tree.map(np.testing.assert_array_equal, fetched, part)
    assert all(len(leaf) == gathered.sizes.sum() for leaf in jax.tree.leaves(rows))


BASE = np.arange(40.0).reshape(20, 2)
WIDE = np.arange(120.0).reshape(20, 6)
COLUMN = np.arange(20.0)
# Shapes of length 1 count as contiguous whatever their stride: the traps are marked with a *
VIEWS: dict[str, list[Any]] = {
    "one": [BASE],
    "adjacent": [BASE[:5], BASE[5:6], BASE[6:]],
    "adjacent vectors": [COLUMN[:1], COLUMN[1:2], COLUMN[2:]],
    "gap": [BASE[:5], BASE[6:]],
    "swapped": [BASE[5:], BASE[:5]],
    "overlapping": [BASE[:7], BASE[3:]],
    "the same twice": [BASE, BASE],
    "reversed": [BASE[9::-1], BASE[10:]],
    "reversed whole": [BASE[::-1][:10], BASE[::-1][10:]],
    "every second": [BASE[::2], BASE[1::2]],
    "every second, adjacent by address": [BASE[0:10:2], BASE[5:]],
    "some columns": [WIDE[:5, :2], WIDE[5:, :2]],
    "some columns, adjacent by address": [WIDE[:1, :2], WIDE[:1, 2:4], WIDE[:1, 4:]],
    "Fortran order": [np.asfortranarray(BASE[:5]), np.asfortranarray(BASE[5:])],
    "rows of a Fortran array": [np.asfortranarray(BASE)[:5], np.asfortranarray(BASE)[5:]],
    "transposed": [BASE.reshape(2, 20).T[:5], BASE.reshape(2, 20).T[5:]],
    "broadcast rows": [np.broadcast_to(BASE[0], (4, 2)), BASE[1:]],
    "broadcast after rows": [BASE[:3], np.broadcast_to(BASE[3], (4, 2))],
    "broadcast number": [np.broadcast_to(1.0, (4, 2)), np.broadcast_to(2.0, (3, 2))],
    "broadcast columns": [np.broadcast_to(BASE[:3, :1], (3, 2)), BASE[3:]],
    "* one broadcast row": [np.broadcast_to(BASE[0], (1, 2)), BASE[1:4]],
    "* one of every fifth row": [BASE[0:1:5], BASE[1:4]],
    "* one row, reversed": [BASE[4:3:-1], BASE[5:9]],
    "* one row of a Fortran array": [np.asfortranarray(BASE[:1]), BASE[1:4]],
    "* one element, reversed": [COLUMN[4:3:-1], COLUMN[5:9]],
    "* single rows, far apart by stride": [BASE[0:1:7], BASE[1:2:7], BASE[2:3:7]],
    "* one broadcast element of a column": [np.broadcast_to(COLUMN[0], (1,)), COLUMN[1:9]],
    "* one column, broadcast": [np.broadcast_to(COLUMN[:1], (1, 1)), COLUMN[1:4, None]],
    "rows without numbers": [np.zeros((3, 0)), np.zeros((4, 0))],
    "higher rank": [np.arange(48.0).reshape(6, 2, 4)[:2], np.arange(48.0).reshape(6, 2, 4)[2:]],
    "higher rank, views": np.split(np.arange(48.0).reshape(6, 2, 4), [1, 3]),
    "higher rank, swapped": np.split(np.arange(48.0).reshape(6, 4, 2).swapaxes(1, 2), [1, 3]),
    "booleans": [COLUMN[:5] > 2, COLUMN[5:] > 12],
    "small integers": [np.arange(9, dtype=np.int8)[:1], np.arange(9, dtype=np.int8)[1:]],
    "big-endian": [BASE[:5].astype(">f8"), BASE[5:].astype(">f8")],
    "JAX arrays": [jnp.asarray(BASE[:5]), jnp.asarray(BASE[5:])],
    "JAX and NumPy arrays": [jnp.asarray(BASE[:5]), BASE[5:]],
    "adjacent in one column only": [(BASE[:5], COLUMN[:5]), (BASE[5:], COLUMN[19:4:-1])],
}  # fmt: skip


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_gather_reads_the_right_rows(monkeypatch: MonkeyPatch, name: str, borrow: bool) -> None:
    monkeypatch.setattr(columns, "LARGE", 0)
    assert_gathered(VIEWS[name], borrow)


@st.composite
def views(draw: st.DrawFn, base: np.ndarray) -> np.ndarray:
    """Take a slice of a base array, of any step and any length from 1, or a repeated row."""
    n = len(base)
    start = draw(st.integers(0, n - 1))
    if draw(st.integers(0, 4)) == 0:
        return np.broadcast_to(base[start], (draw(st.integers(1, 3)), *base.shape[1:]))
    step = draw(st.sampled_from([1, 1, 1, 2, 5, -1, -3]))
    room = (n - 1 - start if step > 0 else start) // abs(step) + 1
    stop = start + step * draw(st.integers(1, min(room, 4)))
    return base[start : (stop if stop >= 0 else None) : step]


@settings(quickly, max_examples=300)
@given(data=st.data(), fortran=st.booleans(), borrow=st.booleans(), width=st.integers(0, 2))
def test_gather_reads_the_right_rows_of_any_views(data: st.DataObject, fortran: bool, borrow: bool, width: int) -> None:
    base = np.arange(8.0 * max(width, 1)).reshape(8, *([width] if width else []))
    base = np.asfortranarray(base) if fortran else base
    with MonkeyPatch.context() as patch:
        patch.setattr(columns, "LARGE", 0)
        assert_gathered(data.draw(st.lists(views(base), min_size=1, max_size=4)), borrow)


@settings(quickly, max_examples=100)
@given(cuts=st.sets(st.integers(1, N - 1), max_size=8))
def test_gather_joins_a_cut_table(cuts: set[int]) -> None:
    """Cut every column of a table in the same places: unequal sizes, many kinds of columns."""
    edges = [0, *sorted(cuts), N]
    parts = [jax.tree.map(lambda leaf, i=i, j=j: leaf[i:j], table()) for i, j in pairwise(edges)]
    assert_gathered(parts)
    whole = gather(parts).rows
    jax.tree.map(np.testing.assert_array_equal, whole, table())


@pytest.mark.parametrize("separate", [True, False])
def test_gather_copies_once(separate: bool) -> None:
    """The table is the only copy: what NumPy has put together JAX takes as it is. The user's memory may change."""
    whole = np.repeat(np.arange(4.0), 2**18).reshape(-1, 4)
    parts = [part.copy() if separate else part for part in np.split(whole, 4)]
    tracemalloc.start()
    gathered = gather(parts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert whole.nbytes <= peak < 1.1 * whole.nbytes
    if jax.default_backend() == "cpu":  # no other copy in memory that tracemalloc does not see
        assert gathered.rows.unsafe_buffer_pointer() % 64 == 0
        assert np.asarray(gathered.rows).ctypes.data == gathered.rows.unsafe_buffer_pointer()
    for part in parts:
        part[:] = -1
    np.testing.assert_array_equal(np.asarray(gathered.rows)[:: 2**16, 0], [0, 1, 2, 3])


@pytest.mark.parametrize("value", [1e300, np.inf])
def test_rows_of_another_byte_order_are_checked(value: float) -> None:
    with jax.enable_x64(False), pytest.raises(InputError, match="row 1 holds"):
        gather([np.array([0.0, value], ">f8")])


def test_gathered_rows_outlive_the_shards() -> None:
    """The table keeps the memory alive that it reads."""

    def make() -> Shards:
        base = np.arange(400_000.0).reshape(-1, 4)
        return gather([base[:30_000], base[30_000:]])

    gathered = make()
    junk = [np.full((100_000, 4), -1.0) for _ in range(5)]
    np.testing.assert_array_equal(gathered.rows.ravel(), np.arange(400_000.0))
    del junk


def test_gather_keeps_names_and_their_order() -> None:
    gathered = gather({"Oslo": BASE[:5], "Bergen": BASE[5:], 7: BASE[:1]})
    assert gathered.names == ("Oslo", "Bergen", "7")
    np.testing.assert_array_equal(gathered.shard(1), BASE[5:])


def test_gather_takes_what_it_gave() -> None:
    gathered = gather([BASE])
    assert gather(gathered) is gathered


def test_gather_has_jax_dtypes() -> None:
    """Single precision unless JAX has double on; whole numbers and booleans stay what they are."""
    parts = [(BASE, COLUMN.astype(int), COLUMN > 3)]
    assert [leaf.dtype for leaf in gather(parts).rows] == [np.float64, np.int64, np.bool_]
    with jax.enable_x64(False):
        dtypes = [leaf.dtype for leaf in gather(parts).rows]
    assert dtypes == [np.float32, np.int32, np.bool_]


# --- refusals (those of gather are in test_bad_input.py)


X = np.arange(10.0)
Y = np.arange(10) % 2
SPLITS: dict[str, Callable[[Any], Any]] = {
    "iid": lambda clients: shards.iid(X, clients),
    "by_column": lambda clients: shards.by_column(X, X, clients),
    "by_label": lambda clients: shards.by_label(X, X, clients),
    "beta": lambda clients: shards.beta(X, Y, clients, 1.0, 1.0),
    "dirichlet": lambda clients: shards.dirichlet(X, Y, clients, 1.0),
}
NAN = np.where(X == 6, np.nan, X)
REFUSED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    **{
        f"{name}, clients={clients!r}": (
            lambda split=split, clients=clients: split(clients),
            ("clients", "1 to 10", repr(clients)),
        )
        for name, split in SPLITS.items()
        for clients in (0, -1, 11, 2.5, "2", True, *([] if name == "by_label" else [None]))
    },
    "more clients than classes": (
        lambda: shards.by_label(X, Y, 3), ("clients", "1 to 2", "class", "3")
    ),
    "no rows": (lambda: shards.iid(X[:0], 1), ("the data set", "no rows")),
    "no columns": (lambda: shards.iid({}, 1), ("the data set", "no array", "{}")),
    "a number": (lambda: shards.iid(3.0, 1), ("the data set", "scalar", "array")),
    "text": (lambda: shards.iid(np.array(["a"]), 1), ("the data set", "<U1", "numbers")),
    "NaN": (lambda: shards.iid({"x": NAN}, 2), ("the data set", "column x", "row 6", "nan")),
    "columns of unequal length": (
        lambda: shards.iid((X, X[:9]), 2), ("the data set", "column 1", "9 rows", "10")
    ),
    "labels of another length": (
        lambda: shards.by_label(X, Y[:9]), ("labels", "10 rows", "(9,)")
    ),
    "labels of one hot": (
        lambda: shards.dirichlet(X, np.eye(10), 2, 1.0), ("labels", "10 rows", "(10, 10)")
    ),
    "beta labels of another length": (
        lambda: shards.beta(X, Y[:3], 2, 1.0, 1.0), ("labels", "10 rows", "(3,)")
    ),
    "values of another length": (
        lambda: shards.by_column(X, X[:9], 2), ("values", "10 rows", "(9,)")
    ),
    "the column's name": (lambda: shards.by_column({"x": X}, "x", 2), ("values", "10 rows", "()")),
    "bad seed": (lambda: shards.iid(X, 2, seed=-1), ("seed", "-1")),
    "beta, bad seed": (lambda: shards.beta(X, Y, 2, 1.0, 1.0, seed="a"), ("seed", "'a'")),
    "dirichlet, bad seed": (lambda: shards.dirichlet(X, Y, 2, 1.0, seed=1.5), ("seed", "1.5")),
    "beta, a": (lambda: shards.beta(X, Y, 2, 0.0, 1.0), ("a must", "positive", "0.0")),
    "beta, b": (lambda: shards.beta(X, Y, 2, 1.0, -1.0), ("b must", "positive", "-1.0")),
    "beta, NaN": (lambda: shards.beta(X, Y, 2, np.nan, 1.0), ("a must", "positive", "nan")),
    "beta, text": (lambda: shards.beta(X, Y, 2, "x", 1.0), ("a must", "positive", "'x'")),
    "beta, no size": (
        lambda: shards.beta(X, Y, 2, 1.0, 1.0, size=0), ("size", "at least 1", "0")
    ),
    "beta, half a row": (
        lambda: shards.beta(X, Y, 2, 1.0, 1.0, size=1.5), ("size", "whole number", "1.5")
    ),
    "beta, too large": (
        lambda: shards.beta(X, Y, 2, 1.0, 1.0, size=8), ("2 shards of 8 rows", "at most")
    ),
    "beta, one class": (
        lambda: shards.beta(X, Y + 1, 2, 1.0, 1.0), ("labels", "10 positive", "0")
    ),
    **{
        f"dirichlet, concentration={value!r}": (
            lambda value=value: shards.dirichlet(X, Y, 2, value),
            ("concentration", "positive", repr(value)),
        )
        for value in (0.0, -1.0, np.nan, np.inf, "x", None)
    },
    "dirichlet, too uneven": (
        lambda: shards.dirichlet(X, Y, 8, 1e-3), ("8 clients", "0.001", "fewer clients")
    ),
    "dirichlet, next to nothing": (
        lambda: shards.dirichlet(X, Y, 8, 1e-310), ("8 clients", "1e-310", "fewer clients")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_splits_refuse_in_words(name: str) -> None:
    misuse, words = REFUSED[name]
    with pytest.raises(InputError) as caught:
        misuse()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, f"{word!r} is missing in: {message}"


def test_data_frames_are_dicts_of_columns() -> None:
    """By position, columns in another order would give a wrong posterior without a word."""
    frame = pd.DataFrame({"x": np.arange(6.0), "n": np.arange(6), "ok": np.arange(6) > 2})
    gathered = gather({"Oslo": frame[:2], "Bergen": frame[2:][["ok", "x", "n"]]})
    for name, column in frame.items():
        np.testing.assert_array_equal(gathered.rows[name], column)
    with pytest.raises(InputError, match=r"Bergen has a dict of columns n, ok, z, but Oslo has .* n, ok, x"):
        gather({"Oslo": frame, "Bergen": frame.rename(columns={"x": "z"})})
    with pytest.raises(InputError, match="client 0: a data frame has two columns of one name"):
        gather([frame[["x", "x"]]])
    np.testing.assert_array_equal(gather([pd.DataFrame(BASE)]).rows, BASE)  # no names: an array
    parts = shards.by_column(frame, frame["x"], 2)
    assert [sorted(part) for part in parts] == [["n", "ok", "x"]] * 2
    np.testing.assert_array_equal(parts[1]["n"], [3, 4, 5])


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (lambda: shards.beta(np.arange(4), np.array(["a", "b", "a", "b"]), 2, 1.0, 1.0), "labels that are numbers"),
        (lambda: shards.by_label(np.arange(4), np.array([1, "b", 2, "c"], object), 2), "of one kind"),
        (lambda: shards.by_column(np.arange(4), np.array([1, np.nan, 2, 3]), 2), "row 1 has none"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(split: Callable, message: str) -> None:
    with pytest.raises(InputError, match=message):
        split()
