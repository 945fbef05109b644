"""The paper's data sets and a few more, from UCI: `load` reads them, `get` downloads them.

A data set is looked for in the folder named by FSGLD_DATA, then in the cache (FSGLD_CACHE, else fsgld in
XDG_CACHE_HOME, else ~/.cache/fsgld). Both have one folder a data set, with UCI's own files or the converted
file of `catalogue`.

UCI does not publish checksums. Where one is known it is checked; else the first download is trusted, once what
it holds agrees with the published numbers of rows, columns and classes, and its SHA-256 is written to the cache.
Later reads from the cache must agree with that. So a later change is found, a forged first download is not.
"""

from __future__ import annotations

import os
from pathlib import Path

from fsgld.data import cache
from fsgld.data.catalogue import CATALOGUE, Dataset
from fsgld.data.formats import Columns
from fsgld.errors import InputError, check_whole

__all__ = ["NAMES", "get", "load", "where"]

NAMES = tuple(CATALOGUE)


def load(name: str, rows: int | None = None) -> Columns:
    """Read a data set as columns by name, in the order of the file.

    `isolet` gives X, y and part; `heart_disease` a column `site`; missing numbers are NaN, other missing values
    "?". Nothing is scaled or shuffled.

    Parameters
    ----------
    name
        One of `NAMES`.
    rows
        Read only so many rows, from the first. SUSY goes through in blocks, so its 5,000,000 rows need little
        memory beyond the columns themselves (365 MB).
    """
    dataset = _dataset(name)
    if rows is not None:
        check_whole(1, rows=rows)
    found = where(name)
    if found is None:
        raise InputError(_absent(dataset))
    if found.parent == cache.folder(name):
        cache.verify(dataset)
    return dataset.load(found, rows)


def get(name: str, progress: bool = True) -> Path:
    """Download a data set from UCI into the cache, unless it is there, and give its folder.

    A download that was broken off goes on where it stopped. What cannot be right is refused and kept aside.

    Parameters
    ----------
    name
        One of `NAMES`.
    progress
        Whether to show a bar on the standard error stream.
    """
    dataset = _dataset(name)
    cache.fill(dataset, progress)
    return cache.folder(name)


def where(name: str) -> Path | None:
    """Give the (first) file that `load` would read, or None if there is none."""
    dataset = _dataset(name)
    for folder in _folders(name):
        for files in (dataset.files, (dataset.converted,)):
            if all((folder / file).is_file() for file in files):
                return folder / files[0]
    return None


def _folders(name: str) -> list[Path]:
    """List the folders where a data set may be, first comes first."""
    given = os.environ.get("FSGLD_DATA")
    return ([Path(given) / name] if given else []) + [cache.folder(name)]


def _dataset(name: str) -> Dataset:
    """Look a data set up by its name."""
    if name not in CATALOGUE:
        raise InputError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}")
    return CATALOGUE[name]


def _absent(dataset: Dataset) -> str:
    """Say what to put where."""
    files = " and ".join(dataset.files)
    return (
        f"the data set {dataset.name} is not here (looked in {' and '.join(map(str, _folders(dataset.name)))}); "
        f"run: fsgld data get {dataset.name}; or put {files} ({dataset.addresses[0]}) in the folder "
        f"{dataset.name} of a folder that FSGLD_DATA names"
    )
