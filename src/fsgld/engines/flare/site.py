"""What a site does: it answers messages about its own rows. Plain Python; FLARE only carries the bytes.

A site is stateless but for its data, the surrogate and settings of a run (`setup`) and, for a formula, the design that
sites settled on; these it keeps on its disk.
A repeated request gives the same reply. Limits are the owner's: what they forbid is refused here, whatever the
coordinator asks. Every message in and out is in the audit log, with its fields and shapes; texts of errors stay
in that log, because they may quote data.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fsgld import __version__, derivatives, measure, probes
from fsgld.engines.flare import messages, visit
from fsgld.engines.flare.disk import write_json, write_whole
from fsgld.engines.flare.messages import Message, MessageError
from fsgld.engines.flare.visit import Place, Refusal, Setup
from fsgld.errors import InputError, check_whole
from fsgld.model import ravel
from fsgld.model_checks import check_model
from fsgld.rows import Data, gather
from fsgld.study import Study


@dataclass(frozen=True)
class Limits:
    """What a site's owner allows; `limits.toml` in its kit."""

    min_rows: int = 10  # rows of this site
    min_rows_per_parameter: int = 1
    min_sites: int = 2  # that take part in the study
    min_count: int = 3  # rows that have a level, an outcome or a column of a formula, unless none has it
    min_batch_size: int = 8  # rows of a mini-batch: a single row's gradient can tell what is in the row
    largest_message: int = messages.LARGEST  # bytes

    @staticmethod
    def read(file: Path) -> Limits:
        """Read limits.toml; without it the defaults hold."""
        given = tomllib.loads(file.read_text()) if file.is_file() else {}
        unknown = set(given) - {field.name for field in fields(Limits)}
        if unknown:
            raise InputError(f"{file} has an unknown limit {min(unknown)!r}; known are {', '.join(asdict(Limits()))}")
        check_whole(0, **given)
        return Limits(**given)


BEFORE = ("describe", "moments", "design")  # asked while sites settle on the columns of a formula


class Site:
    """Answers requests about one site's rows."""

    def __init__(self, name: str, study: Study, rows: Data, folder: Path, limits: Limits | None = None) -> None:
        self.name, self.study, self.folder, self.limits = name, study, folder, limits or Limits()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.busy = threading.Lock()
        self._handlers: dict[str, Callable[[Message], dict[str, Any]]] = {
            "hello": self._hello, "all_clients": self._all_clients, "mean_derivatives": self._mean_derivatives,
            "residuals": self._residuals, "excess_by_products": self._excess, "by_leverage": self._by_leverage,
            "noise_of_some": self._noise, "setup": self._setup, "update": self._update,
        }  # fmt: skip
        self.begun, self.file = study, rows
        self.desk: Any = None
        if study.agreement is None:
            self._take(study, rows)
        else:
            self._open_desk()

    def _take(self, study: Study, rows: Data) -> None:
        """Take part in a study with rows that fit its model."""
        model, table = study.model(), gather({self.name: rows})
        theta = ravel(model.start())
        flat = check_model(model, theta, table)
        self.study, self.table, self.theta, self.flat = study, table, theta, flat
        self.place = Place(flat, theta, table)
        self.setups: dict[str, Setup] = {}

    def _open_desk(self) -> None:
        """Answer questions about a table until sites have settled on its columns; recall what they settled on."""
        self.desk = self.begun.agreement.desk(self.name, self.begun.sites, self.file, self.limits.min_count)
        if self.desk.rows < self.limits.min_rows:
            raise InputError(
                f"{self.desk.rows} complete rows are fewer than min_rows = {self.limits.min_rows} in limits.toml"
            )
        for kind, answer in self.desk.answers.items():
            self._handlers[kind] = partial(self._ask_desk, answer)
        self._handlers["design"] = self._design
        self.theta = jnp.zeros(0)
        file = self.folder / "design.json"
        if file.is_file():
            with contextlib.suppress(InputError, ValueError):  # of another study, or of a table that has changed
                self._settle(file.read_text())

    def _ask_desk(self, answer: Callable[[dict[str, Any]], dict[str, Any]], request: Message) -> dict[str, Any]:
        with self.busy:
            return answer(request.fields)

    def _design(self, request: Message) -> dict[str, Any]:
        with self.busy:
            content = self._settle(request.fields["design"])
        write_json(self.folder / "design.json", content)
        return {"study": self.study.digest}

    def _settle(self, text: str) -> dict[str, Any]:
        """Take a design that follows from the study and this site's table."""
        assert self.desk is not None
        content: dict[str, Any] = self.desk.check(text)
        settled = self.begun.settled(content)
        if settled.digest != self.study.digest:
            self._take(settled, settled.rows(self.file, self.name))
        self.desk.settle(content, self.table)
        return content

    @property
    def rows(self) -> int:
        """N_s."""
        return self.desk.rows if self.desk else int(self.table.sizes[0])

    def answer(self, data: bytes) -> bytes:
        """Check a request, do what it asks within the limits, and give the reply; never raises."""
        to, kind, number, study = messages.digest(bytes(data)), "refusal", -1, self.study.digest
        try:
            request = messages.decode(data, False, {"d": len(self.theta)}, self.limits.largest_message)
            number = request.round
            self._log("in", request, len(data), to)
            self._check(request)
            study = request.study
            answered = self._handlers[request.kind](request)
            kind = request.kind
        except (Refusal, MessageError) as refusal:
            answered = {"reason": f"{self.name}: {refusal}"[:2000]}
        except Exception as error:
            self._write({"error": f"{type(error).__name__}: {error}"[:2000]})
            told = getattr(error, "told", "") or f"{type(error).__name__} at the site; its audit log has the text"
            answered = {"reason": f"{self.name}: {told}"[:2000]}
        reply = Message(kind, study, number, answered, to)
        encoded = messages.encode(reply)
        self._log("out", reply, len(encoded), messages.digest(encoded))
        return encoded

    def _check(self, request: Message) -> None:
        """Hold a request against the study and the owner's limits."""
        known = self.begun.digest if request.kind in BEFORE else self.study.digest
        if request.kind not in self._handlers:
            raise Refusal("this study has no formula")
        if request.study != known:
            raise Refusal(f"the request is for study {request.study[:12]}, this site has {known[:12]}")
        if self.desk and self.study is self.begun and request.kind not in BEFORE:
            raise Refusal("the sites have not settled on the columns yet")
        limits, d = self.limits, len(self.theta)
        needed = max(limits.min_rows, limits.min_rows_per_parameter * d)
        if self.rows < needed:
            raise Refusal(f"min_rows or min_rows_per_parameter: fewer than {needed} rows")
        if len(self.study.sites) < limits.min_sites:
            raise Refusal(f"min_sites: the study has {len(self.study.sites)}, this site asks for {limits.min_sites}")
        for name, value in request.fields.items():
            if request.kind == "update" and name != "t":  # a chain may have run away
                continue
            if isinstance(value, np.ndarray) and not np.isfinite(value).all():
                raise Refusal(f"{name} holds numbers that are not finite")

    def _hello(self, request: Message) -> dict[str, Any]:
        leaves = jax.tree_util.tree_leaves_with_path(self.table.rows)
        columns = [f"{jax.tree_util.keystr(path)} {leaf.dtype} {list(leaf.shape[1:])}" for path, leaf in leaves]
        return {"rows": self.rows, "columns": columns, "data": self._token(), "software": f"fsgld {__version__}"}

    def _all_clients(self, request: Message) -> dict[str, Any]:
        form = request.fields.get("form")
        if form not in (None, "dense", "diagonal"):
            raise Refusal("form must be dense or diagonal")
        with self.busy:
            value, G, H = derivatives.all_clients(self.flat, self.place.array(request, "theta"), self.table, form)
        return {"value": value, "gradient": G, "curvature": H}

    def _mean_derivatives(self, request: Message) -> dict[str, Any]:
        with self.busy:
            G, H = derivatives.mean_derivatives(self.flat, self.place.array(request, "points"), self.table)
        return {"gradient": G, "curvature": H}

    def _residuals(self, request: Message) -> dict[str, Any]:
        points, factor = (self.place.array(request, name) for name in ("points", "factor"))
        q = jax.tree.map(lambda leaf: leaf[None], self.place.gaussian(request))
        with self.busy:
            return probes.residuals(self.flat, points, factor, q, self.table)._asdict()

    def _excess(self, request: Message) -> dict[str, Any]:
        theta, factor = (self.place.array(request, name) for name in ("theta", "factor"))
        q = jax.tree.map(lambda leaf: leaf[None], self.place.gaussian(request))
        with self.busy:
            return {"ends": probes.excess_by_products(self.flat, theta, factor, q, self.table)}

    def _by_leverage(self, request: Message) -> dict[str, Any]:
        with self.busy:
            drawn = self.place.lots(request, request.fields["points"], request.fields["differences"])
        assert drawn is not None
        return {"lots": int(np.asarray(drawn.size)[0])}

    def _noise(self, request: Message) -> dict[str, Any]:
        points, anchor, factor = (self.place.array(request, name) for name in ("points", "anchor", "factor"))
        with self.busy:
            drawn = self.place.lots(request, request.fields.get("few"), request.fields["differences"])
            given = (request.fields["differences"], points, anchor, factor, request.fields["most"], drawn)
            return measure.noise_of_some(self.flat, *given, self.table)._asdict()

    def _setup(self, request: Message) -> dict[str, Any]:
        key = messages.digest(messages.encode(request))
        with self.busy:
            self.setups = {key: self._prepare(request)}
        write_whole(self.folder / "setup.message", messages.encode(request))
        return {"setup": key}

    def _prepare(self, request: Message) -> Setup:
        """Build a run, within the owner's limits."""
        m, least = request.fields["batch_size"], self.limits.min_batch_size
        if m < least:
            raise Refusal(f"min_batch_size: the run has {m}, less than {least}")
        return visit.prepare(self.place, request)

    def _update(self, request: Message) -> dict[str, Any]:
        setup = self._recall(request.fields["setup"])
        with self.busy:
            return visit.update(self.place, setup, request)

    def _recall(self, key: str) -> Setup:
        """Find a setup in memory, or on the disk after a restart."""
        if key not in self.setups:
            file = self.folder / "setup.message"
            data = file.read_bytes() if file.is_file() else b""
            if messages.digest(data) != key:
                raise Refusal("unknown setup")
            self.setups = {key: self._prepare(messages.decode(data, False, {"d": len(self.theta)}))}
        return self.setups[key]

    def _token(self) -> str:
        """Name the data by a random word that is drawn anew when they change; it says nothing about them."""
        file, now = self.folder / "data.json", self.table.fingerprint()
        known = json.loads(file.read_text()) if file.is_file() else {}
        if known.get("fingerprint") != now:
            known = {"fingerprint": now, "token": secrets.token_hex(8)}
            write_json(file, known)
        return str(known["token"])

    def _log(self, way: str, message: Message, size: int, digest: str) -> None:
        """Add a line to the audit log: what came or went, never its numbers."""
        line = {"way": way, "kind": message.kind, "study": message.study[:12], "round": message.round, "bytes": size}
        reason = {"reason": message.fields["reason"]} if message.kind == "refusal" else {}
        self._write(line | {"digest": digest, "fields": messages.describe(message)} | reason)

    def _write(self, line: dict[str, Any]) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with (self.folder / "audit.jsonl").open("a") as file:
            file.write(json.dumps({"time": now} | line) + "\n")
