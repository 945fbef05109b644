"""`sample`: check what was given, build the clients, run an engine, wrap the result."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import gcd
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fsgld import __version__, randomness
from fsgld.algorithm import Rules
from fsgld.checkpoint import Checkpoint, digest
from fsgld.checks import check_burn_in, check_counters, check_present, check_settings
from fsgld.derivatives import Shard
from fsgld.diagnostics import Converged
from fsgld.dynamics import Dynamics, whitened
from fsgld.engines import Chain, Federation, Plan, everyone, largest_divisor, make_plan, presence
from fsgld.errors import InputError
from fsgld.likelihood import Likelihood
from fsgld.measure import check_langevin
from fsgld.model import FlatModel, Model, Params, Theta, ravel
from fsgld.model_checks import check_finite_at, check_model, check_start
from fsgld.parts import Parts, choose_parts, make_memos
from fsgld.preflight import Preflight, look
from fsgld.programs import OWN_PRODUCTS, may_set, put
from fsgld.refresh import Table, anchor_each, own_tables
from fsgld.results import Result
from fsgld.rows import Data, Shards, gather
from fsgld.run import Keep, Schedule, run
from fsgld.surrogates import Gaussian

Present = Callable[[int], Any] | Sequence[Sequence[bool]] | np.ndarray


def sample(
    model: Model,
    shards: list[Data] | dict[str, Data],
    surrogates: str | Sequence[Gaussian] | Gaussian | None = "auto",
    *,
    step_size: float | str = "auto",
    dynamics: Dynamics | None = None,
    likelihood: Likelihood | None = None,
    batch_size: int | str = "auto",
    local_steps: int | str = "auto",
    rounds: int | str = "auto",
    chains: int = 4,
    probs: str | Sequence[float] | np.ndarray | None = "auto",
    mini_batches: str = "auto",
    alpha: float = 1.0,
    thin: int | None = None,
    burn_in: int | float = 0.1,
    refresh: str | int = "never",
    present: Present | None = None,
    until: Converged | None = None,
    max_rounds: int | None = None,
    start: Params | None = None,
    seed: int = 0,
    engine: str | Callable = "compiled",
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> Result:
    """Draw from the posterior of a model given rows that stay at their clients (Algorithm 1).

    With no argument after `shards` the pre-flight (`fsgld.preflight`) chooses everything; what is given is
    respected, and checked.

    Parameters
    ----------
    model
        Prior, likelihood of one row, and start: `fsgld.Model`.
    shards
        A list of data sets, one a client, or a dict from client name to data set. Do not change them from another
        thread meanwhile: large ones that follow one another in memory are not copied.
    surrogates
        One `fsgld.Gaussian` a client (a list, or `fsgld.fit(...)`); None for DSGLD; "auto"
        finds the posterior's mode by federated Newton sweeps and anchors every client there.
    step_size
        h of the default dynamics, `whitened`; it has no unit.
    dynamics
        `langevin`, `whitened`, `sghmc` or `psgld` with a step size of its own; by default `whitened` where surrogates
        have a curvature.
    likelihood
        `plain` or `control_variate`; by default the latter where surrogates have a curvature.
    batch_size, local_steps, rounds, chains
        Mini-batch size m (with replacement), steps T a visit, visits a chain, and chains. Where the pre-flight does
        not choose (other dynamics than `whitened`), "auto" is 32, 20 and 1000.
    probs
        Selection probabilities f_s, positive, summing to 1; None for equal ones; "auto" for each client's share of
        the information about the parameters, where surrogates have a curvature, else equal ones.
    mini_batches
        "uniform": all rows of a client are equally likely; "leverage": rows that matter more are drawn more often and
        weighted less (`fsgld.lots`); "auto": the latter where the pre-flight finds the noise of the former too large.
    alpha
        Scales the conducive gradient (Remark 1 of the paper).
    thin
        Keep every thin-th step; by default the last of a visit, or of several visits if these are short.
    burn_in
        Steps to drop first: a whole number of steps, or a share of all steps below 1.
    refresh
        "never"; a number K: all clients anchor anew every K rounds, at the mean of the chains; "on_visit": the
        visited client anchors anew at the θ that leaves it, and each chain carries a table of its own.
    present
        Who is there: a function from the round (from 0) to one truth value a client, or a table (rounds, clients).
        A client that is away stays in the posterior through its surrogate.
    until, max_rounds
        Run until `fsgld.Converged(rhat, ess)` holds, for at most `max_rounds` rounds.
    start
        Where chains begin: parameters with a leading axis of chains, as the last draws of a run that this one follows;
        with refresh="on_visit" each chain's first table is made there. By default init, or draws of prior × q.
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
    chains, root = int(chains), randomness.root_key(seed)
    refresh = refresh if isinstance(refresh, str) else int(refresh)
    table, theta = gather(shards, borrow=True), ravel(model.start())
    flat = check_model(model, theta, table)
    check_finite_at(flat, theta, table, "the model's start (init)")

    given = dynamics if dynamics is not None or isinstance(step_size, str) else whitened(step_size)
    parts = choose_parts(model, flat, theta, table, surrogates, given, likelihood, probs)
    sizes = {"step_size": step_size, "batch_size": batch_size, "local_steps": local_steps, "rounds": rounds}
    checked, parts, said = _check_first(flat, parts, table, chains, sizes, mini_batches, chosen=dynamics is None)
    _warn(said, engine)
    if checked:
        sizes = {name: getattr(checked, name) for name in sizes}
    m, T, R = (int(usual if sizes[name] == "auto" else sizes[name]) for name, usual in USUAL.items())
    most = _most_rounds(R, rounds, until, max_rounds)
    check_counters(most, T, m, len(theta))
    keep = _choose_draws(most, T, _choose_thin(thin, T, R, checked), burn_in, until is not None)

    rules = Rules(flat, replace(parts.likelihood, anchor=None), m, keep.record)
    there = None if present is None else check_present(present, most, table.names, parts.surrogates)
    federation = Federation(
        table.rows, put(table.starts), put(table.sizes), put(parts.probs, theta.dtype),
        Table(parts.surrogates, parts.surrogates.total(), make_memos(parts.likelihood, flat, parts.anchor, table)),
        put(alpha, theta.dtype),
        everyone(parts.probs) if there is None else presence(parts.probs, there), checked.lots if checked else None,
    )  # fmt: skip
    if start is None:
        starts = _starts(model, flat, theta, table, chains, root, parts)
    else:
        starts = check_start(start, model, flat, table, chains, theta.dtype)
    tables = own_tables(refresh, federation.table, chains)
    if tables is not None and start is not None:
        tables = anchor_each(rules.model, rules.likelihood, federation.table, starts, Shard(*federation[:3]))
    carried = Chain(jax.vmap(parts.dynamics.init)(starts), tables)
    settings = {
        "surrogates": parts.words, "dynamics": parts.dynamics.name, "step_size": str(parts.dynamics.schedule),
        "likelihood": parts.likelihood.name, "batch_size": m, "local_steps": T, "rounds": most, "chains": chains,
        "probs": [float(p) for p in parts.probs], "alpha": float(alpha),
        "mini_batches": checked.mini_batches if checked else "uniform", "thin": keep.thin, "burn_in": keep.burn_in,
        "refresh": refresh, "until": None if until is None else [float(x) for x in until], "seed": int(seed),
        "engine": engine if isinstance(engine, str) else "sites", "dtype": str(theta.dtype),
        "rows": [int(n) for n in table.sizes],
    }  # fmt: skip
    a_call = R if isinstance(engine, str) else 1  # between real sites a round is a call
    plan = _make_plan(chains, a_call, T, m, len(theta), keep.record, refresh)
    saved = None
    if checkpoint is not None:
        first = {"data": table.fingerprint(), "model": flat.fingerprint} | settings
        saved = Checkpoint(checkpoint, first | {"plan": list(plan)} | _digests(parts.dynamics, federation, carried))
    setup = time.perf_counter() - begin
    schedule = Schedule(0 if isinstance(refresh, str) else refresh, until)
    record = run(rules, plan, keep, schedule, parts.dynamics, federation, carried, root, engine, saved, progress)
    settings |= _learnt(parts, checked, record, there)
    result = Result.from_record(record, flat.unravel, table.names, settings, {"setup": setup, **record.seconds})
    _warn(problems := result.problems(), engine)
    result.settings["notes"] = [*said, *problems]
    return result


def _warn(lines: Sequence[str], engine: Any) -> None:
    """Warn the caller of `sample`; between real sites words go with the result only, since threads run there."""
    for line in lines if isinstance(engine, str) else ():
        warnings.warn(line, stacklevel=3)


USUAL = {"batch_size": 32, "local_steps": 20, "rounds": 1000}  # where the pre-flight does not choose


def _check_first(
    flat: FlatModel, parts: Parts, table: Shards, chains: int, sizes: dict[str, Any], mini_batches: str, chosen: bool
) -> tuple[Preflight | None, Parts, Sequence[str]]:
    """Run the pre-flight where it applies; where it chooses the dynamics, give them their step size and tame them.

    What it has to say in words comes last.
    """
    dynamics = parts.dynamics
    if mini_batches == "leverage" and (parts.approximation is None or dynamics.name != "whitened"):
        raise InputError('mini_batches="leverage" needs whitened dynamics and surrogates with a curvature')
    if parts.approximation is None or dynamics.name not in ("whitened", "langevin"):
        return None, parts, ()
    if dynamics.name == "langevin":
        return None, parts, check_langevin(flat, parts, table)
    if not chosen:
        sizes = sizes | {"step_size": dynamics.first_step()}
        mini_batches = "uniform" if mini_batches == "auto" else mini_batches
    found, parts = look(flat, parts, table, chains, **sizes, mini_batches=mini_batches, chosen=chosen)
    if chosen:
        tamed = whitened(found.step_size).with_factor(parts.dynamics).tamed(parts.centre, found.limit)
        parts = parts._replace(dynamics=tamed)
    return found, parts, found.notes


def _most_rounds(R: int, rounds: int | str, until: Converged | None, max_rounds: int | None) -> int:
    """Say for how many rounds a run may go on."""
    if until is None and max_rounds is None:
        return R
    if until is None or (max_rounds is not None and rounds != "auto"):
        raise InputError("max_rounds goes with until=fsgld.Converged(...); give rounds alone, or until and max_rounds")
    if max_rounds is not None:
        return int(max_rounds)
    return 20 * R if rounds == "auto" else R


def _choose_thin(thin: int | None, local_steps: int, rounds: int, checked: Preflight | None) -> int:
    """Keep the last step of a visit by default, or of as many as make half a unit of time, but 16 draws a run."""
    if thin is not None:
        return int(thin)
    visit = checked.step_size * local_steps if checked else 1.0
    return local_steps * max(1, min(int(0.5 / visit), rounds // 16))


def _choose_draws(rounds: int, local_steps: int, thin: int, burn_in: int | float, open_end: bool) -> Keep:
    """Decide which steps give draws; some must."""
    keep = Keep(rounds, gcd(local_steps, thin), thin, check_burn_in(burn_in), local_steps, open_end)
    steps, dropped = rounds * local_steps, keep.dropped(rounds)
    if steps // thin <= dropped // thin:
        raise InputError(
            f"no draw is left: {steps} steps a chain, of which burn_in drops {dropped} and thin keeps every"
            f" {thin}-th; run more rounds or drop fewer"
        )
    return keep


def _make_plan(chains: int, rounds: int, T: int, m: int, d: int, record: int, refresh: str | int) -> Plan:
    """Cut the work; with a refresh every K rounds a call must end there."""
    plan = make_plan(chains, rounds, T, m, d, record)
    if isinstance(refresh, str):
        return plan
    call = largest_divisor(refresh, plan.rounds)
    return plan._replace(rounds=call, group=largest_divisor(call, plan.group))


def _starts(
    model: Model, flat: FlatModel, theta: Theta, table: Shards, chains: int, root: jax.Array, parts: Parts
) -> jax.Array:
    """Start chains at draws from prior × q ("auto"), or from the model's init."""
    if parts.mode is None and not callable(model.init):
        return put(np.tile(theta, (chains, 1)))
    keys = jax.random.split(jax.random.fold_in(root, 2**32 - 1), chains)
    if parts.mode is not None:
        assert parts.approximation is not None
        factor = np.linalg.cholesky(parts.approximation.covariance_float64())
        xi = np.stack([np.asarray(jax.random.normal(key, theta.shape)) for key in keys])
        return put(np.asarray(parts.centre) + xi @ factor.T, theta.dtype)
    each = [ravel(model.start(key)) for key in keys]
    if any(start.shape != theta.shape for start in each):
        raise InputError("init gives parameters of other shapes for another key; they must not depend on it")
    starts = put(each)
    for c, start in enumerate(starts):
        check_finite_at(flat, start, table, f"the start of chain {c} (init)")
    return starts


def _learnt(parts: Parts, checked: Preflight | None, record: Any, there: np.ndarray | None) -> dict[str, Any]:
    """Collect what a reader of the result should know: expectations, who was away, what was tamed."""
    there = record.there if there is None else there
    learnt: dict[str, Any] = {"rounds": record.visited.shape[1], "converged": record.converged, "versions": _versions()}
    if parts.shares is not None:
        learnt["shares"] = [float(share) for share in parts.shares]
    if checked:
        learnt["preflight"] = checked.to_json()
    if there is not None:
        learnt["away"] = [float(a) for a in 1 - there[: learnt["rounds"]].mean(0)]
        # Without draws, all have diverged
        kept = there[record.draw_rounds] if len(record.draw_rounds) else np.ones_like(there[:1])
        learnt["away_in_draws"] = [float(a) for a in 1 - kept.mean(0)]
    if "limit" in parts.dynamics.constants:
        state = record.chains.state  # the last call may have gone beyond the last round
        learnt["tamed"] = [float(met / t) for met, t in zip(state.memory, state.t, strict=True)]
    return learnt


def _digests(dynamics: Dynamics, federation: Federation, chains: Chain) -> dict[str, str]:
    """Fingerprint what a resumed run must share with the run that it goes on from; other options round otherwise."""
    return {
        "dynamics and surrogates": digest((dynamics, federation._replace(rows=()), chains)),
        "versions": _versions(),
        "compiler options": f"{os.environ.get('XLA_FLAGS', '')}, own products: {may_set(OWN_PRODUCTS)}",
    }


def _versions() -> str:
    return f"fsgld {__version__}, jax {jax.__version__} on {jax.default_backend()}"
