"""Figure 4: the constants γ_s² and ε_s² of Theorems 1 and 2 on `blobs`, the bounds, and the errors that they bound.

Constants are maxima over a grid on [−6, 6]² (the paper does not print its grid). The error is that of the average of
all steps from a start at 0, one local update a visit, as in the theorems. Their constant C is not known; the figure
has the smallest one with which no bound is broken.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

import fsgld
from fsgld import theory
from fsgld.experiments import blobs
from fsgld.experiments.blobs_law import posterior
from fsgld.experiments.reproduce import Announce, Line, Records, plus_minus, scientific, silent


@dataclass(frozen=True)
class Settings:
    """The sizes of the experiment."""

    surrogate: str = "exact"  # q_s = N(x̄_s, I/N_s); "printed": I/N
    reach: float = 6.0  # the grid covers [−reach, reach]²
    points: int = 61  # of the grid, a side
    step_size: float = 1e-4
    batch_size: int = 10
    steps: int = 100_000
    thin: int = 10
    seeds: int = 64  # independent chains
    seed: int = 0

    @staticmethod
    def paper() -> Settings:
        """Give the paper's settings, with surrogates as printed."""
        return Settings(surrogate="printed")

    @staticmethod
    def corrected() -> Settings:
        """Give surrogates that are the likelihood."""
        return Settings()

    @staticmethod
    def quick(literal: bool = False) -> Settings:
        """Give a coarser grid and shorter chains."""
        return replace(Settings.paper() if literal else Settings.corrected(), points=13, steps=10_000, seeds=32)


class Method(NamedTuple):
    """What was found for one method."""

    name: str
    constants: np.ndarray  # γ_s² or ε_s²: what the bound is made of
    mse: np.ndarray  # at every T
    mse_error: np.ndarray
    bound: np.ndarray  # with C = 1
    variance: float  # tr Cov of the gradient estimate at the posterior's mean
    claimed: float  # what the proofs bound it by there, V/m


class Outcome(NamedTuple):
    """All that the experiment found, as data."""

    settings: Settings
    T: np.ndarray
    methods: list[Method]

    def tables(self) -> dict[str, Records]:
        """Give the constants of every client, and errors and bounds at every T."""
        constants = [
            {"client": s + 1, **{method.name: method.constants[s] for method in self.methods}}
            for s in range(len(self.methods[0].constants))
        ]
        curves = [
            {"method": m.name, "steps": T, "mse": m.mse[i], "mcse": m.mse_error[i], "bound": self.C * m.bound[i]}
            for m in self.methods
            for i, T in enumerate(self.T)
        ]
        return {"constants": constants, "mse": curves}

    @property
    def C(self) -> float:
        """The smallest C with which no bound is broken."""
        return float(max((method.mse / method.bound).max() for method in self.methods))


def run(settings: Settings, announce: Announce = silent) -> Outcome:
    """Compute constants and bounds, and measure errors."""
    data = replace(blobs.Settings.corrected(), surrogate=settings.surrogate)
    shards, grid = blobs.make_shards(data), theory.grid([-settings.reach] * 2, settings.reach, settings.points)
    surrogates = blobs.make_surrogates(shards, settings.surrogate)
    T = np.unique(np.geomspace(settings.thin, settings.steps, 30).astype(int) // settings.thin) * settings.thin
    announce(0, 4, "constants on the grid")
    gamma = theory.gamma_squared(blobs.MODEL, shards, grid)
    epsilon = theory.epsilon_squared(blobs.MODEL, shards, surrogates, grid)
    constants = {"DSGLD": gamma, "FSGLD": epsilon}
    if settings.surrogate == "exact":  # then a control variate leaves no variance: all rows have one curvature
        constants["FSGLD + control variate"] = np.zeros(len(shards))
    found: list[Method] = []
    for name in constants:
        announce(1 + len(found), 4, name)
        found.append(_method(name, constants[name], shards, surrogates, T, settings))
    announce(4, 4, "done")
    return Outcome(settings, T, found)


def _method(
    name: str, constants: np.ndarray, shards: list[np.ndarray], surrogates: list[fsgld.Gaussian], T: np.ndarray,
    settings: Settings,
) -> Method:  # fmt: skip
    """Measure one method's error, and the variance of its gradient estimate at the posterior's mean."""
    h, m, sizes, mean = settings.step_size, settings.batch_size, [len(x) for x in shards], posterior(shards)[0]
    conducive, likelihood = blobs.METHODS[name]
    q = surrogates if conducive else None
    result = fsgld.sample(
        blobs.MODEL, shards, q, dynamics=fsgld.langevin(h), likelihood=likelihood, batch_size=m, local_steps=1,
        rounds=settings.steps, chains=settings.seeds, thin=settings.thin, burn_in=0, probs=None, seed=settings.seed,
        progress=False,
    )  # fmt: skip
    averages = np.cumsum(np.asarray(result.draws, float), axis=1)[:, T // settings.thin - 1]
    squares = np.sum((averages / (T // settings.thin)[:, None] - mean) ** 2, axis=-1)
    bound = np.array([theory.bound(constants, sizes, None, m, int(t), h) for t in T])
    true = theory.gradient_variance(blobs.MODEL, shards, mean, q, batch_size=m, likelihood=likelihood)
    at_mean = theory.epsilon_squared(blobs.MODEL, shards, q or [fsgld.Gaussian.flat(2)] * len(shards), mean[None])
    claimed = float(np.sum(np.square(sizes) * len(sizes) * at_mean)) / m if constants.any() else 0.0
    error = squares.std(0, ddof=1) / np.sqrt(len(squares))
    return Method(name, constants, squares.mean(0), error, bound, float(np.trace(true)), claimed)


def compare(literal: Outcome, corrected: Outcome) -> list[Line]:
    """Set what was found beside what the paper says."""

    def ratio(outcome: Outcome) -> str:
        dsgld, fsgld_ = outcome.methods[:2]
        each = dsgld.constants / fsgld_.constants
        return f"{each.mean():.3g} (clients: {each.min():.3g} to {each.max():.3g})"

    def error(outcome: Outcome, i: int) -> str:
        return plus_minus(outcome.methods[i].mse[-1], outcome.methods[i].mse_error[-1])

    def bounds(outcome: Outcome) -> str:
        return f"{outcome.methods[0].bound[-1] / outcome.methods[1].bound[-1]:.3g}"

    def ratio_of_errors(outcome: Outcome) -> str:
        errors, spread = np.array([(m.mse[-1], m.mse_error[-1]) for m in outcome.methods[:2]]).T
        return plus_minus(errors[0] / errors[1], errors[0] / errors[1] * float(np.hypot(*(spread / errors))))

    def variance(outcome: Outcome, i: int) -> str:
        true, claimed = outcome.methods[i].variance, outcome.methods[i].claimed
        return f"{scientific(true)} against {scientific(claimed)}: {true / claimed:.3g} times"

    T, none = f"after {corrected.T[-1]:,} steps", "not in the paper"
    dsgld, control = "tr Cov of DSGLD's estimate against the proofs' V/m", scientific(corrected.methods[2].variance)
    return [
        Line("γ² ÷ ε², averaged over clients", "≫ 1 (no number)", ratio(literal), ratio(corrected), "—"),
        Line(f"bound of DSGLD ÷ bound of FSGLD, {T}", "≫ 1", bounds(literal), bounds(corrected), "—"),
        Line(f"MSE of DSGLD ÷ MSE of FSGLD, {T}", "≫ 1", ratio_of_errors(literal), ratio_of_errors(corrected), "—"),
        Line(f"MSE of FSGLD, {T}", "no number", error(literal, 1), error(corrected, 1), "— (see `blobs`)"),
        Line(f"MSE of FSGLD with our control variate, {T}", none, "—", error(corrected, 2), "— (see `blobs`)"),
        Line(dsgld, "at most V/m", variance(literal, 0), variance(corrected, 0), "—"),
        Line(dsgld.replace("DSGLD", "FSGLD"), "at most V/m", variance(literal, 1), variance(corrected, 1), "—"),
        Line("tr Cov of FSGLD's estimate with our control variate", none, "—", f"{control} (rounding)", "—"),
    ]
