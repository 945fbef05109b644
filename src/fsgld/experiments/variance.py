"""Figure 1: how much gradient estimates vary when a coin is tossed at three clients that disagree.

The model is Bernoulli with a uniform prior. Of ten tosses each, the clients saw 1, 5 and 9 heads. Variances are
exact sums over clients and rows (`fsgld.theory.gradient_variance`), mini-batches with replacement as in the paper's
proofs; at one θ they are compared with the sampler's own estimates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import fsgld
from fsgld.experiments.reproduce import Announce, Line, Records, plus_minus, silent


@dataclass(frozen=True)
class Settings:
    """The sizes of the experiment."""

    heads: tuple[int, ...] = (1, 5, 9)
    tosses: int = 10  # a client
    batch_size: int = 5
    points: tuple[float, ...] = tuple(np.round(np.linspace(0.06, 0.94, 23), 2).tolist())  # where θ is looked at
    draws: int = 100_000  # of the sampler's estimate, at θ = 1/2
    seed: int = 0

    @staticmethod
    def paper() -> Settings:
        """Give the paper's settings; it does not print where θ was looked at."""
        return Settings()

    @staticmethod
    def corrected() -> Settings:
        """Give the same: there is nothing to correct."""
        return Settings.paper()

    @staticmethod
    def quick(literal: bool = False) -> Settings:
        """Give fewer points."""
        return Settings(points=(0.2, 0.35, 0.5, 0.65, 0.8), draws=20_000)


MODEL = fsgld.Model(
    log_prior=lambda theta: jnp.zeros(()),
    log_likelihood=lambda theta, x: x * jnp.log(theta) + (1 - x) * jnp.log1p(-theta),
    init=jnp.array(0.5),
)
POSTERIOR_SD = float(np.sqrt(0.25 / 33))  # of Beta(16, 16): fifteen heads of thirty
VARIATE = "FSGLD + control variate"  # surrogates and anchor from the posterior's mode, as the default has them
METHODS = ("SGLD", "DSGLD", "FSGLD, exact surrogates", VARIATE)


class Outcome(NamedTuple):
    """Standard deviations of the estimates, exactly at all points, and by Monte Carlo at θ = 1/2."""

    settings: Settings
    gradient: np.ndarray  # of the log posterior, at every point
    sd: dict[str, np.ndarray]  # by method, at every point
    measured: dict[str, float]  # by method, at θ = 1/2

    def tables(self) -> dict[str, Records]:
        """Give one line a method and point."""
        points = zip(self.settings.points, self.gradient, strict=True)
        return {
            "sd": [
                {"method": method, "theta": theta, "gradient": gradient, "sd": self.sd[method][i]}
                for i, (theta, gradient) in enumerate(points)
                for method in METHODS
            ]
        }

    def ratio(self, method: str) -> np.ndarray:
        """Divide by SGLD's standard deviation, at every point."""
        return self.sd[method] / self.sd["SGLD"]


def make_shards(settings: Settings) -> list[np.ndarray]:
    """Lay the tosses out; their order does not matter."""
    return [(np.arange(settings.tosses) < heads) * 1.0 for heads in settings.heads]


def run(settings: Settings, announce: Announce = silent) -> Outcome:
    """Compute the standard deviation of every estimator at every point."""
    shards, total = make_shards(settings), len(METHODS) * (len(settings.points) + 1)
    rows, sd, measured = np.concatenate(shards), {}, {}
    for i, method in enumerate(METHODS):
        announce(i * total // len(METHODS), total, method)
        sd[method] = np.array([_sd(method, theta, shards, settings) for theta in settings.points])
        measured[method] = _sd(method, 0.5, shards, settings, method="monte_carlo", draws=settings.draws)
    announce(total, total, "done")
    theta = np.array(settings.points)
    return Outcome(settings, rows.sum() / theta - (1 - rows).sum() / (1 - theta), sd, measured)


def _sd(name: str, theta: float, shards: list[np.ndarray], settings: Settings, **how: Any) -> float:
    """Give the standard deviation of one estimator at one θ."""
    likelihood, surrogates = fsgld.plain, None
    if name == "SGLD":
        shards = [np.concatenate(shards)]
    if name == "FSGLD, exact surrogates":  # ∇log q_s = ∇log p(x_s | θ), at this θ
        surrogates = fsgld.fit(MODEL, shards, fsgld.anchored, anchor=theta, order=1)
    if name == VARIATE:
        mode = float(np.concatenate(shards).mean())
        surrogates = fsgld.fit(MODEL, shards, fsgld.anchored, anchor=mode)
        likelihood = fsgld.control_variate.at(mode)
    covariance = fsgld.theory.gradient_variance(
        MODEL, shards, theta, surrogates, batch_size=settings.batch_size, likelihood=likelihood, seed=settings.seed,
        **how,
    )  # fmt: skip
    return float(np.sqrt(covariance.item()))


def compare(literal: Outcome, corrected: Outcome) -> list[Line]:
    """Set what was found beside what the paper says."""
    s = literal.settings
    i = int(np.argmin(np.abs(np.array(s.points) - 0.5)))
    same = "the same: nothing to correct"

    def both(method: str) -> str:
        ratio, draws = literal.measured[method] / literal.measured["SGLD"], s.draws
        return f"{literal.ratio(method)[i]:.3f}; by the sampler {plus_minus(ratio, ratio / np.sqrt(draws))}"

    ratio = literal.ratio(VARIATE)
    near = np.abs(np.array(s.points) - 0.5) < 2 * POSTERIOR_SD
    repaired = f"{ratio[i]:.3f}; within 2 posterior sd at most {ratio[near].max():.2f}"
    no_run = "— (estimates at a point; nothing is sampled)"
    return [
        Line("sd of DSGLD's estimate ÷ SGLD's, at θ = 1/2", "above 1 (no number)", both("DSGLD"), same, no_run),
        Line("the same, FSGLD with exact surrogates", "not shown", both("FSGLD, exact surrogates"), same, no_run),
        Line("the same, FSGLD with our control variate", "not in the paper", "—", repaired, no_run),
    ]
