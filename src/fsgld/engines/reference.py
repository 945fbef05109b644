"""The reference engine: a plain loop, one call of `client_update` per chain and round.

It is the meaning of the other engines. To step through it with a debugger, wrap the call to
`fsgld.sample(..., engine="reference")` in `with jax.disable_jit():`.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fsgld.algorithm import Rules, client_update
from fsgld.dynamics import Dynamics
from fsgld.engines import RUNAWAY, Chain, Federation, Plan, Trace, leave
from fsgld.randomness import numbers, round_keys

_update = partial(jax.jit, static_argnums=0)(client_update)
_leave = partial(jax.jit, static_argnums=0)(leave)


def advance(
    rules: Rules,
    plan: Plan,
    dynamics: Dynamics,
    federation: Federation,
    chains: Chain,
    root: Key[Array, ""],
    first_round: Int[Array, ""] | int,
    which: Int[Array, " chains"] | None = None,
) -> tuple[Chain, Trace]:
    """Take every chain `plan.rounds` rounds further; `which` are their numbers, by default 0, 1, …."""
    d, dtype = chains.state.theta.shape[-1], chains.state.theta.dtype
    ends, traces = [], []
    for c in range(plan.chains):
        chain = jax.tree.map(lambda leaf, c=c: leaf[c], chains)
        for r in range(int(first_round), int(first_round) + plan.rounds):
            keys = round_keys(root, c if which is None else which[c], r)
            s, mass = federation.presence.reassign(keys.client, r)
            steps = numbers(keys, plan.local_steps, rules.batch_size, d, dtype)
            state, draws = _update(rules, dynamics, federation.client(s, chain.table, mass), chain.state, steps)
            chain = _leave(rules, federation, chain, s, state)
            traces.append((draws, s, jnp.all(jnp.abs(state.theta) < RUNAWAY)))
        ends.append(chain)
    shape = (plan.chains, plan.rounds)
    stack = lambda *leaves: jnp.stack(leaves).reshape(*shape, *leaves[0].shape)  # noqa: E731
    return (
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *ends),
        Trace(*jax.tree.map(stack, *traces)),
    )
