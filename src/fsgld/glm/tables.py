"""Reading a site's table: separators and encodings are found out, only the columns needed are kept, memory is watched.

Cells are read as text. A column whose cells are all numbers (or missing) is numeric, any other is text.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fsgld.errors import InputError, brief, first_line

MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?", ".", "<NA>")
SEPARATORS = (",", ";", "\t", "|")
CHUNK = 2**20  # cells that are parsed at once
SHARE = 0.8  # of the free memory that may be taken
COPIES = 6  # of the columns that are there at the same time, from the table to the model's rows
SMALL = 2**26  # bytes that nobody asks about


class Layout(NamedTuple):
    """How a file is written."""

    encoding: str
    separator: str
    header: tuple[str, ...]


def read(path: str | Path, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Read a delimited text file; numeric columns become floats, others text with None where a value is missing.

    Parameters
    ----------
    path
        Comma, semicolon, tab or bar separated; UTF-8 (with or without a mark), UTF-16 or Windows-1252; with a header.
    columns
        The ones to keep if they are there; all by default.

    Returns
    -------
    DataFrame
        `attrs["columns"]` has the whole header, `attrs["file"]` the path.
    """
    path = Path(path)
    layout = look(path)
    wanted = [name for name in layout.header if columns is None or name in columns]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in wanted}
    try:
        for chunk in _chunks(path, layout, wanted) if wanted else ():
            for name in wanted:
                parts[name].append(chunk[name])
    except UnicodeError:
        raise InputError(f"{path}: the text is not {layout.encoding} throughout; save the file as UTF-8") from None
    except MemoryError:
        raise InputError(f"{path}: not enough memory to read it; use a machine with more, or fewer columns") from None
    except (csv.Error, OSError) as error:
        raise InputError(f"{path}: cannot be read as a table ({_reason(error)}); mend that line") from None
    table = pd.DataFrame({name: _typed(parts[name], layout.separator) for name in wanted})
    table.attrs |= {"columns": list(layout.header), "file": str(path)}
    if not layout.header or (wanted and not len(table)):
        raise InputError(f"{path} has a header but no rows; leave the file out or give one with rows")
    _check_finite(table, path)
    return table


def to_numbers(column: np.ndarray) -> np.ndarray:
    """Turn cells of text into floats if all are numbers or missing, as `read` does; numbers stay as they are."""
    return column if column.dtype.kind in "biuf" else _numbers(np.asarray(column, object), ",")


def look(path: Path) -> Layout:
    """Find out how a file is written from its beginning."""
    try:
        with path.open("rb") as stream:
            head = stream.read(2**16)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give the path of a table with a header") from None
    if not head.strip():
        raise InputError(f"{path} is empty; give a table with a header")
    encoding = _encoding(head)
    text = head.decode(encoding, errors="replace").lstrip("\ufeff")
    if "\0" in text:
        raise InputError(f"{path} is not a text file; give a table as comma separated values")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty; give a table with a header")
    separator = _separator(lines)
    try:
        header = next(csv.reader(lines[:1], delimiter=separator))
    except (csv.Error, StopIteration):
        raise InputError(f"{path}: the first line is no header; it must name the columns") from None
    names = tuple(name.strip() for name in header)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path}: two columns read {brief(twice[0])}; give each column a name of its own")
    return Layout(encoding, separator, names)


def _encoding(head: bytes) -> str:
    """Guess the encoding: a mark decides, else UTF-8 if it fits, else Windows-1252."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for cut in range(4):  # the block may end inside a character
        try:
            head[: len(head) - cut].decode("utf-8")
            return "utf-8-sig"
        except UnicodeDecodeError:
            continue
    return "cp1252" if not any(byte in head for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)) else "latin-1"


def _separator(lines: list[str]) -> str:
    """Guess the separator: the one that cuts the header and the first lines into equally many, and most, cells."""
    best, most = ",", (False, 1)
    for separator in SEPARATORS:
        try:
            counts = [len(row) for row in csv.reader(lines[:20], delimiter=separator)]
        except csv.Error:
            continue
        full = counts[:-1] if len(counts) > 2 else counts  # the last line may be cut
        score = (len(set(full)) == 1, counts[0])
        if counts[0] > 1 and score > most:
            best, most = separator, score
    return best


def _chunks(path: Path, layout: Layout, wanted: list[str]) -> Iterator[dict[str, np.ndarray]]:
    """Parse the file piece by piece; refuse as soon as the whole would not fit into memory."""
    size, free, held, done = path.stat().st_size, free_memory(), 0.0, 0
    places = [layout.header.index(name) for name in wanted]
    with path.open("rb") as raw, io.TextIOWrapper(raw, encoding=layout.encoding, newline="") as stream:
        lines = csv.reader(stream, delimiter=layout.separator, strict=True, skipinitialspace=True)
        rows = (row for row in lines if row)
        next(rows)
        while chunk := list(islice(rows, max(CHUNK // max(len(layout.header), 8), 1000))):
            _check_cells(chunk, layout, path, done)
            done += len(chunk)
            cells = list(zip(*chunk, strict=True))
            columns = {
                n: _numbers(np.array(cells[i], object), layout.separator) for n, i in zip(wanted, places, strict=True)
            }
            held += sum(_bytes(column) for column in columns.values())
            needed = COPIES * held * max(size / max(raw.tell(), 1), 1)
            if needed > SHARE * free and needed > SMALL:
                raise InputError(
                    f"{path} has {size / 1e9:.2g} GB and would need about {needed / 1e9:.2g} GB of memory for the"
                    f" columns used, but {free / 1e9:.2g} GB are free; use a larger machine, or fewer columns or rows"
                )
            yield columns


def _check_cells(chunk: list[list[str]], layout: Layout, path: Path, before: int) -> None:
    """Check that all rows have as many cells as the header."""
    wanted = len(layout.header)
    if set(map(len, chunk)) != {wanted}:
        i = next(i for i, row in enumerate(chunk) if len(row) != wanted)
        raise InputError(
            f"{path}: row {before + i + 1} has {len(chunk[i])} cells, but the header has {wanted}; mend the row"
        )


def free_memory() -> float:
    """Say how many bytes of memory are free."""
    try:
        with open("/proc/meminfo") as stream:
            words = dict(line.split(":", 1) for line in stream)
        return float(words["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        try:
            return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        except (OSError, ValueError):
            return 8e9


def _bytes(column: np.ndarray) -> float:
    """Say how much memory a column takes; a text cell is some 60 bytes."""
    return float(column.nbytes) if column.dtype.kind == "f" else 70.0 * len(column)


def _numbers(cells: np.ndarray, separator: str) -> np.ndarray:
    """Turn cells into floats if all are numbers or missing; else strip them, and put None where one is missing."""
    numbers = _as_numbers(cells)
    if numbers is not None:
        return numbers
    stripped = np.array([cell.strip() for cell in cells], object)
    missing = np.isin(stripped.astype(str), MISSING) if len(stripped) else np.zeros(0, bool)
    numbers = _as_numbers(stripped[~missing])
    if numbers is None and separator != ",":
        numbers = _as_numbers(np.array([cell.replace(",", ".") for cell in stripped[~missing]], object))
    if numbers is None:
        stripped[missing] = None
        return stripped
    column = np.full(len(cells), np.nan)
    column[~missing] = numbers
    return column


def _as_numbers(cells: np.ndarray) -> np.ndarray | None:
    """Read all cells as numbers; None if one is not. Python's digits with underscores are no numbers here."""
    try:
        numbers = cells.astype(float)
    except (ValueError, OverflowError):
        return None
    return None if np.isnan(numbers).any() or "_" in "".join(cells) else numbers


def _typed(parts: list[np.ndarray], separator: str) -> Any:
    """Join the pieces of a column; it is text if one of them is."""
    if not parts:
        return np.zeros(0)
    if all(part.dtype.kind == "f" for part in parts):
        return np.concatenate(parts)
    as_text: Any = lambda x: None if np.isnan(x) else (f"{x:.0f}" if x == np.floor(x) else repr(float(x)))  # noqa: E731
    texts = [np.array([as_text(x) for x in part], object) if part.dtype.kind == "f" else part for part in parts]
    return pd.Series(np.concatenate(texts), dtype=object)


def _check_finite(table: pd.DataFrame, path: Path) -> None:
    """Refuse infinite numbers, with the row."""
    for name in table:
        if table[name].dtype.kind == "f":
            bad = np.isinf(table[name].to_numpy())
            if bad.any():
                row = int(np.argmax(bad)) + 1
                raise InputError(f"{path}: row {row} of column {name} holds an infinite number; mend or remove it")


def _reason(error: Exception) -> str:
    """Quote a parser's reason in a few words."""
    return brief(first_line(error).split(": ", 1)[-1], 120).strip("'\"")
