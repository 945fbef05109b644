"""Section 5.1 and Figure 2: ten clients that disagree, and chains that wander among them.

Each client holds 200 rows from N(μ_s, I), with μ_s uniform on [−6, 6]². The model is N(μ | 0, I)
Π N(x | μ, I). DSGLD, FSGLD and FSGLD with the in-client control variate are compared with the
exact posterior and with their own long-run law (`blobs_law`), and so is the library's default.
`blobs_demo` prints a table and writes the picture.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import fsgld
from fsgld import diagnostics
from fsgld.experiments.blobs_law import client_law, posterior, precisions, stationary_variance
from fsgld.experiments.reproduce import Announce, Line, Records, plus_minus, silent


@dataclass(frozen=True)
class Settings:
    """The sizes of the experiment."""

    clients: int = 10
    rows: int = 200  # a client
    step_size: float = 1e-4
    batch_size: int = 10
    local_steps: tuple[int, ...] = (1, 10, 100, 1000)
    burn_in: int = 20_000  # steps
    thin: int = 100
    draws: int = 1000  # a chain
    seeds: int = 32  # independent chains
    data_seed: int = 28310  # chosen for the picture: no client where the mean is, a free corner
    seed: int = 0
    surrogate: str = "exact"  # q_s = N(x̄_s, I/N_s); "printed": I/N
    methods: tuple[str, ...] = ("DSGLD", "FSGLD", "FSGLD + control variate")

    @staticmethod
    def paper() -> Settings:
        """Give the paper's settings, with surrogates as printed; it does not print the number of draws."""
        return Settings(surrogate="printed", methods=("DSGLD", "FSGLD"))

    @staticmethod
    def corrected() -> Settings:
        """Give surrogates that are the likelihood, as the paper's text says, and what repairs the variance."""
        return Settings(methods=(*METHODS, DEFAULT))

    @staticmethod
    def quick(literal: bool = False) -> Settings:
        """Give the same law with fewer methods, runs, chains and draws."""
        methods = ("DSGLD", "FSGLD") if literal else ("DSGLD", "FSGLD", DEFAULT)
        full = replace(Settings.paper() if literal else Settings.corrected(), methods=methods)
        return replace(full, local_steps=(1, 1000), burn_in=2_000, draws=600, seeds=8)


VARIATE = "FSGLD + control variate"
METHODS = {  # name: whether there are surrogates, and the likelihood slot
    "DSGLD": (False, fsgld.plain),
    "FSGLD": (True, fsgld.plain),
    VARIATE: (True, fsgld.control_variate),
}
DEFAULT = "our default"  # `fsgld.sample` with nothing but the model and the shards
MODEL = fsgld.Model(
    log_prior=lambda mu: -0.5 * jnp.sum(mu**2),
    log_likelihood=lambda mu, x: -0.5 * jnp.sum((x - mu) ** 2),
    init=np.zeros(2),
)


class Run(NamedTuple):
    """One method with one number of local updates.

    The mean's error is that of the worst coordinate, in posterior standard deviations; the
    variance is in posterior variances, averaged over coordinates. `_mcse` are their Monte Carlo
    standard errors.
    """

    method: str
    local_steps: int
    draws: np.ndarray  # (chains, draws, 2)
    seconds: float  # with compilation
    mean_error: float
    mean_error_mcse: float
    variance_ratio: float
    variance_ratio_mcse: float
    variance_ratio_theory: float


class Outcome(NamedTuple):
    """All that the experiment found, as data."""

    settings: Settings
    shards: list[np.ndarray]
    runs: list[Run]

    def tables(self) -> dict[str, Records]:
        """Give the measures of every run, and its mean squared error over the number of draws."""
        runs = [{key: value for key, value in run._asdict().items() if key != "draws"} for run in self.runs]
        curves = [
            {"method": run.method, "local_steps": run.local_steps, "draws": n, "mse": mse, "mcse": error}
            for run in self.runs
            for n, mse, error in zip(*mse_curve(run.draws, posterior(self.shards)[0]), strict=True)
        ]
        return {"runs": runs, "mse": curves}

    def find(self, method: str, local_steps: int | None = None) -> list[Run]:
        """Select runs of a method."""
        return [run for run in self.runs if run.method == method and local_steps in (None, run.local_steps)]


def make_shards(settings: Settings) -> list[np.ndarray]:
    """Draw the clients' means and rows."""
    rng = np.random.default_rng(settings.data_seed)
    means = rng.uniform(-6, 6, (settings.clients, 2))
    return [rng.normal(mean, 1.0, (settings.rows, 2)) for mean in means]


def make_surrogates(shards: list[np.ndarray], kind: str | None) -> list[fsgld.Gaussian]:
    """Make q_s = N(x̄_s, I/N_s), as printed N(x̄_s, I/N), or for DSGLD (None) q_s ≡ 1."""
    P = precisions(np.array([len(x) for x in shards]), kind)
    return [
        fsgld.Gaussian.from_precision(jnp.asarray(x.mean(0)), jnp.full(2, p)) for x, p in zip(shards, P, strict=True)
    ]


def run(settings: Settings, announce: Announce = silent) -> Outcome:
    """Run all methods and numbers of local updates; announce how many are done and what is next."""
    shards = make_shards(settings)
    jobs = [(m, L) for m in settings.methods for L in (settings.local_steps if m in METHODS else (0,))]
    runs: list[Run] = []
    for method, local_steps in jobs:
        announce(len(runs), len(jobs), method + f", local updates: {local_steps}" * (local_steps > 0))
        begin = time.perf_counter()
        draws, local_steps = _draws(method, local_steps, shards, settings)
        seconds = time.perf_counter() - begin
        runs.append(_measure(method, local_steps, draws, seconds, shards, settings))
    announce(len(runs), len(jobs), "done")
    return Outcome(settings, shards, runs)


def mse_curve(draws: np.ndarray, mean: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give numbers n of draws, the mean of |μ̂_n − μ̄|² over chains (Figure 3b), and its standard error."""
    n = np.unique(np.geomspace(1, draws.shape[1], 40).astype(int))
    estimates = np.cumsum(draws, axis=1)[:, n - 1] / n[:, None]
    squares = np.sum((estimates - mean) ** 2, axis=-1)
    return n, squares.mean(0), squares.std(0, ddof=1) / np.sqrt(len(squares))


def _draws(method: str, local_steps: int, shards: list[np.ndarray], settings: Settings) -> tuple[np.ndarray, int]:
    """Sample with one method and one number of local updates; give that number as well."""
    own: dict[str, Any] = {"chains": settings.seeds, "seed": settings.seed, "progress": False}
    if method == DEFAULT:
        result = fsgld.sample(MODEL, shards, **own)
        return np.asarray(result.draws, float), int(result.settings["local_steps"])
    conducive, likelihood = METHODS[method]
    surrogates = make_surrogates(shards, settings.surrogate if conducive else None)  # so both run one program
    steps = settings.burn_in + settings.thin * settings.draws
    result = fsgld.sample(
        MODEL, shards, surrogates, dynamics=fsgld.langevin(settings.step_size), likelihood=likelihood,
        batch_size=settings.batch_size, local_steps=local_steps, rounds=-(-steps // local_steps),
        thin=settings.thin, burn_in=settings.burn_in, probs=None, **own,
    )  # fmt: skip
    return np.asarray(result.draws, float), local_steps


def _measure(
    method: str, local_steps: int, draws: np.ndarray, seconds: float, shards: list[np.ndarray],
    settings: Settings,
) -> Run:  # fmt: skip
    """Compare draws with the exact posterior and with the method's own law."""
    mean, variance = posterior(shards)
    errors = np.abs(draws.mean((0, 1)) - mean) / np.sqrt(variance)
    worst = int(errors.argmax())
    mean_mcse = diagnostics.mcse_mean(draws)[worst] / np.sqrt(variance)
    squares = np.mean((draws - draws.mean((0, 1))) ** 2, -1, keepdims=True) / variance
    theory = _law_variance(method, local_steps, shards, settings) / variance
    numbers = errors[worst], mean_mcse, squares.mean(), diagnostics.mcse_mean(squares)[0], theory
    return Run(method, local_steps, draws, seconds, *map(float, numbers))


def _law_variance(method: str, local_steps: int, shards: list[np.ndarray], settings: Settings) -> float:
    """Give the variance that a method must have in the long run, averaged over coordinates."""
    if method == DEFAULT:  # exact steps of an Ornstein-Uhlenbeck process, and no mini-batch noise
        return posterior(shards)[1]
    conducive, likelihood = METHODS[method]
    law = client_law(
        shards, settings.step_size, settings.batch_size, surrogate=settings.surrogate if conducive else None,
        control_variate=likelihood is fsgld.control_variate,
    )  # fmt: skip
    return float(stationary_variance(law, local_steps, settings.thin).mean())


def compare(literal: Outcome, corrected: Outcome) -> list[Line]:
    """Set what was found beside what the paper says."""
    few, many = corrected.settings.local_steps[0], corrected.settings.local_steps[-1]
    (ours,) = corrected.find(DEFAULT)
    n = min(run.draws.shape[1] for run in (*literal.runs, *corrected.runs))

    def variance(outcome: Outcome, method: str, L: int) -> str:
        (run,) = outcome.find(method, L)
        style = ",.0f" if run.variance_ratio_theory > 100 else ".4g"
        return f"{plus_minus(run.variance_ratio, run.variance_ratio_mcse)} (theory {run.variance_ratio_theory:{style}})"

    def mse(outcome: Outcome, method: str, L: int) -> str:
        (run,) = outcome.find(method, L)
        _, value, error = mse_curve(run.draws[:, :n], posterior(outcome.shards)[0])
        return plus_minus(value[-1], error[-1])

    def lines(method: str, L: int, claim: str, claim_mse: str) -> list[Line]:
        found = []
        kinds = (variance, "variance ÷ the posterior's", claim), (mse, f"MSE of the mean of {n} draws", claim_mse)
        for measure, name, words in kinds:
            best = measure(corrected, DEFAULT, ours.local_steps) if method == "FSGLD" else "—"
            quantity = f"{name}: {method}, local updates: {L:,}"
            printed, right = (measure(o, method, L) if o.find(method, L) else "—" for o in (literal, corrected))
            found.append(Line(quantity, words, printed, right, best))
        return found

    slopes = [f"{_slope(outcome, many):.2f}".replace("-", "−") for outcome in (literal, corrected)]
    fall = f"a where MSE falls as n^a, over the last decade of n: DSGLD, local updates: {many:,}"
    return [
        *lines("DSGLD", few, "wider than the posterior", "above FSGLD's"),
        *lines("DSGLD", many, "a mixture of local posteriors", "plateaus above FSGLD's"),
        *lines("FSGLD", few, "converges to the posterior: 1", "below DSGLD's"),
        *lines("FSGLD", many, "converges to the posterior: 1", "the same as with few updates"),
        *(lines(VARIATE, many, *["not in the paper"] * 2) if corrected.find(VARIATE) else []),
        Line(fall, "0 (plateau)", slopes[0], slopes[1], "—"),
    ]


def _slope(outcome: Outcome, local_steps: int) -> float:
    """Fit the slope of DSGLD's log MSE over log n, over the last decade; by theory −1."""
    (run,) = outcome.find("DSGLD", local_steps)
    n, mse, _ = mse_curve(run.draws, posterior(outcome.shards)[0])
    late = n > n[-1] / 10
    return float(np.polyfit(np.log(n[late]), np.log(mse[late]), 1)[0])
