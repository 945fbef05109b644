"""Readers of the formats that UCI keeps its data in, and of the converted files: each gives columns by name.

A damaged file makes them fail in many ways; `Dataset.load` turns that into one sentence.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

Columns = dict[str, np.ndarray]
Reader = Callable[[Sequence[Path], int | None], Columns]
BLOCK = 4 << 20  # bytes of text that the streaming reader holds at a time
PARTS = (1560, 1560, 1560, 1558, 1559)  # rows of isolet1 … isolet5


def needs(module: str, what: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return import_module(module)
    except ImportError:
        name = module.split(".")[0]
        raise ImportError(f"{what} needs the package {name}: pip install 'fsgld[data]'") from None


def numbers(names: Sequence[str] | None, separator: str | None = ",") -> Reader:
    """Read a text file of numbers; without names, its first line holds them."""

    def read(files: Sequence[Path], rows: int | None) -> Columns:
        with files[0].open(encoding="utf-8-sig") as lines:
            header = [x.strip(' "\n') for x in lines.readline().split(separator)] if names is None else names
            return _by_name(header, np.loadtxt(lines, delimiter=separator, ndmin=2, max_rows=rows))

    return read


def xls(names: Sequence[str]) -> Reader:
    """Read the first sheet of an Excel 97 file: one line of titles, then numbers."""

    def read(files: Sequence[Path], rows: int | None) -> Columns:
        sheet = needs("xlrd", f"reading {files[0].name}").open_workbook(files[0]).sheet_by_index(0)
        return _by_name(names, np.array([sheet.row_values(i) for i in range(1, sheet.nrows)][:rows], float))

    return read


def isolet(files: Sequence[Path], rows: int | None) -> Columns:
    """Read isolet1+2+3+4.data.Z and isolet5.data.Z: 617 features, then the letter's number."""
    unpack = needs("unlzw3", f"reading {files[0].name}").unlzw
    texts = (io.StringIO(unpack(file.read_bytes()).decode("ascii")) for file in files)
    table = np.concatenate([np.loadtxt(text, delimiter=",", ndmin=2) for text in texts])[:rows]
    part = np.repeat(np.arange(1, 6), PARTS)[: len(table)]
    return {"X": table[:, :-1].astype(np.float32), "y": table[:, -1].astype(np.uint8), "part": part.astype(np.uint8)}


def mixed(names: Sequence[str] | None, texts: Sequence[str], origin: str | None = None) -> Reader:
    """Read comma-separated files of numbers and text; empty or "?" is a missing number, NaN.

    Parameters
    ----------
    names
        The columns; without, the first line holds them.
    texts
        Those that hold text; "?" stays there.
    origin
        A first column to add, with what lies between the first and second dot of the file's name.
    """

    def read(files: Sequence[Path], rows: int | None) -> Columns:
        lines: list[list[str]] = []
        header = list(names or ())
        for file in files:
            content = _lines(file)
            if names is None:
                header, content = content[0], content[1:]
            where = [file.name.split(".")[1]] if origin else []
            lines += [where + line for line in content]
        if origin:
            header = [origin, *header]
        columns = zip(header, zip(*lines[:rows], strict=True), strict=True)
        return {key: _column(values, key == origin or key in texts) for key, values in columns}

    return read


def parquet(cast: type | None = None) -> Reader:
    """Read a Parquet file; numbers keep their types unless `cast`, text becomes text."""

    def read(files: Sequence[Path], rows: int | None) -> Columns:
        table = needs("pyarrow.parquet", f"reading {files[0].name}").read_table(files[0]).slice(0, rows)
        arrays = ((key, table[key].to_numpy()) for key in table.column_names)
        return {key: x.astype(str if x.dtype == object else cast or x.dtype) for key, x in arrays}

    return read


def npz(files: Sequence[Path], rows: int | None) -> Columns:
    """Read arrays from a NumPy archive."""
    with np.load(files[0], allow_pickle=False) as archive:
        return {key: archive[key][:rows] for key in archive.files}


def streamed(names: Sequence[str], types: Sequence[type], most: int) -> Reader:
    """Read a large comma-separated file (.gz or not) block by block into columns made beforehand.

    Parameters
    ----------
    names, types
        The columns, and the NumPy types to keep them in.
    most
        Rows to make room for.
    """

    def read(files: Sequence[Path], rows: int | None) -> Columns:
        room = most if rows is None else min(rows, most)
        columns: Columns = {key: np.empty(room, kind) for key, kind in zip(names, types, strict=True)}
        filled = 0
        for block in _blocks(files[0], names):
            take = min(block.num_rows, room - filled)
            for key, values in columns.items():
                values[filled : filled + take] = block[key].to_numpy(zero_copy_only=False)[:take]
            filled += take
            if filled == room:
                break
        return {key: values[:filled] for key, values in columns.items()}

    return read


def _blocks(file: Path, names: Sequence[str]) -> Iterable[Any]:
    """Go through a file of numbers in blocks of bounded size."""
    arrow, reader = needs("pyarrow", f"reading {file.name}"), needs("pyarrow.csv", f"reading {file.name}")
    options = {
        "read_options": reader.ReadOptions(column_names=list(names), block_size=BLOCK, use_threads=False),
        "convert_options": reader.ConvertOptions(column_types=dict.fromkeys(names, arrow.float32())),
    }
    with reader.open_csv(file, **options) as stream:
        yield from stream


def _by_name(names: Sequence[str], table: np.ndarray) -> Columns:
    """Give a table's columns their names."""
    return dict(zip(names, np.ascontiguousarray(table.T), strict=True))


def _column(values: Sequence[str], is_text: bool) -> np.ndarray:
    """Turn the words of one column into text or numbers."""
    return np.array(values, str) if is_text else np.array([x if x not in ("", "?") else "nan" for x in values], float)


def _lines(file: Path) -> list[list[str]]:
    """Split a comma-separated text, which may be packed with gzip, into words; lines without any are left out."""
    with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as text:
        lines = [[word.strip() for word in line] for line in csv.reader(text)]
    return [line for line in lines if any(line)]
