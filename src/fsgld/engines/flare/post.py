"""The coordinator's post office: it sends requests, waits, tries again, checks replies and keeps the books.

Two things are on the coordinator's disk. The ledger has a line for every message. Answers to questions (all that is
asked before the first round) are kept under the digest of the request: a leg that begins anew asks nothing twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fsgld.engines.flare import messages
from fsgld.engines.flare.disk import write_whole
from fsgld.engines.flare.messages import Message, MessageError
from fsgld.errors import InputError
from fsgld.study import Study

Transport = Callable[[str, bytes, float], bytes]
"""(site, request, seconds to wait) → reply; raises `LegOver` if the leg has ended, anything else if the call failed."""

Check = Callable[[str, Message], None]


FIRST = 4.0  # so many times as long may an answer take that needs data to be loaded or programs to be compiled


class LegOver(Exception):
    """The leg cannot go on (its FLARE job ended, or it was asked to stop); the next one goes on from the checkpoint."""


class SiteGone(Exception):
    """A site did not answer as it should, for all retries."""

    def __init__(self, site: str, why: str) -> None:
        super().__init__(f"{site}: {why}")
        self.site, self.why = site, why


class Post:
    """Sends requests to sites; one object a leg."""

    def __init__(
        self, study: str, folder: Path, transport: Transport, timeout: float, retries: int,
        largest: int = messages.LARGEST,
    ) -> None:  # fmt: skip
        self.study, self.folder, self.transport = study, folder, transport
        self.timeout, self.retries, self.largest = timeout, retries, largest
        self.dims: dict[str, int] = {}
        self.pool = ThreadPoolExecutor(64, thread_name_prefix="post")
        (folder / "answers").mkdir(parents=True, exist_ok=True)

    def turn_to(self, study: Study) -> None:
        """Carry messages about this study from now on, with parameters as many as its model has."""
        self.study = study.digest
        self.dims["d"] = sum(np.size(leaf) for leaf in jax.tree.leaves(study.model().start()))

    def ask(self, site: str, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Ask a question outside of rounds; an answer that is known already is not asked for again."""
        data = messages.encode(Message(kind, self.study, -1, fields))
        file = self.folder / "answers" / f"{site}-{messages.digest(data)[:32]}"
        if file.is_file():
            try:
                return messages.decode(file.read_bytes(), True, self.dims).fields
            except MessageError:
                file.unlink()  # damaged: ask again
        reply, raw = self._send(site, kind, data, -1, None, FIRST * self.timeout)
        write_whole(file, raw)
        return reply

    def call(
        self, site: str, kind: str, fields: dict[str, Any], number: int = -1, check: Check | None = None,
        first: bool = False,
    ) -> Any:  # fmt: skip
        """Send one request and give the checked fields of the reply; for a first one the site has more time."""
        data = messages.encode(Message(kind, self.study, number, fields))
        return self._send(site, kind, data, number, check, FIRST * self.timeout if first else self.timeout)[0]

    def each(self, jobs: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Any], dict[str, SiteGone]]:
        """Do something with several sites at once; give what came of it, and who is gone."""
        futures = {site: self.pool.submit(job) for site, job in jobs.items()}
        done: dict[str, Any] = {}
        gone: dict[str, SiteGone] = {}
        over: BaseException | None = None
        for site, future in futures.items():
            try:
                done[site] = future.result()
            except SiteGone as error:
                gone[site] = error
            except BaseException as error:  # the leg is over, or a refusal: wait for the others, then say so
                over = over or error
        if over:
            raise over
        return done, gone

    def book(self, **line: Any) -> None:
        """Write a line into the ledger."""
        with (self.folder / "ledger.jsonl").open("a") as file:
            file.write(json.dumps({"time": round(time.time(), 3)} | line) + "\n")

    def _send(
        self, site: str, kind: str, data: bytes, number: int, check: Check | None, timeout: float
    ) -> tuple[dict[str, Any], bytes]:
        """Try so often as is allowed; every attempt is booked."""
        why = ""
        for attempt in range(1 + self.retries):
            begin, raw, refused = time.monotonic(), b"", False
            try:
                raw = self.transport(site, data, timeout)
                reply = messages.decode(raw, True, self.dims, self.largest)
                refused = reply.kind == "refusal"
                self._check(reply, kind, data, number)
                if check:
                    check(site, reply)
                why = ""
                return reply.fields, raw
            except (LegOver, Refused) as error:
                why = str(error)
                raise
            except Exception as error:
                why = f"{type(error).__name__}: {error}"[:300]
            finally:
                self.book(
                    site=site, kind=kind, round=number, attempt=attempt, sent=len(data), received=len(raw),
                    seconds=round(time.monotonic() - begin, 4), **({"failed": why} if why or refused else {}),
                )  # fmt: skip
        raise SiteGone(site, why)

    def _check(self, reply: Message, kind: str, data: bytes, number: int) -> None:
        """Refuse a reply that is not the answer to this request."""
        if reply.to != messages.digest(data) or reply.study != self.study or reply.round != number:
            raise MessageError("a reply to another request, of another study or round")
        if reply.kind == "refusal":
            raise Refused(reply.fields["reason"])
        if reply.kind != kind:
            raise MessageError(f"a reply of kind {reply.kind}")
        for name, value in reply.fields.items():
            if isinstance(value, np.ndarray) and kind == "update" and name == "t" and (value < 0).any():
                raise MessageError("a step counter below nought")


class Refused(InputError):
    """A site's owner does not allow what was asked; trying again is of no use."""


def read_ledger(folder: Path) -> list[dict[str, Any]]:
    """Read the ledger; a line that a kill cut short is left out."""
    lines = []
    file = folder / "ledger.jsonl"
    for text in file.read_text().splitlines() if file.is_file() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def account(folder: Path, sites: tuple[str, ...]) -> dict[str, Any]:
    """Sum up the ledger: per site messages, bytes, seconds, visits, failures, and how long it was away."""
    lines = read_ledger(folder)
    names = ("messages", "failed", "visits", "bytes_sent", "bytes_received", "seconds", "seconds_away")
    table: dict[str, dict[str, Any]] = {site: dict.fromkeys(names, 0) for site in sites}
    away: dict[str, float] = {}
    for line in lines:
        row = table.get(line.get("site", ""))
        if row is None:
            continue
        if "kind" in line:
            row["messages"] += 1
            row["failed"] += "failed" in line
            row["visits"] += line["kind"] == "update" and "failed" not in line
            row["bytes_sent"] += line["sent"]
            row["bytes_received"] += line["received"]
            row["seconds"] = round(row["seconds"] + line["seconds"], 3)
        elif line.get("event") == "away":
            away.setdefault(line["site"], line["time"])
        elif line.get("event") == "back" and line["site"] in away:
            row["seconds_away"] = round(row["seconds_away"] + line["time"] - away.pop(line["site"]), 1)
    for site, since in away.items():
        table[site]["seconds_away"] = round(table[site]["seconds_away"] + lines[-1]["time"] - since, 1)
    return {"sites": table, "legs": sum(line.get("event") == "leg" for line in lines)}
