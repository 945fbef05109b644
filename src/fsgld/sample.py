"""`sample`: check what was given, build the clients, run an engine, wrap the result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fsgld import newton, randomness
from fsgld.algorithm import Rules
from fsgld.checkpoint import Checkpoint, digest
from fsgld.checks import (
    check_finite_at,
    check_model,
    check_probs,
    check_settings,
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
        `langevin`, `whitened`, `sghmc` or `psgld`; by default `whitened(0.1)`, where there are
        surrogates.
    likelihood
        `plain` or `control_variate`; by default the latter where there are surrogates.
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
    table = gather(shards)
    flat, theta = model.flatten(), ravel_pytree(model.start())[0]
    check_model(model, flat, theta, table)
    f = check_probs(probs, len(table), table.names)
    check_finite_at(flat, theta, table, "the model's start (init)")

    root, auto = randomness.root_key(seed), isinstance(surrogates, str)
    mode = newton.find_mode(flat, theta, table) if auto else None
    stack = mode.surrogates if mode else stack_surrogates(surrogates, table.names, theta)
    total = stack.total()
    dynamics, approximation = _choose_dynamics(dynamics, flat, mode.theta if mode else theta, total, surrogates is None)
    likelihood = likelihood or (plain if surrogates is None else control_variate)
    anchor = _choose_anchor(likelihood, model, theta, mode, approximation)
    starts = _starts(model, theta, chains, root, approximation if mode else None)
    if callable(model.init) and not mode:
        for c, start in enumerate(starts):
            check_finite_at(flat, start, table, f"the start of chain {c} (init)")

    every = local_steps if thin is None else thin
    keep = Keep(rounds, gcd(local_steps, every), every, count_burn_in(burn_in, rounds * local_steps), local_steps)
    if not keep.wanted(np.arange(every, rounds * local_steps + 1, every)).any():
        raise InputError(
            f"no draw is left: {rounds * local_steps} steps a chain, of which burn_in drops"
            f" {keep.burn_in} and thin keeps every {every}-th; run more rounds or drop fewer"
        )
    rules = Rules(flat, replace(likelihood, anchor=None), batch_size, keep.record)
    federation = Federation(
        table.rows, jnp.asarray(table.starts), jnp.asarray(table.sizes),
        jnp.asarray(f, theta.dtype), jnp.asarray(randomness.thresholds(f)), stack, total,
        jnp.asarray(alpha, theta.dtype), _memos(likelihood, flat, anchor, table),
    )  # fmt: skip
    plan = make_plan(chains, rounds, local_steps, batch_size, len(theta))
    states = jax.vmap(dynamics.init)(starts)
    settings = {
        "surrogates": _describe_surrogates(surrogates, stack, mode),
        "dynamics": dynamics.name,
        "step_size": f"{dynamics.schedule.name} "
        + ", ".join(f"{k}={float(v):g}" for k, v in dynamics.schedule.numbers.items()),
        "likelihood": likelihood.name, "batch_size": batch_size, "local_steps": local_steps,
        "rounds": rounds, "chains": chains, "probs": [float(p) for p in f], "alpha": float(alpha),
        "thin": every, "burn_in": keep.burn_in, "seed": int(seed), "engine": engine,
        "dtype": str(theta.dtype), "rows": [int(n) for n in table.sizes],
    }  # fmt: skip
    saved = None
    if checkpoint is not None:
        digests = _digests(flat, theta, table, dynamics, federation, states)
        saved = Checkpoint(checkpoint, settings | digests)
    setup = time.perf_counter() - begin
    record = run(rules, plan, keep, dynamics, federation, states, root, engine, saved, progress)
    timings = {"setup": setup, **record.seconds}
    result = Result.from_record(record, flat.unravel, table.names, settings, timings)
    for line in result.problems():
        warnings.warn(line, stacklevel=2)
    return result


def _choose_dynamics(
    dynamics: Dynamics | None, flat: FlatModel, theta: Theta, total: Gaussian, none: bool
) -> tuple[Dynamics, Gaussian | None]:
    """Fill in the default dynamics and the coordinates of `whitened`; give prior × q as well."""
    if none:
        if dynamics is None or dynamics.needs_precision:
            if dynamics is not None:
                raise InputError(
                    "whitened takes its coordinates from prior × q, but surrogates is None; give surrogates,"
                    " whitened(step_size, precision), or dynamics=fsgld.langevin(step_size=...)"
                )
            raise InputError(
                "without surrogates there is no default for the step size; give"
                ' dynamics=fsgld.langevin(step_size=...), or let surrogates be "auto"'
            )
        return _check_size(dynamics, theta), None
    dynamics = whitened() if dynamics is None else dynamics
    dynamics = _check_size(dynamics, theta)
    if len(theta) > newton.MOST_PARAMETERS and not dynamics.needs_precision:
        return dynamics, None
    approximation = prior_taylor(flat, theta) + total
    if dynamics.needs_precision:
        precision = np.asarray(approximation.precision, float)
        if total.kind != "dense" and not np.any(precision - np.diag(np.diag(precision))):
            precision = np.diag(precision)
        dynamics = dynamics.with_precision(precision)
    return dynamics, approximation


def _check_size(dynamics: Dynamics, theta: Theta) -> Dynamics:
    """Check that a precision given to `whitened` fits the model."""
    factor = dynamics.constants.get("factor")
    if factor is not None and len(factor) != len(theta):
        raise InputError(
            f"the precision given to whitened has shape {factor.shape}, but the model has {len(theta)} parameters"
        )
    return dynamics


def _choose_anchor(
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


def _starts(model: Model, theta: Theta, chains: int, root: jax.Array, around: Gaussian | None) -> jax.Array:
    """Start chains at draws from prior × q ("auto"), or from the model's init."""
    keys = jax.random.split(jax.random.fold_in(root, 2**32 - 1), chains)
    if around is not None:
        factor = np.linalg.cholesky(around.covariance_float64())
        xi = np.stack([np.asarray(jax.random.normal(key, theta.shape)) for key in keys])
        return jnp.asarray(np.asarray(around.mean) + xi @ factor.T, theta.dtype)
    if callable(model.init):
        return jnp.stack([ravel_pytree(model.start(key))[0] for key in keys])
    return jnp.tile(theta, (chains, 1))


def _memos(likelihood: Likelihood, flat: FlatModel, anchor: Theta, table: Shards) -> Any:
    """Let every client compute what its likelihood slot keeps."""
    if likelihood.name == plain.name:
        return ()
    check_finite_at(flat, anchor, table, "the control variate's anchor")
    _, totals, _ = all_clients(flat, anchor, table)
    return jax.vmap(likelihood.memo, in_axes=(None, 0))(anchor, totals)


def _describe_surrogates(given: Any, stack: Gaussian, mode: newton.Mode | None) -> str:
    """Say in words where the surrogates came from."""
    if mode is not None:
        return f"auto: anchored at the mode, {mode.sweeps} Newton sweeps"
    return "none (DSGLD)" if given is None else f"given, {stack.kind}"


def _digests(
    flat: FlatModel, theta: Theta, table: Shards, dynamics: Dynamics, federation: Federation,
    states: State,
) -> dict[str, str]:  # fmt: skip
    """Fingerprint all that a resumed run must share with the run that it goes on from."""
    row = jax.tree.map(lambda leaf: leaf[:1], table.rows)
    program = jax.jit(flat.grad_log_likelihood).lower(theta, row).as_text()
    program += jax.jit(flat.grad_log_prior).lower(theta).as_text()
    return {
        "data": digest(table.rows),
        "model": digest(np.frombuffer(program.encode(), np.uint8)),
        "dynamics and surrogates": digest((dynamics, federation._replace(rows=()), states)),
        "jax": f"{jax.__version__} on {jax.default_backend()}",
    }
