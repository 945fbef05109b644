"""Columns: a user's arrays are read where they are only if that is safe, and give the same as a copy of them.

What is borrowed is large; tests lower that limit. On other devices nothing is borrowed.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from fsgld import columns
from fsgld.columns import Unaligned
from fsgld.rows import gather
from problems import logistic, regression
from test_conformance import DYNAMICS, FITS, LIKELIHOODS, SETTINGS

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="other devices have a memory of their own")
BASE = np.arange(40.0).reshape(20, 2)


@pytest.fixture(autouse=True)
def _borrow_small_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "LARGE", 0)


def placed(array: np.ndarray, offset: int) -> np.ndarray:
    """Copy an array to memory that begins so many bytes behind a multiple of 64."""
    raw = np.full(array.nbytes + 128, 255, np.uint8)  # NaN, should it be read as numbers
    begin = -raw.ctypes.data % 64 + offset
    copy = raw[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def end_to_end(shards: list[Any], offset: int) -> list[Any]:
    """Copy shards so that the rows of all clients follow one another, column by column."""
    places = np.cumsum([len(jax.tree.leaves(shard)[0]) for shard in shards])[:-1]
    whole = jax.tree.map(lambda *parts: placed(np.concatenate(parts), offset), *shards)
    split = jax.tree.map(lambda column: np.split(column, places), whole)
    return [
        jax.tree.map(lambda parts, s=s: parts[s], split, is_leaf=lambda x: isinstance(x, list))
        for s in range(len(shards))
    ]


def address(column: Any) -> int:
    """Say where the first row of a column is."""
    return np.asarray(column).ctypes.data


# --- what is borrowed


@pytest.mark.parametrize(
    ("parts", "borrowed"),
    [
        (lambda c: [c], True),
        (lambda c: [c[:5], c[5:6], c[6:]], True),
        (lambda c: [c[0:1:5], c[1:]], True),  # one row, whatever its stride
        (lambda c: [c[8:]], True),
        (lambda c: [c[3:]], True),
        (lambda c: [c[:5], c[6:]], False),
        (lambda c: [c[5:], c[:5]], False),
        (lambda c: [c, c], False),
        (lambda c: [c[::2], c[1::2]], False),
        (lambda c: [c[:, :1]], False),
        (lambda c: [np.broadcast_to(c[0], (4, 2)), c[1:]], False),
        (lambda c: [c[:5], c[5:].copy()], False),
        (lambda c: [np.asfortranarray(c)], False),
        (lambda c: [c.astype(">f8")], False),
        (lambda c: [jnp.asarray(c)], True),
        (lambda c: [jnp.asarray(c)[:5], jnp.asarray(c)[5:]], False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("offset", [0, 8, 16, 56])
def test_rows_that_lie_end_to_end_are_borrowed(parts: Callable, borrowed: bool, offset: int) -> None:
    given = [np.asarray(part) for part in parts(placed(BASE, offset))]
    table = gather(given, borrow=True)
    assert (address(table.rows) == given[0].ctypes.data) == borrowed
    np.testing.assert_array_equal(np.asarray(table.rows), np.concatenate(given))
    np.testing.assert_array_equal(table.shard(len(given) - 1), given[-1])
    assert address(gather(given).rows) != given[0].ctypes.data
    assert gather(given).fingerprint() == table.fingerprint()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int32, np.uint16, bool])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (8,)])
@pytest.mark.parametrize("offset", [0, 16, 40])
def test_rows_of_any_shape_and_type_are_fetched(dtype: type, shape: tuple[int, ...], offset: int) -> None:
    numbers = np.random.default_rng(0).integers(0, 100, (30, *shape))
    column = placed(numbers.astype(dtype), offset)
    rows = gather(np.split(column, [4, 11]), borrow=True).rows
    assert isinstance(rows, Unaligned) == (offset > 0)
    assert address(rows) == column.ctypes.data
    index = jnp.array([[3, 29, 0], [7, 7, 11]])
    for fetched in (columns.take(rows, index), jax.jit(columns.take)(rows, index)):
        assert fetched.dtype == dtype
        np.testing.assert_array_equal(fetched, column[np.asarray(index)])


def test_values_that_jax_would_convert_are_copied() -> None:
    column = placed(BASE, 16)
    with jax.enable_x64(False):
        table = gather([column], borrow=True)
        assert table.rows.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(table.rows), column)


def test_memory_that_no_number_begins_at_is_copied() -> None:
    column = placed(BASE, 3)
    table = gather([column], borrow=True)
    assert not isinstance(table.rows, Unaligned)
    np.testing.assert_array_equal(np.asarray(table.rows), BASE)


def test_small_columns_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    column = np.arange(columns.LARGE // 4, dtype=np.float32)
    assert address(gather([column], borrow=True).rows) == column.ctypes.data
    assert address(gather([column[1:]], borrow=True).rows) != column[1:].ctypes.data


def test_what_is_borrowed_is_kept_alive_and_let_go() -> None:
    class Watched(np.ndarray):
        pass

    column = placed(BASE, 16).view(Watched)
    watch = weakref.ref(column)
    table = gather([column[:5], column[5:]], borrow=True)
    del column
    gc.collect()
    assert watch() is not None
    np.testing.assert_array_equal(np.asarray(table.rows), BASE)
    del table
    gc.collect()
    assert watch() is None


# --- the same answers


@pytest.fixture(scope="module")
def problem() -> tuple:
    return logistic(sizes=(30, 25, 40))


@pytest.fixture
def borrowed(problem: tuple) -> list[Any]:
    """The same shards end to end in memory where JAX cannot begin an array."""
    shards = end_to_end(problem[1], 16)
    kinds = columns.over_columns(type, gather(shards, borrow=True).rows)
    assert set(jax.tree.leaves(kinds)) == {Unaligned}
    return shards


def assert_same(one: Any, other: Any) -> None:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.filterwarnings("ignore:variances may be")
@pytest.mark.parametrize(("dynamics", "slot"), list(itertools.product(DYNAMICS, LIKELIHOODS)))
def test_chains(problem: tuple, borrowed: list[Any], dynamics: str, slot: str) -> None:
    """Bit for bit, so that a run that was killed may go on with the data elsewhere in memory."""
    model, shards = problem
    surrogates = fsgld.fit(model, shards, fsgld.anchored)
    parts = {"dynamics": DYNAMICS[dynamics], "likelihood": LIKELIHOODS[slot]}
    one, other = (fsgld.sample(model, data, surrogates, **parts, **SETTINGS).draws for data in (shards, borrowed))
    assert_same(one, other)


@pytest.mark.parametrize("refresh", ["on_visit", 8])
@pytest.mark.parametrize("engine", ["compiled", "reference"])
def test_untouched_defaults(problem: tuple, borrowed: list[Any], refresh: str | int, engine: str) -> None:
    model, shards = problem
    run = {"rounds": 16, "chains": 2, "refresh": refresh, "mini_batches": "leverage", "engine": engine}
    one, other = (fsgld.sample(model, data, **run) for data in (shards, borrowed))
    assert_same(one.draws, other.draws)
    assert one.settings["preflight"] == other.settings["preflight"]


@pytest.mark.parametrize("method", sorted(set(FITS) - {"analytic"}))  # a logistic likelihood has no exact surrogate
def test_fits(problem: tuple, borrowed: list[Any], method: str) -> None:
    model, shards = problem
    function, options = FITS[method]
    assert_same(*(fsgld.fit(model, data, function, **options) for data in (shards, borrowed)))


def test_data_may_be_changed_as_soon_as_a_fit_has_returned() -> None:
    """JAX may still be computing when its functions return; `fit` waits for it."""
    model = fsgld.Model(lambda p: -0.5 * jnp.sum(p**2), lambda p, x: -0.5 * jnp.sum((x - p) ** 2), jnp.zeros(2))
    column = placed(np.ones((2**20, 2)), 16)  # takes some 20 ms to go through, and less to overwrite
    for _ in range(2):  # the second time nothing is compiled
        column[...] = 1
        (q,) = fsgld.fit(model, [column], fsgld.laplace)
        column[...] = 7
        np.testing.assert_allclose(q.shift, [2**20, 2**20])


def test_the_first_look(problem: tuple, borrowed: list[Any]) -> None:
    model, shards = problem
    for question in (fsgld.preflight, fsgld.approximate):
        one, other = (str(question(model, data)) for data in (shards, borrowed))
        assert one == other


def test_a_method_of_ones_own_gets_rows_that_stay(problem: tuple, borrowed: list[Any]) -> None:
    model, _ = problem
    seen: list[Any] = []

    def method(model: fsgld.Model, data: Any) -> fsgld.Gaussian:
        seen.append(data)
        return fsgld.anchored(model, data)

    fsgld.fit(model, borrowed, method)
    before = jax.tree.map(np.array, borrowed)
    for column in jax.tree.leaves(borrowed):
        column[...] = 7
    assert_same(jax.tree.map(np.asarray, seen), before)


def test_a_run_goes_on_from_its_checkpoint_with_the_data_elsewhere(
    problem: tuple, borrowed: list[Any], tmp_path: Path
) -> None:
    model, shards = problem
    run = {"dynamics": fsgld.langevin(1e-3), **SETTINGS, "checkpoint": tmp_path / "run"}
    first = fsgld.sample(model, borrowed, **run)
    last = sorted((tmp_path / "run" / "calls").iterdir())[-1]
    last.unlink()
    assert_same(fsgld.sample(model, shards, **run).draws, first.draws)


def test_rows_in_a_mapped_file(tmp_path: Path) -> None:
    """What `np.load(..., mmap_mode="r")` gives begins at a multiple of 64 bytes and is not copied."""
    model, shards = regression(sizes=(30, 25, 40))
    for i in range(2):
        np.save(tmp_path / f"{i}.npy", np.concatenate([shard[i] for shard in shards]))
    X, y = (np.load(tmp_path / f"{i}.npy", mmap_mode="r") for i in range(2))
    mapped = [(X[i:j], y[i:j]) for i, j in ((0, 30), (30, 55), (55, 95))]
    table = gather(mapped, borrow=True)
    assert [address(column) for column in table.rows] == [X.ctypes.data, y.ctypes.data]
    one, other = (fsgld.sample(model, data, **SETTINGS).draws for data in (shards, mapped))
    assert_same(one, other)


def test_a_row_that_is_not_finite_is_named(problem: tuple, borrowed: list[Any]) -> None:
    """Errors count rows of the client, wherever its rows are."""
    model, _ = problem
    bad = fsgld.Model(model.log_prior, lambda p, row: jnp.log(jnp.sum(jax.tree.leaves(row)[0])), model.init)
    with pytest.raises(fsgld.InputError, match=r"client \d: .*row \d+"):
        fsgld.sample(bad, borrowed, **SETTINGS)
