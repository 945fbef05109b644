"""The cache: download, unpack, check, and remember the checksum of what was trusted at first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path

from fsgld.data.catalogue import Dataset
from fsgld.data.download import download
from fsgld.errors import InputError

RECORD = "sha256.json"


def folder(name: str) -> Path:
    """Give a data set's folder in the cache."""
    base = os.environ.get("FSGLD_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(base) if base else Path(home) / "fsgld") / name


def fill(dataset: Dataset, progress: bool = True) -> None:
    """Put a data set's files into the cache, unless they are there, and check them."""
    home = folder(dataset.name)
    try:
        if not all((home / file).is_file() for file in dataset.files):
            _fetch(dataset, home, progress)
        _accept(dataset, home)
    except OSError as error:
        raise InputError(f"cannot write to the cache {home} ({error.strerror}); set FSGLD_CACHE to a folder") from None


def verify(dataset: Dataset) -> None:
    """Check the files in the cache against what is known and what was written at the first download."""
    home = folder(dataset.name)
    record = home / RECORD
    expected = dict(dataset.checksums) | (json.loads(record.read_text()) if record.is_file() else {})
    for file in dataset.files:
        if (home / file).is_file():
            _compare(home / file, expected.get(file, ""))


def _fetch(dataset: Dataset, home: Path, progress: bool) -> None:
    """Try the addresses one after the other."""
    failures = []
    for address in dataset.addresses:
        try:
            return _fetch_from(address, dataset, home, progress)
        except InputError as error:
            failures.append(str(error))
    raise InputError(
        f"{'; '.join(failures)}. Without network, fetch {dataset.addresses[0]} elsewhere, put it into {home} and "
        f"run: fsgld data get {dataset.name}"
    )


def _fetch_from(address: str, dataset: Dataset, home: Path, progress: bool) -> None:
    """Fetch a .zip and take the files out of it, or the files one by one from a folder."""
    if not address.endswith(".zip"):
        for file in dataset.files:
            if not (home / file).is_file():
                download(address + file, home / file, progress)
        return
    archive = home / address.rsplit("/", 1)[1]
    if not archive.is_file():
        download(address, archive, progress)
    _unpack(archive, dataset.files)
    archive.unlink()


def _unpack(archive: Path, files: tuple[str, ...]) -> None:
    """Take files out of a .zip, wherever in it they are; each is in place only when whole."""
    try:
        with zipfile.ZipFile(archive) as content:
            inside = {name.rsplit("/", 1)[-1]: name for name in content.namelist()}
            for file in files:
                if file not in inside:
                    raise InputError(f"{archive} does not hold {file}; it was kept as {_aside(archive)}")
                part = archive.with_name(file + ".part")
                with content.open(inside[file]) as source, part.open("wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                os.replace(part, archive.with_name(file))
    except zipfile.BadZipFile as error:
        raise InputError(f"{archive} is not a whole .zip ({error}); it was kept as {_aside(archive)}") from None


def _accept(dataset: Dataset, home: Path) -> None:
    """Check new files by checksum where known, and by content; then write their checksums down."""
    files = [home / file for file in dataset.files]
    verify(dataset)
    if (home / RECORD).is_file():
        return
    try:
        dataset.load(files[0])
    except InputError as error:
        raise InputError(f"{error}; what came was kept as {', '.join(str(_aside(file)) for file in files)}") from None
    record = home / (RECORD + ".part")
    record.write_text(json.dumps({file.name: _sha256(file) for file in files}, indent=1) + "\n")
    os.replace(record, home / RECORD)


def _compare(file: Path, expected: str) -> None:
    """Refuse a file whose checksum does not begin as expected, and put it aside."""
    found = _sha256(file) if expected else ""
    if not found.startswith(expected):
        raise InputError(
            f"{file} has the SHA-256 {found}, but {expected} was expected; it was kept as {_aside(file)}. "
            f"Run: fsgld data get {file.parent.name}; if UCI has a new version, delete {file.with_name(RECORD)} first"
        )


def _aside(file: Path) -> Path:
    """Rename a file that cannot be used, so that it can be looked at."""
    return file.replace(file.with_name(file.name + ".refused"))


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
