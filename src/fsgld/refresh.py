"""Tables of surrogates and memos, and how clients renew them while a run goes on.

`never` is the paper's. With `every=K` all clients that are there expand their log-likelihood anew every K rounds, at
the mean of the chains' θ at that moment; who is away keeps what it has. With `on_visit` the visited client expands
anew at the θ that leaves it, for that chain only; the old q_s served during the visit. What an estimate uses was made
before its random numbers were drawn, so it stays unbiased.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fsgld.derivatives import Shard, gradient, taylor
from fsgld.errors import InputError
from fsgld.likelihood import Likelihood, Memo
from fsgld.model import FlatModel, Theta
from fsgld.surrogates import Gaussian


class Table(NamedTuple):
    """What conducive gradients and control variates are made of, for all clients."""

    surrogates: Gaussian  # a stack, one a client
    total: Gaussian  # their product, summed once
    memos: Memo  # stacked too


def own_tables(refresh: str | int, table: Table, chains: int) -> Table | None:
    """Give each chain a table of its own, if clients refresh on visit."""
    if refresh == "never":
        return None
    if not jnp.any(jnp.asarray([jnp.any(leaf != 0) for leaf in jax.tree.leaves(table.surrogates)])):
        raise InputError("refresh renews surrogates, but surrogates is None; give surrogates (linear ones will do)")
    if refresh != "on_visit":
        return None
    numbers = chains * sum(leaf.size for leaf in jax.tree.leaves(table))
    if numbers > 2**29:
        raise InputError(
            f'refresh="on_visit" would carry {numbers:.2g} numbers with {chains} chains; use fewer chains, or diagonal'
            " or linear surrogates (fsgld.fit(model, shards, fsgld.anchored, ...))"
        )
    return jax.tree.map(lambda leaf: jnp.tile(leaf[None], (chains,) + (1,) * leaf.ndim), table)


@partial(jax.jit, static_argnums=(0, 1))
def anchor_all(
    flat: FlatModel, likelihood: Likelihood, table: Table, there: Bool[Array, " S"], theta: Theta, shards: Shard
) -> Table:
    """Let all clients that are there expand at θ; `shards` holds where each client's rows begin and how many."""
    rows, starts, sizes = shards

    def client(place: tuple[Array, Array]) -> tuple[Gaussian, Memo]:
        return _anchor(flat, likelihood, table.surrogates.kind, theta, Shard(rows, *place))

    def renew(old: Array, new: Array) -> Array:
        return jnp.where(there.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    new = jax.lax.map(client, (jnp.asarray(starts), jnp.asarray(sizes)))
    surrogates, memos = jax.tree.map(renew, (table.surrogates, table.memos), new)
    return Table(surrogates, surrogates.total(), memos)


@partial(jax.jit, static_argnums=(0, 1))
def anchor_each(
    flat: FlatModel, likelihood: Likelihood, table: Table, thetas: Float[Array, "chains d"], shards: Shard
) -> Table:
    """Give every chain a table of its own, for which all clients expand at its θ."""
    there = jnp.ones(len(table.surrogates.shift), bool)
    return jax.lax.map(lambda theta: anchor_all(flat, likelihood, table, there, theta, shards), thetas)


def anchor_one(
    flat: FlatModel, likelihood: Likelihood, table: Table, s: Int[Array, ""], theta: Theta, shard: Shard
) -> Table:
    """Let the client that was visited expand at θ; only its row of the table changes."""
    q_s, memo = _anchor(flat, likelihood, table.surrogates.kind, theta, shard)
    put = lambda stack, row: stack.at[s].set(row)  # noqa: E731
    surrogates = jax.tree.map(put, table.surrogates, q_s)
    # summed anew, not updated: rounding would add up over many visits
    return Table(surrogates, surrogates.total(), jax.tree.map(put, table.memos, memo))


def _anchor(flat: FlatModel, likelihood: Likelihood, kind: str, theta: Theta, shard: Shard) -> tuple[Gaussian, Memo]:
    """Expand one client's log-likelihood at θ; keep what its likelihood slot needs."""
    G = gradient(flat, theta, shard)
    return taylor(flat, theta, shard, kind, G), likelihood.memo(theta, G)
