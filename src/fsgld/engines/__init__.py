"""Engines carry chains between clients; they move `client_update` about and add no mathematics.

An engine is a function `advance(rules, plan, dynamics, federation, chains, root, first_round)`
that takes every chain `plan.rounds` rounds further and returns the new chains and a `Trace`.
`compiled` is the fast one, `reference` the plain one. Same seed, same chain.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from fsgld import randomness
from fsgld.algorithm import Client, Lots, Rules, conducive, reassign_chain
from fsgld.derivatives import Shard
from fsgld.dynamics import State
from fsgld.model import Row
from fsgld.programs import put
from fsgld.refresh import Table, anchor_one

RUNAWAY = 1e15  # a chain with a parameter beyond this has diverged, though it may still be finite


class Federation(NamedTuple):
    """All clients side by side, as an engine in one process sees them."""

    rows: Row
    starts: Int[Array, " S"]
    sizes: Int[Array, " S"]
    probs: Float[Array, " S"]  # f_s
    table: Table  # surrogates and memos; with refresh on visit every chain carries its own instead
    alpha: Float[Array, ""]
    presence: Presence
    lots: Lots | None = None

    def client(self, s: Int[Array, ""] | int, table: Table | None, mass: Float[Array, ""]) -> Client:
        """Set up client s for a visit: form q − q_s/f_s once; f_s is renormalised on the clients present."""
        table = self.table if table is None else table
        f_s = self.probs[s] / mass.astype(self.probs.dtype)
        g = conducive(table.total, table.surrogates[s], f_s, self.alpha)
        memo = jax.tree.map(lambda leaf: leaf[s], table.memos)
        lots = self.lots and self.lots._replace(start=self.lots.start[s], size=self.lots.size[s])
        return Client(self.rows, self.starts[s], self.sizes[s], f_s, g, memo, lots)

    def shard(self, s: Int[Array, ""] | int) -> Shard:
        """Say where client s has its rows."""
        return Shard(self.rows, self.starts[s], self.sizes[s])


class Presence(NamedTuple):
    """Who is there in which round: sets of clients, and the set of every round."""

    thresholds: UInt32[Array, "sets edges"]  # f renormalised on each set, as `randomness.thresholds` writes it
    mass: Float[Array, " sets"]  # the sum of f over each set
    last: Int[Array, " sets"]  # the last client of each set
    schedule: Int[Array, " rounds"]  # the set of each round; the last entry holds from then on
    sets: Bool[Array, "sets S"]

    def there(self, round: int) -> Bool[Array, " S"]:
        """Say which clients are there in a round."""
        return self.sets[self.schedule[min(round, len(self.schedule) - 1)]]

    def reassign(self, key: Key[Array, ""], round: Int[Array, ""] | int) -> tuple[Int[Array, ""], Float[Array, ""]]:
        """Pick one of the clients that are there in a round; give the sum of f over them as well."""
        # One set: its number is known, so that many rounds share its edges instead of copying them
        k = 0 if len(self.mass) == 1 else self.schedule[jnp.minimum(round, len(self.schedule) - 1)]
        # 32 bits cannot say "never" behind the last edge, hence the minimum
        return jnp.minimum(reassign_chain(key, self.thresholds[k]), self.last[k]), self.mass[k]


def everyone(probs: np.ndarray) -> Presence:
    """Say that all clients are there in all rounds."""
    return presence(probs, np.ones((1, len(probs)), bool))


def presence(probs: np.ndarray, present: np.ndarray) -> Presence:
    """Write down who is there: one row of `present` a round."""
    sets, schedule = np.unique(present, axis=0, return_inverse=True)
    f = np.where(sets, np.broadcast_to(probs, sets.shape), 0.0)
    mass = f.sum(1)
    edges = np.stack([randomness.thresholds(row / total) for row, total in zip(f, mass, strict=True)])
    last = sets.shape[1] - 1 - np.argmax(sets[:, ::-1], axis=1)
    rounds = put(schedule.reshape(-1), np.int32)
    return Presence(put(edges), put(mass), put(last, np.int32), rounds, put(sets))


class Chain(NamedTuple):
    """What an engine carries for a chain: its state and, with refresh on visit, a table of its own."""

    state: State
    table: Table | None


def leave(rules: Rules, federation: Federation, chain: Chain, s: Int[Array, ""], state: State) -> Chain:
    """Let the chain leave client s; with a table of its own, the client renews its row there (refresh on visit)."""
    if chain.table is None:
        return Chain(state, None)
    table = anchor_one(rules.model, rules.likelihood, chain.table, s, state.theta, federation.shard(s))
    return Chain(state, table)


class Plan(NamedTuple):
    """How the work of one call is cut; it never changes a result."""

    chains: int
    rounds: int  # rounds a call
    local_steps: int  # T
    group: int  # rounds whose random numbers are drawn together
    block: int  # steps whose random numbers are drawn together; it divides T
    together: bool  # whether chains advance side by side (vmap) or one after the other


class Trace(NamedTuple):
    """What one call leaves behind."""

    draws: Float[Array, "chains rounds kept d"]
    visited: Int[Array, "chains rounds"]
    alive: Bool[Array, "chains rounds"]  # whether |θ| < RUNAWAY at the end of the round
    there: Bool[np.ndarray, "rounds S"] | None = None  # who was there, where that is known only afterwards


def make_plan(chains: int, rounds: int, local_steps: int, m: int, d: int, record: int = 1) -> Plan:
    """Cut the work so that random numbers stay in the cache and progress shows.

    A pure function of the sizes, so that a resumed run is cut in the same places. On a CPU side by side pays for
    small models only; larger ones lose the fast matrix-vector products of a single chain.
    """
    cpu = jax.default_backend() == "cpu"
    together = chains > 1 and (m * d <= 256 or not cpu)
    numbers = 2**18 if cpu else 2**26  # drawn at once
    a_step = (chains if together else 1) * (m + d)
    block = largest_divisor(local_steps, numbers // a_step)
    group = 1 if block < local_steps else min(64, max(1, numbers // (a_step * block)))
    # A call is a power of two of rounds, so that runs of other lengths find the same program; at least
    # 16 calls a run, none longer than about two seconds, none that records more than 2^26 numbers.
    recorded = 2**26 * record // (local_steps * chains * d)
    two_seconds = 1e9 if cpu else 1e12  # of work, measured in numbers read
    a_call = min(rounds // 16, int(two_seconds / (local_steps * chains * m * d)), recorded)
    rounds_a_call = 2 ** max(0, int(np.log2(max(a_call, 1))))
    group = min(2 ** int(np.log2(group)), rounds_a_call)
    return Plan(chains, rounds_a_call, local_steps, group, block, together)


def largest_divisor(n: int, limit: int) -> int:
    """Find the largest divisor of n that is at most limit (1 if there is none)."""
    pairs = ((k, n // k) for k in range(1, int(n**0.5) + 1) if n % k == 0)
    return max((k for pair in pairs for k in pair if k <= limit), default=1)
