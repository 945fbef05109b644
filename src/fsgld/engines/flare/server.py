"""The coordinator's side of a run: a table of rows that are elsewhere, and an engine that moves chains to them.

`Sites` takes the place of the clients' table in `fsgld.sample`: questions about rows go to the sites, all at once.
`Travel` is the engine. In a round it draws where each chain goes, sends every site ONE message with all chains that
go there, and waits for all. If a site does not answer as it should, for all retries, it is away, and the round is
done again for all chains with those who are there: the law of every round is that of `present` in `fsgld.sample`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fsgld.algorithm import Lots, Rules
from fsgld.dynamics import Dynamics, State
from fsgld.engines import RUNAWAY, Chain, Federation, Plan, Presence, Trace, presence
from fsgld.engines.flare.messages import Message, MessageError
from fsgld.engines.flare.post import LegOver, Post, Refused, SiteGone
from fsgld.errors import InputError
from fsgld.likelihood import plain
from fsgld.probes import Noise, Residual
from fsgld.randomness import round_keys
from fsgld.shards import Data, Shards
from fsgld.surrogates import Gaussian


@dataclass(frozen=True)
class Sites(Shards):
    """The clients' table of a federation: sizes and names are here, rows are not."""

    post: Post | None = None
    data: tuple[str, ...] = ()  # the sites' words for their data
    drawn: dict[str, Any] = field(default_factory=dict)  # the probes that rows get their lots by

    @staticmethod
    def meet(post: Post, names: tuple[str, ...]) -> Sites:
        """Say hello to all sites: how many rows they have, and of what structure."""
        answers, gone = post.each({site: partial(post.ask, site, "hello", {}) for site in names})
        for error in gone.values():
            raise error
        first = answers[names[0]]["columns"]
        for site in names:
            if answers[site]["columns"] != first:
                raise InputError(f"{site} has columns {answers[site]['columns']}, but {names[0]} has {first}")
        sizes = np.array([answers[site]["rows"] for site in names], np.int32)
        data = tuple(answers[site]["data"] for site in names)
        return Sites(_skeleton(first), np.zeros_like(sizes), sizes, names, post, data)

    def shard(self, s: int) -> Data:
        """Give no rows: they are at their site."""
        return jax.tree.map(lambda leaf: leaf[:0], self.rows)

    def fingerprint(self) -> str:
        """Say which data these are, in the sites' words."""
        return " ".join(self.data)

    def ask(self, question: str, given: dict[str, Any]) -> Any:
        """Put a question to all sites at once and stack their answers."""
        assert self.post is not None
        jobs = {site: partial(self.post.ask, site, question, self._fields(question, given, s))
                for s, site in enumerate(self.names)}  # fmt: skip
        answers, gone = self.post.each(jobs)
        for error in gone.values():
            raise error
        ordered = [answers[site] for site in self.names]
        join: Any = lambda name: jnp.concatenate([jnp.asarray(one[name]) for one in ordered])  # noqa: E731
        if question == "all_clients":
            return join("value"), join("gradient"), None if given["kind"] is None else join("curvature")
        if question == "mean_derivatives":
            return np.asarray(join("gradient")), np.asarray(join("curvature"))
        if question == "residuals":
            return Residual(join("value"), join("growth"))
        if question == "noise_of_some":
            return Noise(join("variance"), join("leverage"))
        self.drawn["few"] = np.asarray(given["points"])
        counts = jnp.asarray([one["lots"] for one in ordered], jnp.int32)  # the lots themselves stay at their sites
        return Lots(jnp.zeros(0, jnp.int32), jnp.zeros(0), jnp.zeros_like(counts), counts)

    def _fields(self, question: str, given: dict[str, Any], s: int) -> dict[str, Any]:
        """Write the arguments of a question as the fields of a request to site s."""
        fields = {name: value for name, value in given.items() if name not in ("flat", "surrogates", "lots", "kind")}
        if question == "all_clients":
            fields["form"] = given["kind"]
        if "surrogates" in given:
            fields |= _gaussian(given["surrogates"][s], "")
        if question == "noise_of_some":
            total, most = int(self.sizes.sum()), given["most"]
            fields["most"] = most if total <= most else max(most // len(self.names), 1000)
            fields["few"] = None if given["lots"] is None else self.drawn["few"]
        return fields


class Travel:
    """The engine: moves chains between sites, and finds out who is there."""

    def __init__(
        self, sites: Sites, here: set[str], announce: Callable[[dict[str, Any]], None] = lambda news: None,
        stop: Callable[[], bool] = lambda: False, every: float = 5.0,
    ) -> None:  # fmt: skip
        assert sites.post is not None
        self.sites, self.post, self.announce, self.stop = sites, sites.post, announce, stop
        self.here = np.array([site in here for site in sites.names])
        self.reachable = self.here.copy()  # in this leg at all
        self.setup: dict[str, str] = {}
        self.every, self.looked, self.looking = every, time.monotonic(), threading.Lock()
        for site, there in zip(sites.names, self.here, strict=True):
            self.post.book(event="back" if there else "away", site=site, why="when the leg began")

    def __call__(
        self, rules: Rules, plan: Plan, dynamics: Dynamics, federation: Federation, chains: Chain, root: Any, first: Any
    ) -> tuple[Chain, Trace]:  # fmt: skip
        """Take every chain one round further."""
        number = int(first)
        while True:
            if self.stop():
                raise LegOver("asked to stop")
            self._look_for_returns()
            there = self.here.copy()
            if not there.all():
                self._check_surrogates(federation, there)
            if not there.any():
                raise LegOver("no site is there")
            where = presence(np.asarray(federation.probs, float), there[None])
            s, mass = _assign(where, root, jnp.arange(plan.chains), jnp.int32(number))
            visits = {int(k): np.flatnonzero(np.asarray(s) == k) for k in np.unique(np.asarray(s))}
            job = partial(self._visit, rules, plan, dynamics, federation, chains, root, number, float(mass[0]))
            done, gone = self.post.each({self.sites.names[k]: partial(job, k, who) for k, who in visits.items()})
            if not gone:
                return self._arrive(chains, done, visits, np.asarray(s), number, there)
            for site, error in gone.items():
                self.here[self.sites.names.index(site)] = False
                self.post.book(event="away", site=site, why=error.why, round=number)
                self.announce({"away": site, "why": error.why, "round": number})

    def _visit(
        self, rules: Rules, plan: Plan, dynamics: Dynamics, federation: Federation, chains: Chain, root: Any,
        number: int, mass: float, s: int, who: np.ndarray,
    ) -> dict[str, Any]:  # fmt: skip
        """Send the chains in `who` to site s and wait for them."""
        site, state = self.sites.names[s], chains.state
        fields = {
            "mass": mass, "chains": who.astype(np.int32), "theta": np.asarray(state.theta)[who],
            "t": np.asarray(state.t)[who],
            "memory": np.asarray(state.memory)[who] if "limit" in dynamics.constants else None,
        }  # fmt: skip
        check = partial(self._check_reply, plan, rules, dynamics, number, len(who))
        first = site not in self.setup
        if first:
            self._introduce(site, s, rules, plan, dynamics, federation, root)
        try:
            return self.post.call(site, "update", fields | {"setup": self.setup[site]}, number, check, first)
        except Refused as refusal:
            if "unknown setup" not in str(refusal):
                raise SiteGone(site, str(refusal)) from None
            self._introduce(site, s, rules, plan, dynamics, federation, root)
            return self.post.call(site, "update", fields | {"setup": self.setup[site]}, number, check, True)

    def _introduce(
        self, site: str, s: int, rules: Rules, plan: Plan, dynamics: Dynamics, federation: Federation, root: Any
    ) -> None:  # fmt: skip
        """Tell a site what the run is like: its surrogate, the product of all, coordinates and sizes."""
        c, table = dynamics.constants, federation.table
        memo = (
            {} if rules.likelihood.name == plain.name else dict(zip(("anchor", "gradient"), table.memos, strict=True))
        )
        fields = {
            "dynamics": dynamics.name, "step_size": float(dynamics.schedule(jnp.zeros((), jnp.int32))),
            "factor": c.get("factor"), "mean": c.get("mean"), "limit": float(c["limit"]) if "limit" in c else None,
            "likelihood": rules.likelihood.name, "batch_size": rules.batch_size, "local_steps": plan.local_steps,
            "record": rules.record, "seed": int(np.asarray(jax.random.key_data(root))[1]), "chains": plan.chains,
            "alpha": float(federation.alpha), "prob": float(federation.probs[s]),
            "few": None if federation.lots is None else self.sites.drawn["few"],
            **{name: leaf[s] for name, leaf in memo.items()},
            **_gaussian(table.total, "total_"), **_gaussian(table.surrogates[s], ""),
        }  # fmt: skip
        self.setup[site] = self.post.call(site, "setup", fields, first=True)["setup"]

    def _check_reply(
        self, plan: Plan, rules: Rules, dynamics: Dynamics, number: int, count: int, site: str, reply: Message
    ) -> None:
        """Refuse what cannot be the end of this visit."""
        given, kept = reply.fields, plan.local_steps // rules.record
        tamed = "limit" in dynamics.constants
        if len(given["t"]) != count or not (given["t"] == (number + 1) * plan.local_steps).all():
            raise MessageError("chains that are not at the end of this round")
        if tamed != ("memory" in given) or (given["draws"].shape[1] if "draws" in given else 1) != kept:
            raise MessageError("a state or draws of another shape")
        if tamed and not all(np.isfinite(given[name]).all() for name in ("theta", "draws") if name in given):
            raise MessageError("numbers that are not finite")  # a tamed chain cannot run away: this is no divergence

    def _arrive(
        self, chains: Chain, done: dict[str, Any], visits: dict[int, np.ndarray], s: np.ndarray, number: int,
        there: np.ndarray,
    ) -> tuple[Chain, Trace]:  # fmt: skip
        """Put the replies together, in the order of the chains."""
        order = np.argsort(np.concatenate(list(visits.values())))
        replies = [done[self.sites.names[k]] for k in visits]
        join: Any = lambda name: jnp.asarray(np.concatenate([reply[name] for reply in replies])[order])  # noqa: E731
        theta = join("theta").astype(chains.state.theta.dtype)
        memory = join("memory") if "memory" in replies[0] else chains.state.memory
        state = State(theta, memory, join("t"))
        draws = join("draws") if "draws" in replies[0] else theta[:, None]
        alive = (np.abs(np.asarray(theta)) < RUNAWAY).all(-1)
        self.announce({"round": number + 1, "theta": np.asarray(theta), "there": there})
        return Chain(state, None), Trace(
            draws[:, None], jnp.asarray(s)[:, None], jnp.asarray(alive)[:, None], there[None]
        )

    def _check_surrogates(self, federation: Federation, there: np.ndarray) -> None:
        """Stop where a site is away and nothing stands in for its data."""
        if not any(bool((leaf != 0).any()) for leaf in jax.tree.leaves(federation.table.surrogates)):
            name = self.sites.names[int(np.argmin(there))]
            raise InputError(
                f"{name} is away, and without surrogates its data would be missing from the posterior; the run stops"
                " here and its checkpoint is kept: run again when the site is back"
            )

    def _look_for_returns(self) -> None:
        """From time to time say hello to those of this leg who are away; who answers is back from the next round on."""
        waiting = list(np.flatnonzero(self.reachable & ~self.here))
        if not waiting or time.monotonic() < self.looked + self.every or not self.looking.acquire(blocking=False):
            return

        def look() -> None:
            try:
                for s in waiting:
                    self._greet(int(s))
            finally:
                self.looked = time.monotonic()
                self.looking.release()

        self.post.pool.submit(look)

    def _greet(self, s: int) -> None:
        site = self.sites.names[s]
        try:
            if self.post.call(site, "hello", {})["data"] != self.sites.data[s]:
                raise MessageError("its data have changed since the run began")
        except Exception as error:
            self.post.book(event="still away", site=site, why=str(error)[:200])
            return
        self.here[s] = True
        self.setup.pop(site, None)
        self.post.book(event="back", site=site)
        self.announce({"back": site})


@jax.jit
def _assign(where: Presence, root: Any, chains: Any, number: Any) -> Any:
    """Draw where each chain goes in a round."""
    return jax.vmap(lambda c: where.reassign(round_keys(root, c, number).client, 0))(chains)


def _gaussian(q: Gaussian, prefix: str) -> dict[str, Any]:
    """Write a surrogate as fields; a diagonal one as a matrix."""
    precision = None if q.precision is None else q.to("dense").precision
    return {f"{prefix}shift": q.shift, f"{prefix}precision": precision}


def _skeleton(columns: list[str]) -> Data:
    """Build a table of the sites' structure with one row of noughts, to trace the model with."""
    tree: Any = {}
    for column in columns:
        path, dtype, shape = column.split(" ", 2)
        leaf = np.zeros([1, *map(int, re.findall(r"\d+", shape))], dtype)
        *inner, last = ["", *(name or int(place) for name, place in re.findall(r"\['([^']*)'\]|\[(\d+)\]", path))]
        node = tree
        for key in inner:
            node = node.setdefault(key, {})
        node[last] = leaf
    return jax.tree.map(jnp.asarray, _tuples(tree[""]))


def _tuples(tree: Any) -> Any:
    """Turn dicts with numbers for keys into tuples."""
    if not isinstance(tree, dict):
        return tree
    parts = {key: _tuples(value) for key, value in tree.items()}
    return tuple(parts[i] for i in range(len(parts))) if all(isinstance(key, int) for key in parts) else parts
