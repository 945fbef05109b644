"""The compiled engine: all rounds of all chains of a call as one XLA program.

scan over groups of rounds (draws the random numbers) → scan over rounds (picks the client, forms
q − q_s/f_s) → scan over steps (only what depends on θ). The scan between drawing and using numbers keeps
XLA from drawing them again at every step.
"""

from __future__ import annotations

from functools import partial
from math import gcd

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from fsgld.algorithm import Client, Rules, client_update, reassign_chain
from fsgld.dynamics import Dynamics, State
from fsgld.engines import RUNAWAY, Federation, Plan, Trace
from fsgld.randomness import Numbers, RoundKeys, numbers, round_keys


@partial(jax.jit, static_argnames=("rules", "plan"))
def advance(
    rules: Rules,
    plan: Plan,
    dynamics: Dynamics,
    federation: Federation,
    states: State,
    root: Key[Array, ""],
    first_round: Int[Array, ""] | int,
) -> tuple[State, Trace]:
    """Take every chain `plan.rounds` rounds further."""

    def draw(keys: RoundKeys, first: Int[Array, ""] | int = 0) -> Numbers:
        d, dtype = states.theta.shape[-1], states.theta.dtype
        return numbers(keys, plan.block, rules.batch_size, d, dtype, first)

    def visit(state: State, arrival: tuple) -> tuple[State, tuple]:
        s, what = arrival
        client = federation.client(s)
        if isinstance(what, Numbers):
            state, draws = client_update(rules, dynamics, client, state, what)
        else:
            state, draws = visit_in_blocks(client, state, what)
        return state, (draws, s, jnp.all(jnp.abs(state.theta) < RUNAWAY))

    def visit_in_blocks(client: Client, state: State, keys: RoundKeys) -> tuple[State, Array]:
        record = gcd(plan.block, rules.record)

        def block(state: State, first: Array) -> tuple[State, Array]:
            short = rules._replace(record=record)
            return client_update(short, dynamics, client, state, draw(keys, first))

        firsts = jnp.arange(0, plan.local_steps, plan.block)
        state, draws = jax.lax.scan(block, state, firsts)
        stride = rules.record // record
        return state, draws.reshape(-1, draws.shape[-1])[stride - 1 :: stride]

    def chain(state: State, c: Array) -> tuple[State, tuple]:
        def group(state: State, first: Array) -> tuple[State, tuple]:
            keys = jax.vmap(partial(round_keys, root, c))(first + jnp.arange(plan.group))
            clients = jax.vmap(partial(reassign_chain, thresholds=federation.thresholds))(keys.client)
            whole = plan.block == plan.local_steps
            return jax.lax.scan(visit, state, (clients, jax.vmap(draw)(keys) if whole else keys))

        firsts = first_round + jnp.arange(0, plan.rounds, plan.group)
        return jax.lax.scan(group, state, firsts)

    every_chain = (states, jnp.arange(plan.chains))
    if plan.together:
        states, out = jax.vmap(chain)(*every_chain)
    else:
        states, out = jax.lax.map(lambda one: chain(*one), every_chain)
    merge = lambda leaf: leaf.reshape(plan.chains, plan.rounds, *leaf.shape[3:])  # noqa: E731
    return states, Trace(*map(merge, out))
