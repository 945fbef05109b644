"""The driver: call an engine until all rounds are done, keep draws, show progress, checkpoint."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fsgld.algorithm import Rules
from fsgld.checkpoint import Arrays, Checkpoint
from fsgld.derivatives import Shard
from fsgld.diagnostics import Converged, rhat
from fsgld.dynamics import Dynamics
from fsgld.engines import Chain, Federation, Plan, compiled, reference
from fsgld.programs import put
from fsgld.refresh import anchor_all

ENGINES: dict[str, Any] = {"compiled": compiled.advance, "reference": reference.advance}


class Keep(NamedTuple):
    """Which of the recorded θ are kept as draws: every thin-th step after the first burn_in."""

    rounds: int  # at most
    record: int  # the engine records every so-many-th step
    thin: int
    burn_in: int | float  # steps, or a share of all steps
    local_steps: int
    open_end: bool = False  # whether the run may end before `rounds`; then a share is one of the steps done

    def steps(self, first_round: int, rounds: int) -> np.ndarray:
        """Give the numbers of the steps recorded in a call, from 1; none after the last round."""
        begin, end = first_round * self.local_steps, (first_round + rounds) * self.local_steps
        steps = np.arange(begin + self.record, end + 1, self.record)
        return steps[steps <= self.rounds * self.local_steps]

    def dropped(self, done: int) -> int:
        """Count the steps that burn_in drops when so many rounds are done."""
        steps = (done if self.open_end else self.rounds) * self.local_steps
        return int(self.burn_in * steps) if isinstance(self.burn_in, float) else self.burn_in


class Schedule(NamedTuple):
    """What happens between the calls of a run: when to anchor anew, and when to stop."""

    refresh: int = 0  # all clients anchor anew every so many rounds; 0: never
    until: Converged | None = None  # whether the draws (chains, n, d) so far are enough

    def anchors(self, first: int) -> bool:
        """Whether all clients anchor anew before a round."""
        return bool(self.refresh and first and first % self.refresh == 0)


class Record(NamedTuple):
    """All that a run leaves: draws (chains, n, d), their rounds, visited clients, who is alive."""

    draws: np.ndarray
    draw_rounds: np.ndarray
    visited: np.ndarray
    alive: np.ndarray  # (chains, rounds): not run away yet
    chains: Chain  # where they are now
    converged: bool | None  # whether `until` held in the end; None if there was none
    seconds: dict[str, float]
    there: np.ndarray | None = None  # (rounds, clients): who was there, where the engine found that out


def run(
    rules: Rules,
    plan: Plan,
    keep: Keep,
    schedule: Schedule,
    dynamics: Dynamics,
    federation: Federation,
    chains: Chain,
    root: jax.Array,
    engine: str | Callable,
    checkpoint: Checkpoint | None,
    progress: bool | None,
) -> Record:
    """Run all rounds of all chains, or what a checkpoint has left to do."""
    advance = engine if callable(engine) else ENGINES[engine]
    calls = checkpoint.load() if checkpoint else []
    federation, chains = _resume(rules, plan, schedule, federation, chains, calls)
    calls = [{name: call[name] for name in call if not name.startswith("state_")} for call in calls]
    seconds = {"compile_and_first_call": 0.0, "further_calls": 0.0}
    total, found, look, converged = -(-keep.rounds // plan.rounds), len(calls), 0, None
    with _bar(progress, keep.rounds, min(found * plan.rounds, keep.rounds)) as show:
        for call in range(total):
            first, done = call * plan.rounds, min((call + 1) * plan.rounds, keep.rounds)
            if call >= found:
                begin = time.perf_counter()
                if schedule.anchors(first):
                    federation = _anchor_again(rules, federation, chains, calls[-1], first)
                chains, trace = advance(rules, plan, dynamics, federation, chains, root, jnp.int32(first))
                calls.append(_collect(keep, first, plan.rounds, trace))
                seconds["further_calls" if call else "compile_and_first_call"] += time.perf_counter() - begin
                if checkpoint:
                    checkpoint.append(call, calls[-1] | _states(chains))
                show(done, calls[-1])
            if not calls[call]["alive"][:, -1].any():
                break  # all chains have diverged
            if schedule.until and (done >= look or call == total - 1):
                look = done * 5 // 4
                converged = schedule.until(_join(keep, calls[: call + 1])["draws"])
                if converged:
                    break
    return Record(**_join(keep, calls[: call + 1]), chains=chains, converged=converged, seconds=seconds)


def _resume(
    rules: Rules, plan: Plan, schedule: Schedule, federation: Federation, chains: Chain, calls: list[Arrays]
) -> tuple[Federation, Chain]:
    """Go on from finished calls: the chains as the last one left them, the table as it was anchored last."""
    if not calls:
        return federation, chains
    refreshed = [call for call in range(1, len(calls)) if schedule.anchors(call * plan.rounds)]
    if federation.presence.sets.all():
        refreshed = refreshed[-1:]  # who is away keeps what it has from earlier ones; else the last one renews all
    for call in refreshed:
        before = _restore(chains, calls[call - 1])
        federation = _anchor_again(rules, federation, before, calls[call - 1], call * plan.rounds)
    return federation, _restore(chains, calls[-1])


def _anchor_again(rules: Rules, federation: Federation, chains: Chain, call: Arrays, first: int) -> Federation:
    """Let all clients that are there anchor at the mean of the chains that are alive after a call."""
    thetas = np.asarray(chains.state.theta)
    theta = jnp.asarray(thetas[call["alive"][:, -1]].mean(0), thetas.dtype)
    shards = Shard(federation.rows, federation.starts, federation.sizes)
    there = federation.presence.there(first)
    return federation._replace(table=anchor_all(rules.model, rules.likelihood, federation.table, there, theta, shards))


def _collect(keep: Keep, first: int, rounds: int, trace: Any) -> Arrays:
    """Bring one call's results to the host and keep every thin-th step."""
    steps = keep.steps(first, rounds)
    first_kept = 0 if keep.open_end else keep.dropped(keep.rounds)
    wanted = np.flatnonzero((steps % keep.thin == 0) & (steps > first_kept))
    # None wanted: nothing to fetch from another device
    recorded = np.asarray(trace.draws if len(wanted) else trace.draws[:, :, :0])
    draws = recorded.reshape(len(recorded), -1, recorded.shape[-1])[:, wanted]
    return {
        "draws": draws,
        "steps": steps[wanted],
        "visited": np.asarray(trace.visited)[:, : keep.rounds - first],
        "alive": np.asarray(trace.alive)[:, : keep.rounds - first],
        **({} if trace.there is None else {"there": trace.there}),
    }


def _states(chains: Chain) -> Arrays:
    """Bring the chains themselves to the host, to go on from there."""
    return {f"state_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(chains))}


def _restore(chains: Chain, call: Arrays) -> Chain:
    """Put the chains that a call left back into their structure."""
    leaves = (put(call[f"state_{i}"]) for i in range(len(jax.tree.leaves(chains))))
    return jax.tree.map(lambda _: next(leaves), chains)


def _join(keep: Keep, calls: list[Arrays]) -> dict[str, Any]:
    """Put the calls' results end to end, and drop the burn-in."""
    names = ("steps", "visited", "alive")
    joined: dict[str, Any] = {name: np.concatenate([call[name] for call in calls], axis=-1) for name in names}
    steps = joined.pop("steps")
    kept = steps > keep.dropped(joined["visited"].shape[1])
    draws = np.concatenate([call["draws"] for call in calls], axis=1)[:, kept]
    there = np.concatenate([call["there"] for call in calls]) if "there" in calls[0] else None
    return {"draws": draws, "draw_rounds": (steps[kept] - 1) // keep.local_steps, "there": there, **joined}


def _worst_rhat(drawn: list[np.ndarray]) -> str:
    """Give the largest R-hat of the draws so far, in words."""
    draws = np.concatenate(drawn, axis=1)
    worst = rhat(draws[:, :: max(1, draws.shape[1] // 1000)])
    return f"{np.nanmax(worst):.3f}" if np.isfinite(worst).any() else "not known yet"


@contextmanager
def _bar(progress: bool | None, rounds: int, done: int) -> Iterator[Callable[[int, Arrays], None]]:
    """Show a progress bar on standard error; by default only where a person looks at it."""
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda completed, call: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TextColumn("rounds"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("sampling", total=rounds, completed=done)
        drawn: list[np.ndarray] = []
        text, next_look = "sampling", time.monotonic() + 2

        def show(completed: int, call: Arrays) -> None:
            nonlocal text, next_look
            drawn.append(call["draws"])
            lost = int((~call["alive"][:, -1]).sum())
            if lost or time.monotonic() > next_look:
                begin = time.monotonic()
                text = f"sampling ({lost} diverged)" if lost else f"sampling, R-hat {_worst_rhat(drawn)}"
                next_look = time.monotonic() + 2 + 20 * (time.monotonic() - begin)  # looking costs a twentieth at most
            bar.update(task, completed=completed, description=text)

        yield show
