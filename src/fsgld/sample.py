"""`sample`: check what was given, build the clients, run an engine, wrap the result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fsgld import newton, randomness
from fsgld.algorithm import Rules
from fsgld.checkpoint import Checkpoint, digest
from fsgld.checks import (
    check_auto,
    check_counters,
    check_dynamics,
    check_finite_at,
    check_model,
    check_probs,
    check_settings,
    check_size,
    count_burn_in,
    stack_surrogates,
)
from fsgld.derivatives import all_clients, prior_taylor
from fsgld.dynamics import Dynamics, State, whitened
from fsgld.engines import Federation, make_plan
from fsgld.errors import InputError
from fsgld.likelihood import Likelihood, control_variate, plain
from fsgld.model import FlatModel, Model, Theta, as_theta
from fsgld.results import Result
from fsgld.run import Keep, run
from fsgld.shards import Data, Shards, gather
from fsgld.surrogates import Gaussian


def sample(
    model: Model,
    shards: list[Data] | dict[str, Data],
    surrogates: str | Sequence[Gaussian] | Gaussian | None = "auto",
    *,
    dynamics: Dynamics | None = None,
    likelihood: Likelihood | None = None,
    batch_size: int = 32,
    local_steps: int = 20,
    rounds: int = 1000,
    chains: int = 4,
    probs: Sequence[float] | np.ndarray | None = None,
    alpha: float = 1.0,
    thin: int | None = None,
    burn_in: int | float = 0.1,
    seed: int = 0,
    engine: str = "compiled",
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> Result:
    """Draw from the posterior of a model given rows that stay at their clients (Algorithm 1).

    Parameters
    ----------
    model
        Prior, likelihood of one row, and start: `fsgld.Model`.
    shards
        A list of data sets, one a client, or a dict from client name to data set.
    surrogates
        One `fsgld.Gaussian` a client (a list, or `fsgld.fit(...)`); None for DSGLD; "auto"
        finds the posterior's mode by federated Newton sweeps and anchors every client there.
    dynamics
        `langevin`, `whitened`, `sghmc` or `psgld`; by default `whitened(0.1)`, where surrogates have
        a curvature.
    likelihood
        `plain` or `control_variate`; by default the latter where surrogates have a curvature.
    batch_size, local_steps, rounds, chains
        Mini-batch size m (with replacement), steps T a visit, visits a chain, and chains.
    probs
        Selection probabilities f_s, positive, summing to 1; equal by default.
    alpha
        Scales the conducive gradient (Remark 1 of the paper).
    thin
        Keep every thin-th step; by default the last of every visit.
    burn_in
        Steps to drop first: a whole number of steps, or a share of all steps below 1.
    seed
        Same seed, same chain, on every engine.
    engine
        "compiled" or "reference".
    checkpoint
        A folder; a run that was killed goes on from there when called again.
    progress
        Show a progress bar; by default when standard error is a terminal.

    Returns
    -------
    Result
        Draws as a pytree with leading axes (chains, draws), and what happened on the way.
    """
    begin = time.perf_counter()
    check_settings(locals())
    batch_size, local_steps, rounds, chains = map(int, (batch_size, local_steps, rounds, chains))
    table, root = gather(shards), randomness.root_key(seed)
    theta = ravel_pytree(model.start())[0]
    check_counters(local_steps, batch_size, len(theta))
    flat = check_model(model, theta, table)
    check_finite_at(flat, theta, table, "the model's start (init)")
    keep = _choose_draws(rounds, local_steps, thin, burn_in)
    f = check_probs(probs, len(table), table.names)

    parts = _choose_parts(model, flat, theta, table, surrogates, dynamics, likelihood)
    rules = Rules(flat, replace(parts.likelihood, anchor=None), batch_size, keep.record)
    federation = Federation(
        table.rows, jnp.asarray(table.starts), jnp.asarray(table.sizes),
        jnp.asarray(f, theta.dtype), jnp.asarray(randomness.thresholds(f)),
        parts.surrogates, parts.surrogates.total(), jnp.asarray(alpha, theta.dtype),
        make_memos(parts.likelihood, flat, parts.anchor, table),
    )  # fmt: skip
    states = jax.vmap(parts.dynamics.init)(_starts(model, flat, theta, table, chains, root, parts.start_around))
    settings = {
        "surrogates": parts.words, "dynamics": parts.dynamics.name, "step_size": str(parts.dynamics.schedule),
        "likelihood": parts.likelihood.name, "batch_size": batch_size, "local_steps": local_steps,
        "rounds": rounds, "chains": chains, "probs": [float(p) for p in f], "alpha": float(alpha),
        "thin": keep.thin, "burn_in": keep.burn_in, "seed": int(seed), "engine": engine,
        "dtype": str(theta.dtype), "rows": [int(n) for n in table.sizes],
    }  # fmt: skip
    plan = make_plan(chains, rounds, local_steps, batch_size, len(theta), keep.record)
    saved = None
    if checkpoint is not None:
        made = {"plan": list(plan), "model": flat.fingerprint}
        saved = Checkpoint(checkpoint, settings | made | _digests(parts.dynamics, federation, states))
    setup = time.perf_counter() - begin
    record = run(rules, plan, keep, parts.dynamics, federation, states, root, engine, saved, progress)
    result = Result.from_record(record, flat.unravel, table.names, settings, {"setup": setup, **record.seconds})
    for line in result.problems():
        warnings.warn(line, stacklevel=2)
    return result


class Parts(NamedTuple):
    """What `sample` runs with, all defaults filled in."""

    surrogates: Gaussian  # a stack, one a client
    dynamics: Dynamics
    likelihood: Likelihood
    anchor: Theta  # the control variate's
    start_around: Gaussian | None  # prior × q, if chains start at draws from it
    words: str  # where the surrogates came from


def _choose_parts(
    model: Model, flat: FlatModel, theta: Theta, table: Shards, surrogates: Any, dynamics: Dynamics | None,
    likelihood: Likelihood | None,
) -> Parts:  # fmt: skip
    """Fill in the defaults: surrogates at the mode; with a curvature, whitened dynamics and control variates."""
    mode = None
    if isinstance(surrogates, str):  # "auto", as checked
        check_auto(len(theta))
        mode = newton.find_mode(flat, theta, table)
    stack = mode.surrogates if mode else stack_surrogates(surrogates, table.names, theta)
    if stack.kind == "linear":  # no curvature in it: neither coordinates nor a mean
        chosen, approximation = check_dynamics(dynamics, theta), None
        words = "none (DSGLD)" if surrogates is None else "given, linear"
    else:
        chosen, approximation = _choose_dynamics(dynamics, flat, mode.theta if mode else theta, stack.total())
        words = f"auto: anchored at the mode, {mode.sweeps} Newton sweeps" if mode else f"given, {stack.kind}"
    likelihood = likelihood or (plain if stack.kind == "linear" else control_variate)
    anchor = choose_anchor(likelihood, model, theta, mode, approximation)
    return Parts(stack, chosen, likelihood, anchor, approximation if mode else None, words)


def _choose_draws(rounds: int, local_steps: int, thin: int | None, burn_in: int | float) -> Keep:
    """Decide which steps give draws; some must."""
    every, steps = local_steps if thin is None else int(thin), rounds * local_steps
    keep = Keep(rounds, gcd(local_steps, every), every, count_burn_in(burn_in, steps), local_steps)
    if not keep.wanted(np.arange(every, steps + 1, every)).any():
        raise InputError(
            f"no draw is left: {steps} steps a chain, of which burn_in drops {keep.burn_in} and thin keeps every"
            f" {every}-th; run more rounds or drop fewer"
        )
    return keep


def _choose_dynamics(
    dynamics: Dynamics | None, flat: FlatModel, theta: Theta, total: Gaussian
) -> tuple[Dynamics, Gaussian | None]:
    """Fill in the default dynamics and the coordinates of `whitened`; give prior × q as well."""
    dynamics = check_size(whitened() if dynamics is None else dynamics, theta)
    approximation = prior_taylor(flat, theta, total.kind) + total
    if dynamics.needs_precision:
        dynamics = dynamics.with_precision(np.asarray(approximation.precision, float))
    return dynamics, approximation


def choose_anchor(
    likelihood: Likelihood, model: Model, theta: Theta, mode: newton.Mode | None, approximation: Gaussian | None
) -> Theta:
    """Choose the control variate's anchor: the user's, the mode, the mean of prior × q, or init."""
    if likelihood.anchor is not None:
        return as_theta(model, likelihood.anchor, "anchor").astype(theta.dtype)
    if mode is not None:
        return mode.theta
    try:
        return approximation.mean.astype(theta.dtype) if approximation is not None else theta
    except InputError:
        return theta


def _starts(
    model: Model, flat: FlatModel, theta: Theta, table: Shards, chains: int, root: jax.Array, around: Gaussian | None
) -> jax.Array:
    """Start chains at draws from prior × q ("auto"), or from the model's init."""
    keys = jax.random.split(jax.random.fold_in(root, 2**32 - 1), chains)
    if around is not None:
        factor = np.linalg.cholesky(around.covariance_float64())
        xi = np.stack([np.asarray(jax.random.normal(key, theta.shape)) for key in keys])
        return jnp.asarray(np.asarray(around.mean) + xi @ factor.T, theta.dtype)
    if not callable(model.init):
        return jnp.tile(theta, (chains, 1))
    starts = jnp.stack([ravel_pytree(model.start(key))[0] for key in keys])
    for c, start in enumerate(starts):
        check_finite_at(flat, start, table, f"the start of chain {c} (init)")
    return starts


def make_memos(likelihood: Likelihood, flat: FlatModel, anchor: Theta, table: Shards) -> Any:
    """Let every client compute what its likelihood slot keeps."""
    if likelihood.name == plain.name:
        return ()
    check_finite_at(flat, anchor, table, "the control variate's anchor")
    _, totals, _ = all_clients(flat, anchor, table)
    return jax.vmap(likelihood.memo, in_axes=(None, 0))(anchor, totals)


def _digests(dynamics: Dynamics, federation: Federation, states: State) -> dict[str, str]:
    """Fingerprint the arrays that a resumed run must share with the run that it goes on from."""
    return {
        "data": digest(federation.rows),
        "dynamics and surrogates": digest((dynamics, federation._replace(rows=()), states)),
        "versions": f"fsgld {version('fsgld')}, jax {jax.__version__} on {jax.default_backend()}",
    }
