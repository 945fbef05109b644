"""Figure 5 and Appendix F.2: learning a metric on spoken letters at ten clients, each with letters of its own.

What is measured is a draw's average log-likelihood of pairs, on the learning and on the test pairs, with y in {−1, 1}.
Repetitions are chains with one set of pairs; with local draws each has surrogates of its own. The paper gives neither
K, nor the prior, nor the numbers of local steps and of rounds.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

import fsgld
from fsgld.errors import InputError
from fsgld.experiments.cases_build import Case, Rows, isolet_metric
from fsgld.experiments.reproduce import Announce, Line, Records, plus_minus, silent

DSGLD, DRAWS, LAPLACE, OURS = "DSGLD", "FSGLD, local draws", "FSGLD, Laplace", "our default"


@dataclass(frozen=True)
class Settings:
    """The sizes of the experiment."""

    K: int = 10  # eigenvectors
    clients: int = 10
    pairs: int = 500  # of each kind: at a client, and for the test
    unit_norm: bool = True  # whether rows are scaled to norm 1
    signed: bool = True  # y is −1 for pairs that are not alike; as printed it is 0, and the likelihood ½
    step_size: float = 1e-3
    batch_size: int = 256
    local_steps: tuple[int, ...] = (1, 40)
    steps: int = 20_000
    thin: int = 40
    local_draws: int = 3000
    local_thin: int = 100  # steps from one local draw to the next
    methods: tuple[str, ...] = (DSGLD, DRAWS, LAPLACE)
    ours: bool = True
    seeds: int = 10  # independent chains
    seed: int = 0

    @staticmethod
    def paper() -> Settings:
        """Give the paper's settings as printed: y in {0, 1}, rows as they come, consecutive local draws."""
        return Settings(unit_norm=False, signed=False, local_thin=1, local_steps=(40,), ours=False)

    @staticmethod
    def corrected() -> Settings:
        """Give a likelihood that knows both kinds of pairs, rows of norm 1, and local draws that mix."""
        return Settings()

    @staticmethod
    def quick(literal: bool = False) -> Settings:
        """Give shorter and fewer chains, and less time between local draws."""
        full = Settings.paper() if literal else Settings.corrected()
        return replace(full, steps=4000, local_draws=1000, local_thin=min(full.local_thin, 20), seeds=2)


class Run(NamedTuple):
    """One method with so many local steps; log-likelihoods per chain. NaN from where a chain diverged."""

    method: str
    local_steps: int
    draws: np.ndarray  # numbers of draws at which log-likelihoods were looked at
    learning: np.ndarray  # (chains, len(draws))
    test: np.ndarray
    diverged: tuple[int, ...]  # the rounds in which chains did
    note: str = ""  # why there is no run


class Outcome(NamedTuple):
    """All that the experiment found, as data."""

    settings: Settings
    runs: list[Run]

    def tables(self) -> dict[str, Records]:
        """Give one line a run, and mean and sd over chains at every number of draws."""
        runs = [
            {"method": r.method, "local_steps": r.local_steps, "test": settled(r.test).mean(),
             "test_sd": settled(r.test).std(ddof=1), "learning": settled(r.learning).mean(),
             "learning_sd": settled(r.learning).std(ddof=1), "chains": len(r.test), "diverged": len(r.diverged),
             "note": r.note}
            for r in self.runs
        ]  # fmt: skip
        curves = [
            {"method": r.method, "local_steps": r.local_steps, "draws": n, "learning": r.learning[:, i].mean(),
             "learning_sd": r.learning[:, i].std(ddof=1), "test": r.test[:, i].mean(),
             "test_sd": r.test[:, i].std(ddof=1)}
            for r in self.runs
            for i, n in enumerate(r.draws)
        ]  # fmt: skip
        return {"runs": runs, "curves": curves}

    def find(self, method: str, local_steps: int) -> Run | None:
        """Select a run."""
        found = [r for r in self.runs if (r.method, r.local_steps) == (method, local_steps)]
        return found[0] if found else None


def settled(values: np.ndarray) -> np.ndarray:
    """Take the draws looked at in the second half of a run, all chains."""
    return values[:, values.shape[1] // 2 :]


def run(settings: Settings, announce: Announce = silent) -> Outcome:
    """Run all methods with all numbers of local steps, then our default."""
    case = isolet_metric(settings.K, settings.clients, settings.pairs, settings.unit_norm)
    pairs = [(method, T) for method in settings.methods for T in settings.local_steps]
    runs: list[Run] = []
    total = len(pairs) + settings.ours
    surrogates: dict[str, list[Any] | str] = {}
    for method, T in pairs:
        announce(len(runs), total, f"{method}, {T} local steps")
        if method not in surrogates:
            surrogates[method] = _fit(method, case, settings)
        runs.append(_run(method, T, surrogates[method], case, settings))
    if settings.ours:
        announce(len(runs), total, OURS)
        result = _sample(case.model, case.shards, chains=settings.seeds, seed=settings.seed)
        runs.append(_measure(OURS, result.settings["local_steps"], [result], case, len(result.draw_rounds)))
    announce(total, total, "done")
    return Outcome(settings, runs)


def _shards(case: Case, settings: Settings) -> list[Rows]:
    """Give the clients' pairs, with labels as they are wanted."""
    rows = _all_pairs(case)
    return rows if settings.signed else [{"z": r["z"], "y": (r["y"] + 1) / 2} for r in rows]


def _all_pairs(case: Case) -> list[Rows]:
    """Give the clients' pairs with y in {−1, 1}."""
    assert isinstance(case.shards, list)
    return case.shards


def _fit(method: str, case: Case, settings: Settings) -> list[Any] | str:
    """Make the surrogates of a method, one set for all seeds or one for each; or say why there are none."""
    shards, own = _shards(case, settings), range(settings.seed, settings.seed + settings.seeds)
    if method == DSGLD:
        return [None]
    try:
        if method == LAPLACE:
            return [fsgld.fit(case.model, shards, fsgld.laplace)]
        local: dict[str, Any] = {
            "step_size": settings.step_size, "batch_size": settings.batch_size, "draws": settings.local_draws,
            "thin": settings.local_thin, "burn_in": settings.local_draws // 3 * settings.local_thin, "check": False,
        }  # fmt: skip
        return [fsgld.fit(case.model, shards, fsgld.from_draws, seed=seed, **local) for seed in own]
    except InputError as error:
        return str(error).split(";")[0]


def _run(method: str, T: int, surrogates: list[Any] | str, case: Case, settings: Settings) -> Run:
    """Sample with one method: all seeds as chains, or one after the other if each has surrogates of its own."""
    if isinstance(surrogates, str):
        nothing = np.full((settings.seeds, 1), np.nan)
        return Run(method, T, np.array([1]), nothing, nothing, (), surrogates)
    fixed: dict[str, Any] = {
        "dynamics": fsgld.langevin(settings.step_size), "likelihood": fsgld.plain, "batch_size": settings.batch_size,
        "local_steps": T, "rounds": settings.steps // T, "thin": settings.thin, "burn_in": 0, "probs": None,
        "chains": settings.seeds if len(surrogates) == 1 else 1,
    }  # fmt: skip
    results = [
        _sample(case.model, _shards(case, settings), q, seed=settings.seed + i, **fixed)
        for i, q in enumerate(surrogates)
    ]
    return _measure(method, T, results, case, settings.steps // settings.thin)


def _sample(*arguments: Any, **settings: Any) -> fsgld.Result:
    """Sample without warnings: divergence is among the findings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fsgld.sample(*arguments, **settings, progress=False)


def _measure(method: str, T: int, results: list[fsgld.Result], case: Case, draws: int) -> Run:
    """Evaluate some of the draws of all chains on learning and test pairs."""
    gamma, mu = (np.concatenate([_pad(r.draws[name], draws) for r in results]) for name in ("gamma", "mu"))
    n = np.unique(np.geomspace(1, draws, 40).astype(int))
    learning = {name: np.concatenate([rows[name] for rows in _all_pairs(case)]) for name in ("z", "y")}
    assert case.test is not None
    curves = [_log_likelihood(gamma[:, n - 1], mu[:, n - 1], rows) for rows in (learning, case.test)]
    rounds = tuple(s.round for r in results for s in r.status if s.round is not None)
    return Run(method, T, n, curves[0], curves[1], rounds)


def _pad(draws: Any, n: int) -> np.ndarray:
    """Fill draws up to n with NaN: a run ends when all of its chains have diverged."""
    leaf = np.asarray(draws, float)
    return np.pad(leaf, [(0, 0), (0, n - leaf.shape[1])] + [(0, 0)] * (leaf.ndim - 2), constant_values=np.nan)


def _log_likelihood(gamma: np.ndarray, mu: np.ndarray, rows: Rows) -> np.ndarray:
    """Average log p(y | z) over pairs, for every draw."""
    with np.errstate(over="ignore", invalid="ignore"):
        logits = [(g @ rows["z"].T - m[:, None]) * rows["y"] for g, m in zip(gamma, mu, strict=True)]
        return np.stack([-np.logaddexp(0, x).mean(-1) for x in logits])


def compare(literal: Outcome, corrected: Outcome) -> list[Line]:
    """Set what was found beside what the paper says; ± is one standard error over chains, sd that of single draws."""
    ours = next((r for r in corrected.runs if r.method == OURS), None)
    lines = []
    for what in ("learning", "test"):
        for T in corrected.settings.local_steps:
            for method, claim in CLAIMS.items():
                printed, right = (_words(outcome.find(method, T), what) for outcome in (literal, corrected))
                default = _words(ours, what) if method == DRAWS else "—"
                steps = f"{T} local step{'s' if T > 1 else ''}"
                lines.append(Line(f"{what} log-likelihood: {method}, {steps}", claim, printed, right, default))
    return lines


CLAIMS = {
    DSGLD: "lower than FSGLD, slower",
    DRAWS: "higher than DSGLD, smaller sd",
    LAPLACE: "as local draws, larger sd",
}


def _words(run: Run | None, what: str) -> str:
    """Write a run's log-likelihood, or what went wrong."""
    if run is None:
        return "—"
    if run.note:
        return run.note
    if run.diverged:
        return f"{len(run.diverged)} of {len(run.test)} diverged, rounds {min(run.diverged)} to {max(run.diverged)}"
    values = settled(getattr(run, what))
    means = values.mean(1)
    sd = values.std(ddof=1)
    spread = f"sd {sd:.0f}" if sd >= 100 else f"sd {sd:.2g}"
    return f"{plus_minus(means.mean(), means.std(ddof=1) / np.sqrt(len(means)))}, {spread}"
