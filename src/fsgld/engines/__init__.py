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


class Trace(NamedTuple):
    """What one call leaves behind."""

    draws: Float[Array, "chains rounds kept d"]
    visited: Int[Array, "chains rounds"]
    finite: Bool[Array, "chains rounds"]  # whether θ was finite at the end of the round


def make_plan(chains: int, rounds: int, local_steps: int, m: int, d: int) -> Plan:
    """Cut the work so that random numbers stay in the cache and progress shows.

    A pure function of the sizes, so that a resumed run is cut in the same places.
    """
    numbers = 2**18 if jax.default_backend() == "cpu" else 2**26
    a_step = chains * (m + d)
    fits = [b for b in range(1, local_steps + 1) if local_steps % b == 0 and b * a_step <= numbers]
    block = max(fits, default=1)
    group = 1 if block < local_steps else int(np.clip(numbers // (a_step * block), 1, 64))
    calls = max(20, 1 + int(rounds * local_steps * chains * m * d / 1e9))
    rounds_a_call = -(-rounds // min(calls, rounds))
    group = min(group, rounds_a_call)
    return Plan(chains, -(-rounds_a_call // group) * group, local_steps, group, block)
