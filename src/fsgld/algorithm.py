"""ALGORITHM 1 of the paper, line by line: the client's Update and the server's Reassign_chain.

Letters are the paper's: θ (theta), client s, its N_s rows x_s, mini-batch size m, selection
probability f_s, surrogate q_s and their product q, step size h_t, noise η_t = √h_t ξ_t, T local steps.
Engines move these functions about and add no mathematics.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Int, Key, UInt32

from fsgld.columns import blank_row, take
from fsgld.dynamics import Dynamics, State
from fsgld.likelihood import Likelihood, Memo
from fsgld.model import FlatModel, Row
from fsgld.randomness import Numbers, pick_client, pick_rows
from fsgld.surrogates import Gaussian


class Client(NamedTuple):
    """What client s holds when a chain arrives."""

    rows: Row  # a table with x_s in it; at a real site nothing else is in it
    start: Int[Array, ""]  # where x_s begins in the table
    size: Int[Array, ""]  # N_s
    prob: Float[Array, ""]  # f_s
    conducive: Gaussian  # α (q − q_s / f_s), formed once a visit
    memo: Memo  # what the likelihood slot keeps: nothing, or the anchor a and G_s(a)
    lots: Lots | None = None  # which rows are drawn how often; None: all evenly


class Lots(NamedTuple):
    """Rows drawn unevenly: row i has c_i of a client's K_s lots, so p_i = c_i/K_s, and weight w_i = 1/(N_s p_i)."""

    rows: Int[Array, " lots"]  # the row of each lot, client after client
    weights: Float[Array, " rows"]  # w_i
    start: Int[Array, ""]  # where the lots of client s begin; for all clients a vector
    size: Int[Array, ""]  # K_s


class Rules(NamedTuple):
    """What is fixed when a program is compiled."""

    model: FlatModel
    likelihood: Likelihood
    batch_size: int  # m
    record: int = 1  # keep every so-many-th θ; it divides T


def client_update(
    rules: Rules, dynamics: Dynamics, client: Client, state: State, numbers: Numbers
) -> tuple[State, Float[Array, "kept d"]]:
    """Client-side Update(T, θ_0, s): T steps on the client's own rows.

    With d_s the DSGLD estimator and g_s = ∇log q − (1/f_s) ∇log q_s the conducive gradient,

        θ_{t+1} = θ_t + (h_t/2)(d_s + α g_s) + η_t          (Eq. 5; Remark 1 for α)

    for `langevin`; other dynamics use the same estimate d_s + α g_s. Two calls with half of the
    numbers each do the same as one call with all of them.
    """
    model, likelihood = rules.model, rules.likelihood
    inverse = 1 / client.prob  # 1/f_s, divided once a visit
    scale = (client.size / rules.batch_size).astype(state.theta.dtype)  # N_s/m

    def fetch(index: Int[Array, " m"]) -> tuple[Row, Array | None, Array | None]:
        batch, w = take(client.rows, index), client.lots and take(client.lots.weights, index)
        return batch, w, likelihood.offset(model, client.memo, batch, scale, w)

    # Sample mini-batches of size m from x_s, one for every t: here their row numbers, and the
    # rows as well if they fit in the cache; larger ones are fetched in their step
    index = draw_rows(client, numbers.row_bits)
    ahead = _fits_in_cache(client.rows, rules.batch_size)
    minibatches = jax.vmap(fetch)(index) if ahead else index

    def step(state: State, draw: tuple[Any, Array]) -> State:
        minibatch, xi = draw
        batch, w, offset = minibatch if ahead else fetch(minibatch)
        # d_s ← ∇log p(θ) + (1/f_s) (N_s/m) ∇log p(x_s^(m) | θ)
        likelihood_gradient = likelihood.gradient(model, state.theta, batch, scale, offset, w)
        d_s = model.grad_log_prior(state.theta) + inverse * likelihood_gradient
        # g_s ← −(1/f_s) ∇log q_s(θ) + ∇log q(θ)
        g_s = client.conducive.grad_log(state.theta)
        # θ_{t+1} ← θ_t + (h_t/2)(d_s + g_s) + η_t
        return dynamics.step(state, d_s + g_s, xi)

    # for t = 0 … T−1
    return _scan(step, state, (minibatches, numbers.xi), rules.record)


def reassign_chain(key: Key[Array, ""], thresholds: UInt32[Array, " edges"]) -> Int[Array, ""]:
    """Server-side Reassign_chain: c ~ Categorical(f_1, …, f_S), the client that is next.

    `thresholds` are the probabilities as `randomness.thresholds` writes them. Storing the
    received chain and passing it on is the engine's part.
    """
    return pick_client(key, thresholds)


def conducive(total: Gaussian, q_s: Gaussian, f_s: Array | float, alpha: Array | float) -> Gaussian:
    """Form log(q / q_s^(1/f_s))^α, whose gradient is the conducive gradient α g_s (Eq. 6)."""
    return alpha * (total - q_s / f_s)


def draw_rows(client: Client, row_bits: UInt32[Array, "T m"]) -> Int[Array, "T m"]:
    """Turn random bits into places in the table: rows of client s, with replacement."""
    if client.lots is None:
        return client.start + pick_rows(row_bits, client.size)
    return take(client.lots.rows, client.lots.start + pick_rows(row_bits, client.lots.size))


def _fits_in_cache(rows: Row, m: int) -> bool:
    """Whether mini-batches are small enough to fetch those of all steps before the first."""
    bytes_per_row = sum(leaf.nbytes for leaf in jax.tree.leaves(blank_row(rows)))
    return m * bytes_per_row <= 4096


def _scan(step: Any, state: State, draws: Any, record: int) -> tuple[State, Float[Array, "kept d"]]:
    """Run all steps and keep every record-th θ."""
    unroll = 1 if jax.default_backend() == "cpu" else 10  # a GPU takes long to begin the next turn of a loop

    def stretch(state: State, draws: Any) -> tuple[State, Array]:
        state, _ = jax.lax.scan(lambda s, draw: (step(s, draw), None), state, draws, unroll=unroll)
        return state, state.theta

    steps = len(jax.tree.leaves(draws)[0])
    if record == steps:
        state, theta = stretch(state, draws)
        return state, theta[None]
    stretches = jax.tree.map(lambda leaf: leaf.reshape(steps // record, record, *leaf.shape[1:]), draws)
    return jax.lax.scan(stretch, state, stretches)
