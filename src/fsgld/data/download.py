"""Downloading one file: with a bar, going on where a broken download stopped, in place only when whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fsgld.errors import InputError

CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 3
Advance = Callable[[int, int | None], None]  # bytes so far, and in all where the server says so


def download(address: str, target: Path, progress: bool = True) -> None:
    """Fetch an address into a file.

    Bytes go to `target`.part, which becomes `target` when all have come. If a part is there already and the
    server can tell that the file is still the same (ETag or Last-Modified, asked for with If-Range), only the
    rest is fetched.

    Parameters
    ----------
    address
        Where the file is.
    target
        Where it goes.
    progress
        Whether to show a bar on the standard error stream.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with _bar(target.name, progress) as advance:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                _fetch(address, part, advance)
                break
            except HTTPError as error:
                raise InputError(f"{address} answers {error.code} ({error.reason})") from None
            except (OSError, HTTPException) as error:
                if attempt == ATTEMPTS:
                    raise InputError(_words(address, part, error)) from None
    os.replace(part, target)
    _mark(part).unlink(missing_ok=True)


def _fetch(address: str, part: Path, advance: Advance) -> None:
    """Fetch what is missing of a part, or all of it if the server has another file or cannot resume."""
    mark, begin = _mark(part), part.stat().st_size if part.exists() else 0
    same = mark.read_text() if mark.exists() else ""
    headers = {"User-Agent": "fsgld"} | ({"Range": f"bytes={begin}-", "If-Range": same} if begin and same else {})
    try:
        response = urlopen(Request(address, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        if error.code != 416:  # the part is as long as the file, or longer: start afresh
            raise
        part.unlink()
        return _fetch(address, part, advance)
    with response:
        resumed = response.status == 206
        if resumed and not response.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
            raise HTTPException(f"the server sent other bytes than the ones from {begin} on")
        begin = begin if resumed else 0
        length = response.headers.get("Content-Length")
        total = begin + int(length) if length else None
        mark.write_text(_validator(response.headers))
        with part.open("ab" if resumed else "wb") as file:
            done = _copy(response, file, begin, total, advance)
    if total is not None and done != total:
        raise HTTPException(f"the connection ended after {done:,} of {total:,} bytes")


def _copy(response: Any, file: Any, done: int, total: int | None, advance: Advance) -> int:
    """Copy chunk by chunk; give the number of bytes in the file."""
    advance(done, total)
    while chunk := response.read(CHUNK):
        file.write(chunk)
        done += len(chunk)
        advance(done, total)
    return done


def _validator(headers: Any) -> str:
    """Give what tells one version of the file from another; a weak ETag does not promise equal bytes."""
    tag = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")


def _mark(part: Path) -> Path:
    return part.with_name(part.name + ".version")


def _words(address: str, part: Path, error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    kept = f"; {part.stat().st_size:,} bytes are kept, run it again to go on" if part.exists() else ""
    return f"{address} cannot be downloaded ({reason}){kept}"


@contextmanager
def _bar(name: str, show: bool) -> Iterator[Advance]:
    """Show a bar on the standard error stream."""
    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
