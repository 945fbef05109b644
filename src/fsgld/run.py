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
from fsgld.dynamics import Dynamics, State
from fsgld.engines import Federation, Plan, compiled, reference

ENGINES: dict[str, Any] = {"compiled": compiled.advance, "reference": reference.advance}


class Keep(NamedTuple):
    """Which of the recorded θ are kept as draws: every thin-th step after the first burn_in."""

    rounds: int
    record: int  # the engine records every so-many-th step
    thin: int
    burn_in: int
    local_steps: int

    def steps(self, first_round: int, rounds: int) -> np.ndarray:
        """Give the numbers of the steps recorded in a call, from 1; none after the last round."""
        begin, end = first_round * self.local_steps, (first_round + rounds) * self.local_steps
        steps = np.arange(begin + self.record, end + 1, self.record)
        return steps[steps <= self.rounds * self.local_steps]

    def wanted(self, steps: np.ndarray) -> np.ndarray:
        """Say which of these steps give draws."""
        return (steps > self.burn_in) & (steps % self.thin == 0)


class Record(NamedTuple):
    """All that a run leaves: draws (chains, n, d), their rounds, visited clients, who is alive."""

    draws: np.ndarray
    draw_rounds: np.ndarray
    visited: np.ndarray
    alive: np.ndarray  # (chains, rounds): not run away yet
    seconds: dict[str, float]


def run(
    rules: Rules,
    plan: Plan,
    keep: Keep,
    dynamics: Dynamics,
    federation: Federation,
    states: State,
    root: jax.Array,
    engine: str,
    checkpoint: Checkpoint | None,
    progress: bool | None,
) -> Record:
    """Run all rounds of all chains, or what a checkpoint has left to do."""
    advance = ENGINES[engine]
    calls = checkpoint.load() if checkpoint else []
    if calls:
        states = _restore(states, calls[-1])
    seconds = {"compile_and_first_call": 0.0, "further_calls": 0.0}
    total = -(-keep.rounds // plan.rounds)
    with _bar(progress, keep.rounds, min(len(calls) * plan.rounds, keep.rounds)) as show:
        for call in range(len(calls), total):
            if calls and not calls[-1]["alive"][:, -1].any():
                break  # all chains have diverged
            begin = time.perf_counter()
            first = call * plan.rounds
            states, trace = advance(rules, plan, dynamics, federation, states, root, jnp.asarray(first, jnp.int32))
            calls.append(_collect(keep, first, plan.rounds, states, trace))
            name = "further_calls" if call else "compile_and_first_call"
            seconds[name] += time.perf_counter() - begin
            if checkpoint:
                checkpoint.append(call, calls[-1])
            show(min(first + plan.rounds, keep.rounds), calls[-1])
    return _join(calls, seconds)


def _collect(keep: Keep, first: int, rounds: int, states: State, trace: Any) -> Arrays:
    """Bring one call's results to the host and keep the wanted draws."""
    steps = keep.steps(first, rounds)
    wanted = np.flatnonzero(keep.wanted(steps))
    chains, _, _, d = trace.draws.shape
    flat = np.asarray(trace.draws).reshape(chains, -1, d)
    leaves = {f"state_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(states))}
    return {
        "draws": flat[:, wanted],
        "draw_rounds": (steps[wanted] - 1) // keep.local_steps,
        "visited": np.asarray(trace.visited)[:, : keep.rounds - first],
        "alive": np.asarray(trace.alive)[:, : keep.rounds - first],
        **leaves,
    }


def _restore(states: State, call: Arrays) -> State:
    """Put the states that a call left back into their structure."""
    leaves = (jnp.asarray(call[f"state_{i}"]) for i in range(len(jax.tree.leaves(states))))
    return jax.tree.map(lambda _: next(leaves), states)


def _join(calls: list[Arrays], seconds: dict[str, float]) -> Record:
    """Put the calls' results end to end."""

    def end_to_end(name: str, axis: int) -> np.ndarray:
        return np.concatenate([call[name] for call in calls], axis)

    return Record(
        end_to_end("draws", 1), end_to_end("draw_rounds", 0),
        end_to_end("visited", 1), end_to_end("alive", 1), seconds,
    )  # fmt: skip


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

        def show(completed: int, call: Arrays) -> None:
            lost = int((~call["alive"][:, -1]).sum())
            text = f"sampling ({lost} diverged)" if lost else "sampling"
            bar.update(task, completed=completed, description=text)

        yield show
