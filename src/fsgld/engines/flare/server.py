"""The coordinator's engine: it moves chains to the sites.

In a round it draws where each chain goes, sends every site ONE message with all chains that go there, and waits for
all. If a site does not answer as it should, for all retries, it is away, and the round is done again for all chains
with those who are there: the law of every round is that of `present` in `fsgld.sample`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fsgld.algorithm import Rules
from fsgld.dynamics import Dynamics, State
from fsgld.engines import RUNAWAY, Chain, Federation, Plan, Presence, Trace, presence
from fsgld.engines.flare.messages import Message, MessageError
from fsgld.engines.flare.post import LegOver, Refused, SiteGone
from fsgld.engines.flare.sites import Sites, as_fields
from fsgld.engines.flare.visit import CONSTANTS, MEMO, OWN
from fsgld.errors import InputError
from fsgld.randomness import round_keys
from fsgld.refresh import Table
from fsgld.surrogates import Gaussian


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

    @property
    def present(self) -> list[str]:
        """The sites that are there."""
        return [site for site, there in zip(self.sites.names, self.here, strict=True) if there]

    def _visit(
        self, rules: Rules, plan: Plan, dynamics: Dynamics, federation: Federation, chains: Chain, root: Any,
        number: int, mass: float, s: int, who: np.ndarray,
    ) -> dict[str, Any]:  # fmt: skip
        """Send the chains in `who` to site s and wait for them."""
        site, state = self.sites.names[s], chains.state
        fields = {
            "mass": mass, "chains": who.astype(np.int32), "theta": np.asarray(state.theta)[who],
            "t": np.asarray(state.t)[who],
            **({"memory": np.asarray(state.memory)[who]} if jax.tree.leaves(state.memory) else {}),
            **_own_rows(chains.table, who, s),
        }  # fmt: skip
        check = partial(self._check_reply, plan, rules, dynamics, number, len(who), frozenset(fields))
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
        c, table, h = dynamics.constants, federation.table, dynamics.schedule
        fields = {
            "dynamics": dynamics.name, "schedule": h.name,
            "numbers": np.array([float(h.numbers[name]) for name in sorted(h.numbers)]),
            "factor": c.get("factor"), "mean": c.get("mean"),
            **{name: float(c[name]) for name in ("limit", *CONSTANTS) if name in c},
            "likelihood": rules.likelihood.name, "batch_size": rules.batch_size, "local_steps": plan.local_steps,
            "record": rules.record, "seed": int(np.asarray(jax.random.key_data(root))[1]), "chains": plan.chains,
            "alpha": float(federation.alpha), "prob": float(federation.probs[s]),
            "few": None if federation.lots is None else self.sites.drawn["few"],
            **{name: leaf[s] for name, leaf in zip(MEMO, table.memos, strict=False)},
            **as_fields(table.total, "total_"), **as_fields(table.surrogates[s], ""),
        }  # fmt: skip
        self.setup[site] = self.post.call(site, "setup", fields, first=True)["setup"]

    def _check_reply(
        self, plan: Plan, rules: Rules, dynamics: Dynamics, number: int, count: int, sent: frozenset[str], site: str,
        reply: Message,
    ) -> None:  # fmt: skip
        """Refuse what cannot be the end of this visit."""
        given, kept = reply.fields, plan.local_steps // rules.record
        tamed = "limit" in dynamics.constants
        if len(given["t"]) != count or not (given["t"] == (number + 1) * plan.local_steps).all():
            raise MessageError("chains that are not at the end of this round")
        state = {"memory", *OWN} & sent
        if state != {"memory", *OWN} & set(given) or (given["draws"].shape[1] if "draws" in given else 1) != kept:
            raise MessageError("a state or draws of another shape")
        if tamed and not all(np.isfinite(value).all() for value in given.values()):
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
        table = None if chains.table is None else _put_rows(chains.table, s, {name: join(name) for name in replies[0]})
        return Chain(state, table), Trace(
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


def _own_rows(table: Table | None, who: np.ndarray, s: int) -> dict[str, Any]:
    """Write what chains with tables of their own (refresh on visit) have for site s, and the products of all."""
    if table is None:
        return {}
    q, memos = jax.tree.map(lambda leaf: np.asarray(leaf)[who, s], (table.surrogates, table.memos))
    total = jax.tree.map(lambda leaf: np.asarray(leaf)[who], table.total)
    return {**as_fields(q, ""), **as_fields(total, "total_"), **dict(zip(MEMO, memos, strict=False))}


def _put_rows(table: Table, s: np.ndarray, new: dict[str, Any]) -> Table:
    """Put what each chain c brought back from site s[c] into its table, and sum anew."""
    put = lambda stack, row: stack.at[np.arange(len(s)), s].set(row)  # noqa: E731
    memos = tuple(new[name] for name in MEMO[: len(table.memos)])
    renewed = jax.tree.map(put, (table.surrogates, table.memos), (Gaussian(new["shift"], new.get("precision")), memos))
    return Table(renewed[0], jax.vmap(Gaussian.total)(renewed[0]), renewed[1])
