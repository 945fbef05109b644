"""What a site does: it answers messages about its own rows. Plain Python; FLARE only carries the bytes.

A site is stateless but for its data, and the surrogate and settings of a run (`setup`), which it keeps on its disk.
A repeated request gives the same reply. Limits are the owner's: what they forbid is refused here, whatever the
coordinator asks. Every message in and out is in the audit log, with its fields and shapes; texts of errors stay
in that log, because they may quote data.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fsgld import __version__, derivatives, dynamics, lots, measure, probes, randomness
from fsgld.algorithm import Lots, Rules
from fsgld.checks import check_model
from fsgld.dynamics import Dynamics, State
from fsgld.engines import Chain, Federation, Plan, compiled, everyone, largest_divisor
from fsgld.engines.flare import messages
from fsgld.engines.flare.messages import Message, MessageError
from fsgld.errors import InputError, check_whole
from fsgld.likelihood import control_variate, plain
from fsgld.refresh import Table
from fsgld.shards import Data, gather
from fsgld.study import Study
from fsgld.surrogates import Gaussian


@dataclass(frozen=True)
class Limits:
    """What a site's owner allows; `limits.toml` in its kit."""

    min_rows: int = 10  # rows of this site
    min_rows_per_parameter: int = 1
    min_sites: int = 2  # that take part in the study
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


class Refusal(Exception):
    """The site does not answer; the reason may be told to the coordinator."""


class Setup(NamedTuple):
    """A run as this site sees it: Algorithm 1 with one client."""

    rules: Rules
    dynamics: Dynamics
    federation: Federation
    local_steps: int
    root: Any
    chains: int


class Site:
    """Answers requests about one site's rows."""

    def __init__(self, name: str, study: Study, rows: Data, folder: Path, limits: Limits | None = None) -> None:
        self.name, self.study, self.folder, self.limits = name, study, folder, limits or Limits()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.table = gather({name: rows})
        model = study.model()
        self.theta = ravel_pytree(model.start())[0]
        self.flat = check_model(model, self.theta, self.table)
        self.setups: dict[str, Setup] = {}
        self.busy = threading.Lock()
        self._handlers: dict[str, Callable[[Message], dict[str, Any]]] = {
            "hello": self._hello, "all_clients": self._all_clients, "mean_derivatives": self._mean_derivatives,
            "residuals": self._residuals, "by_leverage": self._by_leverage, "noise_of_some": self._noise,
            "setup": self._setup, "update": self._update,
        }  # fmt: skip

    @property
    def rows(self) -> int:
        """N_s."""
        return int(self.table.sizes[0])

    def answer(self, data: bytes) -> bytes:
        """Check a request, do what it asks within the limits, and give the reply; never raises."""
        to, kind, number = messages.digest(bytes(data)), "refusal", -1
        try:
            request = messages.decode(data, False, {"d": len(self.theta)}, self.limits.largest_message)
            number = request.round
            self._log("in", request, len(data), to)
            self._check(request)
            answered = self._handlers[request.kind](request)
            kind = request.kind
        except (Refusal, MessageError) as refusal:
            answered = {"reason": f"{self.name}: {refusal}"[:2000]}
        except Exception as error:
            self._write({"error": f"{type(error).__name__}: {error}"[:2000]})
            answered = {"reason": f"{self.name}: {type(error).__name__} at the site; its audit log has the text"}
        reply = Message(kind, self.study.digest, number, answered, to)
        encoded = messages.encode(reply)
        self._log("out", reply, len(encoded), messages.digest(encoded))
        return encoded

    def _check(self, request: Message) -> None:
        """Hold a request against the study and the owner's limits."""
        if request.study != self.study.digest:
            raise Refusal(f"the request is for study {request.study[:12]}, this site has {self.study.digest[:12]}")
        limits, d = self.limits, len(self.theta)
        needed = max(limits.min_rows, limits.min_rows_per_parameter * d)
        if self.rows < needed:
            raise Refusal(f"min_rows or min_rows_per_parameter: fewer than {needed} rows")
        if len(self.study.sites) < limits.min_sites:
            raise Refusal(f"min_sites: the study has {len(self.study.sites)}, this site asks for {limits.min_sites}")
        for name, value in request.fields.items():
            if isinstance(value, np.ndarray) and not np.isfinite(value).all():
                raise Refusal(f"{name} holds numbers that are not finite")

    def _hello(self, request: Message) -> dict[str, Any]:
        leaves = jax.tree_util.tree_leaves_with_path(self.table.rows)
        columns = [f"{jax.tree_util.keystr(path)} {leaf.dtype} {list(leaf.shape[1:])}" for path, leaf in leaves]
        return {"rows": self.rows, "columns": columns, "data": self._token(), "software": f"fsgld {__version__}"}

    def _all_clients(self, request: Message) -> dict[str, Any]:
        form = request.fields.get("form")
        if form not in (None, "dense"):
            raise Refusal("form must be dense")
        with self.busy:
            value, G, H = derivatives.all_clients(self.flat, self._array(request, "theta"), self.table, form)
        return {"value": value, "gradient": G, "curvature": H}

    def _mean_derivatives(self, request: Message) -> dict[str, Any]:
        with self.busy:
            G, H = derivatives.mean_derivatives(self.flat, self._array(request, "points"), self.table)
        return {"gradient": G, "curvature": H}

    def _residuals(self, request: Message) -> dict[str, Any]:
        points, factor = (self._array(request, name) for name in ("points", "factor"))
        q = jax.tree.map(lambda leaf: leaf[None], self._gaussian(request, ""))
        with self.busy:
            return probes.residuals(self.flat, points, factor, q, self.table)._asdict()

    def _by_leverage(self, request: Message) -> dict[str, Any]:
        with self.busy:
            drawn = self._lots(request, request.fields["points"])
        assert drawn is not None
        return {"lots": int(np.asarray(drawn.size)[0])}

    def _noise(self, request: Message) -> dict[str, Any]:
        points, anchor, factor = (self._array(request, name) for name in ("points", "anchor", "factor"))
        with self.busy:
            drawn = self._lots(request, request.fields.get("few"))
            given = (request.fields["differences"], points, anchor, factor, request.fields["most"], drawn)
            return measure.noise_of_some(self.flat, *given, self.table)._asdict()

    def _setup(self, request: Message) -> dict[str, Any]:
        key = messages.digest(messages.encode(request))
        with self.busy:
            self.setups = {key: self._prepare(request)}
        _replace(self.folder / "setup.message", messages.encode(request))
        return {"setup": key}

    def _prepare(self, request: Message) -> Setup:
        """Build the run with this site as its only client."""
        given, d = request.fields, len(self.theta)
        if given["batch_size"] < self.limits.min_batch_size:
            raise Refusal(f"min_batch_size: the run has {given['batch_size']}, less than {self.limits.min_batch_size}")
        T, record = given["local_steps"], given["record"]
        if T < 1 or record < 1 or T % record or given["batch_size"] < 1 or not 1 <= given["chains"] <= 100_000:
            raise Refusal("local_steps, record, batch_size or chains make no sense")
        slot = {"plain": plain, "control_variate": control_variate}.get(given["likelihood"])
        if slot is None or not 0 < given["prob"] <= 1:
            raise Refusal("the likelihood's name or prob makes no sense")
        kept: Any = () if slot is plain else (self._array(request, "anchor"), self._array(request, "gradient"))
        q_s, memo = jax.tree.map(lambda x: x[None], (self._gaussian(request, ""), kept))
        table = Table(q_s, self._gaussian(request, "total_"), memo)
        f_s = jnp.asarray([given["prob"]], self.theta.dtype)
        federation = Federation(
            self.table.rows, jnp.asarray(self.table.starts), jnp.asarray(self.table.sizes), f_s, table,
            jnp.asarray(given["alpha"], self.theta.dtype), everyone(np.ones(1)),
            self._lots(request, given.get("few"), differences=slot is not plain),
        )  # fmt: skip
        rules = Rules(self.flat, slot, given["batch_size"], record)
        root = randomness.root_key(given["seed"])
        return Setup(rules, _dynamics(request, d), federation, T, root, given["chains"])

    def _update(self, request: Message) -> dict[str, Any]:
        """Client-side Update for all chains that have come, as one program."""
        given, number = request.fields, request.round
        setup = self._recall(given["setup"])
        count, T = len(given["t"]), setup.local_steps
        if number < 0 or not (given["t"] == number * T).all() or not 0 < given["mass"] <= 1 + 1e-9:
            raise Refusal(f"the chains are not at the beginning of round {number}")
        tamed = "limit" in setup.dynamics.constants
        if tamed != ("memory" in given) or not (given["chains"] >= 0).all() or (given["chains"] >= setup.chains).any():
            raise Refusal("the chains do not belong to this run")
        size = min(2 ** int(np.ceil(np.log2(max(count, 4)))), max(setup.chains, count))  # few programs, all kept hot
        index = np.minimum(np.arange(size), count - 1)
        names = ("theta", "memory", "t") if tamed else ("theta", "t")
        theta, *memory, t = (jnp.asarray(given[name][index]) for name in names)
        chains = Chain(State(theta.astype(self.theta.dtype), memory[0] if tamed else (), t), None)
        m, d = setup.rules.batch_size, len(self.theta)
        together = m * d <= 256 or jax.default_backend() != "cpu"
        block = largest_divisor(T, 2**20 // ((size if together else 1) * (m + d)))
        plan = Plan(size, 1, T, 1, block, together and size > 1)
        mass = jnp.asarray([given["mass"]], setup.federation.presence.mass.dtype)
        federation = setup.federation._replace(presence=setup.federation.presence._replace(mass=mass))
        with self.busy:
            where = jnp.int32(number), jnp.asarray(given["chains"][index])
            after, trace = compiled.advance(setup.rules, plan, setup.dynamics, federation, chains, setup.root, *where)
            state, draws = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], (after.state, trace.draws[:, 0]))
        return {
            "theta": state.theta, "memory": state.memory if tamed else None, "t": state.t,
            "draws": draws if draws.shape[1] > 1 else None,
        }  # fmt: skip

    def _recall(self, key: str) -> Setup:
        """Find a setup in memory, or on the disk after a restart."""
        if key not in self.setups:
            file = self.folder / "setup.message"
            data = file.read_bytes() if file.is_file() else b""
            if messages.digest(data) != key:
                raise Refusal("unknown setup")
            self.setups = {key: self._prepare(messages.decode(data, False, {"d": len(self.theta)}))}
        return self.setups[key]

    def _lots(self, request: Message, few: np.ndarray | None, differences: bool | None = None) -> Lots | None:
        """Give rows their lots, as a function of the request."""
        if few is None:
            return None
        anchor, factor = self._array(request, "anchor"), self._array(request, "factor")
        how = request.fields["differences"] if differences is None else differences
        return lots.by_leverage(self.flat, how, jnp.asarray(few, self.theta.dtype), anchor, factor, self.table)

    def _array(self, request: Message, name: str) -> jax.Array:
        if name not in request.fields:
            raise Refusal(f"no field {name}")
        return jnp.asarray(request.fields[name], self.theta.dtype)

    def _gaussian(self, request: Message, prefix: str) -> Gaussian:
        precision = request.fields.get(f"{prefix}precision")
        Λ = None if precision is None else jnp.asarray(precision, self.theta.dtype)
        return Gaussian(self._array(request, f"{prefix}shift"), Λ)

    def _token(self) -> str:
        """Name the data by a random word that is drawn anew when they change; it says nothing about them."""
        file, now = self.folder / "data.json", self.table.fingerprint()
        known = json.loads(file.read_text()) if file.is_file() else {}
        if known.get("fingerprint") != now:
            known = {"fingerprint": now, "token": secrets.token_hex(8)}
            _replace(file, json.dumps(known).encode())
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


def _dynamics(request: Message, d: int) -> Dynamics:
    """Build the dynamics that a setup names."""
    given = request.fields
    build = {"whitened": dynamics.whitened, "langevin": dynamics.langevin}.get(given["dynamics"])
    if build is None or not given["step_size"] > 0 or (given["dynamics"] == "whitened" and "factor" not in given):
        raise Refusal("dynamics must be whitened or langevin, with a step size")
    found = build(given["step_size"])
    if "factor" in given:
        found = Dynamics(found.name, found.rule, found.memory, found.schedule, {"factor": jnp.asarray(given["factor"])})
    return found.tamed(given["mean"], given["limit"]) if "limit" in given else found


def _replace(file: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    partial = file.with_suffix(".partial")
    partial.write_bytes(data)
    os.replace(partial, file)
