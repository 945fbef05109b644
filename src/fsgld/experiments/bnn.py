"""Table 1: a Bayesian neural network at 30 clients whose shares of positive labels differ.

Step sizes are stated as ε = hN/2, a step on the mean loss. Repetitions are chains with starts of their own on one split
of the data. All methods have the same number of rounds and steps, and a first phase with a decaying step; draws are
taken afterwards. `OURS` is made of parts of the library: preconditioned steps that decay, then refresh on visit with
linear surrogates and control variates, at a step that keeps every visit stable.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import fsgld
from fsgld import schedules
from fsgld.derivatives import Shard, largest_curvature
from fsgld.errors import InputError
from fsgld.experiments.bnn_model import Scores, Split, load, network, score, split, validation
from fsgld.experiments.reproduce import Announce, Line, Records, plus_minus, silent
from fsgld.rows import gather

CENTRAL, DSGLD, DRAWS, OURS = "centralised", "DSGLD", "FSGLD, local draws", "our recipe"


@dataclass(frozen=True)
class Settings:
    """The sizes of the experiment."""

    datasets: tuple[str, ...] = ("susy", "covertype")  # or "generated"
    rows: int = 5_000_000  # to generate
    shapes: tuple[float, ...] = (100.0, 0.5)  # shares of positive labels are Beta(a, a)
    clients: int = 30
    size: int = 90_000  # rows a client, if there are so many
    test: int = 20_000  # balanced rows held out; at most a tenth
    validate: bool = False  # leave test rows alone and score on a tenth of the clients' rows: to choose constants
    rounds: int = 5000
    first: int = 4000  # rounds of the first phase; draws are taken after it
    local_steps: int = 40
    batch_size: int = 50
    thin: int = 400
    step_size: float | None = None  # h, as printed; None: from `fast` down to `slow` in the first phase, then `slow`
    fast: float = 0.2  # ε
    slow: float = 0.002
    scaled: float = 0.003  # the first phase of our recipe: half of pSGLD's step at its start, a 200th in the end
    floor: float = 0.001  # pSGLD's λ, over N
    reach: float = 0.5  # of our recipe: how far a visit may move along a client's largest curvature, in e-folds
    local_draws: int = 3000
    local_step: float = 0.1  # ε of local chains
    methods: tuple[str, ...] = (CENTRAL, DSGLD, DRAWS, OURS)
    seeds: int = 10  # independent chains
    seed: int = 0

    @staticmethod
    def paper() -> Settings:
        """Give the paper's settings as printed, on rows of SUSY's shape: h = 1e-4 with 2.7 million rows."""
        return Settings(datasets=("generated",), test=90_000, step_size=1e-4, first=500, methods=(DSGLD, DRAWS))

    @staticmethod
    def corrected() -> Settings:
        """Give steps that do not overflow, on SUSY as far as it is there, and on Covertype."""
        return Settings()

    @staticmethod
    def quick(literal: bool = False) -> Settings:
        """Give short chains on the non-IID split."""
        if literal:  # the same ε on fewer rows
            same: dict[str, Any] = {"rows": 60_000, "step_size": 1e-4 * 2_700_000 / 40_000}
            return replace(Settings.paper(), shapes=(0.5,), seeds=2, local_draws=200, **same)
        less: dict[str, Any] = {"rounds": 500, "first": 450, "thin": 40, "local_draws": 200, "seeds": 2}
        return replace(Settings(), datasets=("susy",), shapes=(0.5,), **less)


class Data(NamedTuple):
    """A data set, and what was taken of it."""

    name: str
    rows: int
    size: int  # rows a client
    test: int  # rows held out


class Run(NamedTuple):
    """One method on one split."""

    data: Data
    shape: float  # a of Beta(a, a)
    method: str
    scores: list[Scores]  # one a chain that did not diverge
    diverged: int  # chains
    when: int | None  # the first round in which one did, from 1
    step: float  # ε at which draws were taken
    note: str = ""  # why there is no run

    def over_chains(self, name: str) -> np.ndarray:
        """Give a score of every chain; of the draws' log-likelihoods the mean, or their sd."""
        if name == "sd":
            return np.array([s.test.std(ddof=1) for s in self.scores])
        return np.array([np.mean(getattr(s, name)) for s in self.scores])


SCORES = ("test", "sd", "train", "average", "accuracy", "ece", "brier")


class Outcome(NamedTuple):
    """All that the experiment found, as data."""

    settings: Settings
    runs: list[Run]

    def tables(self) -> dict[str, Records]:
        """Give one line a run, and one a chain."""
        runs = [
            {"dataset": r.data.name, "rows": r.data.rows, "size": r.data.size, "test_rows": r.data.test,
             "shape": r.shape, "method": r.method, "chains": self.settings.seeds,
             "diverged": r.diverged, "when": r.when, "step": r.step, "note": r.note}
            | {name: r.over_chains(name).mean() if r.scores else np.nan for name in SCORES}
            | {f"{name}_sd": r.over_chains(name).std(ddof=1) if len(r.scores) > 1 else np.nan for name in SCORES}
            for r in self.runs
        ]  # fmt: skip
        chains = [
            {"dataset": r.data.name, "shape": r.shape, "method": r.method, "chain": c}
            | {name: r.over_chains(name)[c] for name in SCORES}
            for r in self.runs
            for c in range(len(r.scores))
        ]
        return {"runs": runs} | ({"chains": chains} if chains else {})

    def find(self, dataset: str, shape: float, method: str) -> Run | None:
        """Select a run."""
        found = [r for r in self.runs if (r.data.name, r.shape, r.method) == (dataset, shape, method)]
        return found[0] if found else None


def run(settings: Settings, announce: Announce = silent) -> Outcome:
    """Run all methods on all splits of all data sets."""
    runs: list[Run] = []
    total = len(settings.datasets) * len(settings.shapes) * len(settings.methods)
    for name in settings.datasets:
        rows = load(name, settings.rows)
        n = len(rows["y"])
        size, test = min(settings.size, 2 * n // (3 * settings.clients)), min(settings.test, n // 10)
        for a in settings.shapes:
            parts = split(rows, a, settings.clients, size, test, settings.seed)
            parts = validation(parts) if settings.validate else parts
            taken = Data(name, n, len(parts.shards[0]["y"]), len(parts.test["y"]))
            for method in settings.methods:
                announce(len(runs), total, f"{name}, Beta({a:g}, {a:g}), {method}")
                runs.append(_run(taken, a, method, parts, settings))
    announce(total, total, "done")
    return Outcome(settings, runs)


def _run(data: Data, a: float, method: str, parts: Split, settings: Settings) -> Run:
    """Run one method on one split and score its draws."""
    model = network(parts.test["x"].shape[1])
    N = sum(len(shard["y"]) for shard in parts.shards)
    step = settings.slow if settings.step_size is None else settings.step_size * N / 2
    try:
        if method == OURS:
            result, step = _our_recipe(model, parts.shards, settings)
        else:
            shards = [parts.train] if method == CENTRAL else parts.shards
            q = _local_draws(model, shards, settings) if method == DRAWS else None
            # surrogates made at the start do not bear a fast phase: chains run away, or predict a constant
            fast = settings.slow if method == DRAWS else settings.fast
            h = schedules.cosine(2 * fast / N, settings.first * settings.local_steps, 2 * settings.slow / N)
            dynamics = fsgld.langevin(h if settings.step_size is None else settings.step_size)
            result = _sample(model, shards, q, settings, dynamics, settings.rounds, settings.first)
    except InputError as error:
        return Run(data, a, method, [], settings.seeds, None, step, str(error).split(";")[0])
    lost = [s.round + 1 for s in result.status if s.round is not None]
    fine = np.array([not s.diverged for s in result.status])
    scores = score(jax.tree.map(lambda leaf: leaf[fine], result.draws), parts.test, parts.train) if fine.any() else []
    return Run(data, a, method, scores, len(lost), min(lost, default=None), step)


def _our_recipe(model: fsgld.Model, shards: list[Any], settings: Settings) -> tuple[fsgld.Result, float]:
    """Go down with preconditioned steps, then sample with tables that clients renew on every visit."""
    N, T = sum(len(shard["y"]) for shard in shards), settings.local_steps
    h = schedules.cosine(2 * settings.scaled, settings.first * T, 2 * settings.scaled / 200)
    dynamics = fsgld.psgld(h, decay=0.999, floor=settings.floor * N)
    first = _sample(model, shards, None, settings, dynamics, settings.first, settings.first - settings.thin // T)
    start = jax.tree.map(lambda leaf: leaf[:, -1], first.draws)
    # Λ_s = 0, so B_s = A_s/f_s and a visit of T steps moves by T ε λ along client s's largest curvature λ a row
    step = settings.reach / (T * _largest_curvature(model, shards, start))
    q = fsgld.fit(model, shards, fsgld.anchored, order=1, anchor=jax.tree.map(lambda leaf: leaf[0], start))
    dynamics = fsgld.langevin(2 * step / N)
    more: dict[str, Any] = {
        "start": start,
        "refresh": "on_visit",
        "likelihood": fsgld.control_variate,
        "seed": settings.seed + 1,
    }
    return _sample(model, shards, q, settings, dynamics, settings.rounds - settings.first, 0, **more), step


def _largest_curvature(model: fsgld.Model, shards: list[Any], start: Any, rows: int = 500) -> float:
    """Find the largest curvature a row over clients and chains, on some of each client's rows: a number leaves it."""
    some = [jax.tree.map(lambda column: column[:: -(-len(column) // rows)], shard) for shard in shards]
    table, flat = gather(some), model.flatten()
    thetas = jax.vmap(lambda params: ravel_pytree(params)[0])(jax.tree.map(jnp.asarray, start))
    clients = Shard(jax.tree.map(jnp.asarray, table.rows), jnp.asarray(table.starts), jnp.asarray(table.sizes))

    def at(theta: Any) -> Any:
        each = lambda place: largest_curvature(flat, theta, Shard(clients.rows, *place)) / place[1]  # noqa: E731
        return jax.lax.map(each, clients[1:])

    return float(jnp.max(jax.lax.map(jax.jit(at), thetas)))


def _local_draws(model: fsgld.Model, shards: list[Any], settings: Settings) -> Any:
    """Let clients fit diagonal Gaussians to local draws, as the paper does; one set for all chains."""
    h = settings.step_size or 2 * settings.local_step / len(shards[0]["y"])
    own: dict[str, Any] = {
        "step_size": h,
        "batch_size": settings.batch_size,
        "draws": settings.local_draws,
        "diagonal": True,
    }
    return fsgld.fit(model, shards, fsgld.from_draws, check=False, seed=settings.seed, **own)


def _sample(
    model: fsgld.Model, shards: list[Any], q: Any, settings: Settings, dynamics: Any, rounds: int, dropped: int,
    **more: Any,
) -> fsgld.Result:  # fmt: skip
    """Sample; divergence is among the findings, so it is no warning."""
    own: dict[str, Any] = {
        "likelihood": fsgld.plain, "batch_size": settings.batch_size, "local_steps": settings.local_steps,
        "thin": settings.thin, "burn_in": dropped * settings.local_steps, "chains": settings.seeds,
        "seed": settings.seed, "probs": None, "progress": False,
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fsgld.sample(model, shards, q, dynamics=dynamics, rounds=rounds, **(own | more))


TABLE_1 = {  # mean ± sd over ten repetitions, as printed
    (100.0, DSGLD): {"test": "−0.70 ± 0.001", "train": "−0.69 ± 0.001"},
    (0.5, DSGLD): {"test": "−1.11 ± 0.312", "train": "−0.44 ± 0.062"},
    (100.0, DRAWS): {"test": "−0.69 ± 0.00022", "train": "−0.69 ± 0.00022"},
    (0.5, DRAWS): {"test": "−0.67 ± 0.03", "train": "−0.67 ± 0.03"},
}


def compare(literal: Outcome, corrected: Outcome) -> list[Line]:
    """Set what was found beside what the paper says; ± is one standard deviation over repetitions, as in its table."""
    lines = []
    printed, chosen = literal.settings.datasets[0], corrected.settings
    for name, a in product(chosen.datasets, chosen.shapes):
        found = {method: corrected.find(name, a, method) for method in (CENTRAL, DSGLD, DRAWS, OURS)}
        rows = next(run.data.rows for run in corrected.runs if run.data.name == name)
        where = f"{name} ({rows:,} rows), {'IID' if a > 1 else 'non-IID'}"
        for method in (CENTRAL, DSGLD, DRAWS):
            for what in ("test", "train"):
                claim = TABLE_1.get((a, method), {}).get(what, "") if name == "susy" else ""
                was = words(literal.find(printed, a, method), what) if name == "susy" else "—"
                ours = f"our recipe: {words(found[OURS], what)}" if method == DRAWS else "—"
                quantity = f"{what} log-likelihood: {where}, {method}"
                lines.append(Line(quantity, claim or "not in the paper", was, words(found[method], what), ours))
        lines.append(
            Line(f"test log-likelihood: {where}, our recipe − centralised", "not in the paper", "—", "—", _gap(found))
        )
        for what, text in AVERAGED.items():
            both = ", ".join(f"{method} {words(found[method], what)}" for method in (CENTRAL, DSGLD))
            ours = f"our recipe: {words(found[OURS], what)}"
            lines.append(Line(f"{text}: {where}", "not in the paper", "—", both, ours))
    return lines


AVERAGED = {
    "sd": "sd of the test log-likelihood within a chain",
    "accuracy": "accuracy of averaged predictions",
    "ece": "their expected calibration error",
    "brier": "their Brier score",
}


def _gap(found: dict[str, Run | None]) -> str:
    """Write by how much our recipe's test log-likelihood differs, ± one standard error over pairs of equal starts."""
    ours, central = found[OURS], found[CENTRAL]
    if ours is None or central is None or ours.diverged or central.diverged:
        return "—"
    gaps = ours.over_chains("test") - central.over_chains("test")
    return f"{plus_minus(gaps.mean(), gaps.std(ddof=1) / np.sqrt(len(gaps)))} (standard error)"


def words(run: Run | None, what: str) -> str:
    """Write a run's score, or what went wrong."""
    if run is None:
        return "—"
    if run.note:
        return run.note
    if run.diverged:
        return f"{run.diverged} of {run.diverged + len(run.scores)} chains diverged, the first in round {run.when}"
    values = run.over_chains(what)
    return plus_minus(values.mean(), values.std(ddof=1))
