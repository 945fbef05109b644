"""The compiled engine: all rounds of all chains of a call as one XLA program.

scan over groups of rounds (draws the random numbers) → scan over rounds (picks the client, forms
q − q_s/f_s) → scan over steps (only what depends on θ). The scan between drawing and using numbers keeps
XLA from drawing them again at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from fsgld.algorithm import Client, Rules, client_update
from fsgld.columns import blank_row
from fsgld.dynamics import Dynamics, State
from fsgld.engines import RUNAWAY, Chain, Federation, Plan, Trace, leave
from fsgld.model import FlatModel, Row
from fsgld.programs import OWN_PRODUCTS, may_set
from fsgld.randomness import Numbers, RoundKeys, numbers, round_keys
from fsgld.rewrite import suits


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
    rewritten = may_set(OWN_PRODUCTS) and _suits(rules, chains.state.theta, federation.rows)
    rules = rules._replace(model=rules.model._replace(rewritten=rewritten))
    return PROGRAMS[rewritten](rules, plan, dynamics, federation, chains, root, first_round, which)


def _advance(
    rules: Rules,
    plan: Plan,
    dynamics: Dynamics,
    federation: Federation,
    chains: Chain,
    root: Key[Array, ""],
    first_round: Int[Array, ""] | int,
    which: Int[Array, " chains"] | None,
) -> tuple[Chain, Trace]:
    """Do what `advance` says in one program."""
    d, dtype = chains.state.theta.shape[-1], chains.state.theta.dtype

    def draw(keys: RoundKeys, first: Int[Array, ""] | int = 0) -> Numbers:
        return numbers(keys, plan.block, rules.batch_size, d, dtype, first, partial(_once, first_round))

    def visit(chain: Chain, arrival: tuple) -> tuple[Chain, tuple]:
        s, mass, what = arrival
        client = federation.client(s, chain.table, mass)
        if isinstance(what, Numbers):
            state, draws = client_update(rules, dynamics, client, chain.state, what)
        else:
            state, draws = visit_in_blocks(client, chain.state, what)
        return leave(rules, federation, chain, s, state), (draws, s, jnp.all(jnp.abs(state.theta) < RUNAWAY))

    def visit_in_blocks(client: Client, state: State, keys: RoundKeys) -> tuple[State, Array]:
        record = gcd(plan.block, rules.record)

        def block(state: State, first: Array) -> tuple[State, Array]:
            short = rules._replace(record=record)
            return client_update(short, dynamics, client, state, draw(keys, first))

        firsts = jnp.arange(0, plan.local_steps, plan.block)
        state, draws = jax.lax.scan(block, state, firsts)
        stride = rules.record // record
        return state, draws.reshape(-1, draws.shape[-1])[stride - 1 :: stride]

    def travel(chain: Chain, c: Array) -> tuple[Chain, tuple]:
        def group(chain: Chain, first: Array) -> tuple[Chain, tuple]:
            rounds = first + jnp.arange(plan.group)
            keys = jax.vmap(partial(round_keys, root, c))(rounds)
            clients, mass = jax.vmap(federation.presence.reassign)(keys.client, rounds)
            whole = plan.block == plan.local_steps
            return jax.lax.scan(visit, chain, (clients, mass, jax.vmap(draw)(keys) if whole else keys))

        firsts = first_round + jnp.arange(0, plan.rounds, plan.group)
        return jax.lax.scan(group, chain, firsts)

    every_chain = (chains, jnp.arange(plan.chains) if which is None else which)
    if plan.together:
        chains, out = jax.vmap(travel)(*every_chain)
    else:
        chains, out = jax.lax.map(lambda one: travel(*one), every_chain)
    merge = lambda leaf: leaf.reshape(plan.chains, plan.rounds, *leaf.shape[3:])  # noqa: E731
    return chains, Trace(*map(merge, out))


def _once(first_round: Int[Array, ""] | int, draw: Callable[[], Array]) -> Array:
    """Draw behind a condition that always holds: on a CPU XLA fuses nothing across it, so it keeps what was drawn."""
    if jax.default_backend() != "cpu":
        return draw()
    what = jax.eval_shape(draw)
    return jax.lax.cond(jnp.asarray(first_round) >= 0, draw, lambda: jnp.zeros(what.shape, what.dtype))


PROGRAMS = {
    False: jax.jit(_advance, static_argnames=("rules", "plan")),
    True: jax.jit(_advance, static_argnames=("rules", "plan"), compiler_options=OWN_PRODUCTS),
}


def _suits(rules: Rules, thetas: Float[Array, "chains d"], rows: Row) -> bool:
    """Whether rewriting the gradient pays; found out once for every model and size."""
    columns, structure = jax.tree.flatten(blank_row(rows))
    looks = [(thetas.shape[1:], thetas.dtype), *((column.shape, column.dtype) for column in columns)]
    return _suits_shapes(jax.dtypes.canonicalize_dtype(float), rules.model, rules.batch_size, structure, *looks)


@lru_cache
def _suits_shapes(precision: Any, model: FlatModel, m: int, structure: Any, theta: tuple, *columns: tuple) -> bool:
    """Answer for shapes and types; another default precision of JAX traces a model otherwise."""
    batch = jax.tree.unflatten(structure, [np.empty((m, *shape), dtype) for shape, dtype in columns])
    return suits(model.grad_log_likelihood, np.empty(*theta), batch)
