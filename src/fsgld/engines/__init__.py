"""Engines carry chains between clients; they move `client_update` about and add no mathematics.

An engine is a function `advance(rules, plan, dynamics, federation, states, root, first_round)`
that takes every chain `plan.rounds` rounds further and returns the new states and a `Trace`.
`compiled` is the fast one, `reference` the plain one. Same seed, same chain.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from fsgld.algorithm import Client, conducive
from fsgld.likelihood import Memo
from fsgld.model import Row
from fsgld.surrogates import Gaussian

RUNAWAY = 1e15  # a chain with a parameter beyond this has diverged, though it may still be finite


class Federation(NamedTuple):
    """All clients side by side, as an engine in one process sees them."""

    rows: Row
    starts: Int[Array, " S"]
    sizes: Int[Array, " S"]
    probs: Float[Array, " S"]
    thresholds: UInt32[Array, " edges"]
    surrogates: Gaussian  # a stack, one a client
    total: Gaussian  # their product, summed once
    alpha: Float[Array, ""]
    memos: Memo  # stacked too

    def client(self, s: Int[Array, ""] | int) -> Client:
        """Set up client s for a visit: form q − q_s/f_s once."""
        f_s = self.probs[s]
        g = conducive(self.total, self.surrogates[s], f_s, self.alpha)
        memo = jax.tree.map(lambda leaf: leaf[s], self.memos)
        return Client(self.rows, self.starts[s], self.sizes[s], f_s, g, memo)


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


def make_plan(chains: int, rounds: int, local_steps: int, m: int, d: int, record: int = 1) -> Plan:
    """Cut the work so that random numbers stay in the cache and progress shows.

    A pure function of the sizes, so that a resumed run is cut in the same places. On a CPU side by side pays for
    small models only; larger ones lose the fast matrix-vector products of a single chain.
    """
    cpu = jax.default_backend() == "cpu"
    together = chains > 1 and (m * d <= 256 or not cpu)
    numbers = 2**18 if cpu else 2**26  # drawn at once
    a_step = (chains if together else 1) * (m + d)
    block = _largest_divisor(local_steps, numbers // a_step)
    group = 1 if block < local_steps else min(64, max(1, numbers // (a_step * block)))
    # A call is a power of two of rounds, so that runs of other lengths find the same program; at least
    # 16 calls a run, none longer than about two seconds, none that records more than 2^26 numbers.
    recorded = 2**26 * record // (local_steps * chains * d)
    a_call = min(rounds // 16, int(1e9 / (local_steps * chains * m * d)), recorded)
    rounds_a_call = 2 ** max(0, int(np.log2(max(a_call, 1))))
    group = min(2 ** int(np.log2(group)), rounds_a_call)
    return Plan(chains, rounds_a_call, local_steps, group, block, together)


def _largest_divisor(n: int, limit: int) -> int:
    """Find the largest divisor of n that is at most limit (1 if there is none)."""
    pairs = ((k, n // k) for k in range(1, int(n**0.5) + 1) if n % k == 0)
    return max((k for pair in pairs for k in pair if k <= limit), default=1)
