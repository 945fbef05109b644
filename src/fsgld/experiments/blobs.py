"""Section 5.1 and Figure 2: ten clients that disagree, and chains that wander among them.

Each client holds 200 rows from N(μ_s, I), with μ_s uniform on [−6, 6]². The model is N(μ | 0, I)
Π N(x | μ, I). DSGLD, FSGLD and FSGLD with the in-client control variate are compared with the
exact posterior and with their own long-run law (`blobs_law`). `python -m fsgld.experiments.blobs`
prints the table and writes the picture.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import floor, log10
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import fsgld
from fsgld import diagnostics
from fsgld.experiments.blobs_law import client_law, posterior, stationary_variance


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
    chains: int = 32
    data_seed: int = 28310  # chosen for the picture: no client where the mean is, a free corner
    seed: int = 0

    @staticmethod
    def paper() -> Settings:
        """Give the paper's settings; it does not print the number of draws."""
        return Settings()

    @staticmethod
    def quick() -> Settings:
        """Give the same law with fewer runs and draws."""
        return Settings(local_steps=(1, 1000), burn_in=2_000, draws=300)


METHODS = {  # name: whether there are surrogates, and the likelihood slot
    "DSGLD": (False, fsgld.plain),
    "FSGLD": (True, fsgld.plain),
    "FSGLD + control variate": (True, fsgld.control_variate),
}
MODEL = fsgld.Model(
    log_prior=lambda mu: -0.5 * jnp.sum(mu**2),
    log_likelihood=lambda mu, x: -0.5 * jnp.sum((x - mu) ** 2),
    init=np.zeros(2),
)
CAPTION = """mean error: worst coordinate, in posterior sd; variance: in posterior variances
± one Monte Carlo standard error; seconds with compilation"""
COLUMNS = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))


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

    def to_json(self) -> str:
        """Write settings, the exact posterior and the measures; not the draws."""
        mean, variance = posterior(self.shards)
        runs = [{k: v for k, v in run._asdict().items() if k != "draws"} for run in self.runs]
        exact = {"mean": mean.tolist(), "variance": variance}
        content = {"settings": asdict(self.settings), "posterior": exact, "runs": runs}
        return json.dumps(content, indent=1) + "\n"


def make_shards(settings: Settings) -> list[np.ndarray]:
    """Draw the clients' means and rows."""
    rng = np.random.default_rng(settings.data_seed)
    means = rng.uniform(-6, 6, (settings.clients, 2))
    return [rng.normal(mean, 1.0, (settings.rows, 2)) for mean in means]


def run(settings: Settings, announce: Callable[[int, str], None] = lambda n, text: None) -> Outcome:
    """Run all methods and numbers of local updates; announce how many are done and what is next."""
    shards = make_shards(settings)
    runs: list[Run] = []
    surrogates = fsgld.fit(MODEL, shards, fsgld.analytic)
    for method, (conducive, _) in METHODS.items():
        for local_steps in settings.local_steps:
            announce(len(runs), f"{method}, local updates: {local_steps}")
            begin = time.perf_counter()
            draws = _draws(method, local_steps, shards, surrogates if conducive else None, settings)
            seconds = time.perf_counter() - begin
            runs.append(_measure(method, local_steps, draws, seconds, shards, settings))
    announce(len(runs), "done")
    return Outcome(settings, shards, runs)


def _draws(
    method: str, local_steps: int, shards: list[np.ndarray],
    surrogates: list[fsgld.Gaussian] | None, settings: Settings,
) -> np.ndarray:  # fmt: skip
    """Sample with one method and one number of local updates."""
    steps = settings.burn_in + settings.thin * settings.draws
    result = fsgld.sample(
        MODEL, shards, surrogates, dynamics=fsgld.langevin(settings.step_size),
        likelihood=METHODS[method][1], batch_size=settings.batch_size, local_steps=local_steps,
        rounds=-(-steps // local_steps), chains=settings.chains, thin=settings.thin,
        burn_in=settings.burn_in, seed=settings.seed, progress=False,
    )  # fmt: skip
    return np.asarray(result.draws, float)


def _measure(
    method: str, local_steps: int, draws: np.ndarray, seconds: float, shards: list[np.ndarray],
    settings: Settings,
) -> Run:  # fmt: skip
    """Compare draws with the exact posterior and with the method's own law."""
    conducive, likelihood = METHODS[method]
    law = client_law(
        shards, settings.step_size, settings.batch_size, conducive=conducive,
        control_variate=likelihood is fsgld.control_variate,
    )  # fmt: skip
    mean, variance = posterior(shards)
    errors = np.abs(draws.mean((0, 1)) - mean) / np.sqrt(variance)
    worst = int(errors.argmax())
    mean_mcse = diagnostics.mcse_mean(draws)[worst] / np.sqrt(variance)
    squares = np.mean((draws - draws.mean((0, 1))) ** 2, -1, keepdims=True) / variance
    theory = stationary_variance(law, local_steps, settings.thin).mean() / variance
    numbers = errors[worst], mean_mcse, squares.mean(), diagnostics.mcse_mean(squares)[0], theory
    return Run(method, local_steps, draws, seconds, *map(float, numbers))


def make_table(outcome: Outcome) -> Table:
    """Lay the measures out for a terminal of 80 characters."""
    table = Table(title="Ten clients that disagree, against the exact posterior", caption=CAPTION,
                  box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # fmt: skip
    table.add_column("method", no_wrap=True)
    for name in ("local\nupdates", "mean error", "variance", "by\ntheory", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    first, last = outcome.settings.local_steps[0], outcome.settings.local_steps[-1]
    for r in outcome.runs:
        digits = max(0, -floor(log10(r.variance_ratio_mcse)))  # to the first digit of the error
        table.add_row(
            r.method if r.local_steps == first else "", f"{r.local_steps}",
            f"{r.mean_error:.2f} ± {r.mean_error_mcse:.2f}",
            f"{r.variance_ratio:,.{digits}f} ± {r.variance_ratio_mcse:,.{digits}f}",
            f"{r.variance_ratio_theory:,.{digits}f}", f"{r.seconds:.1f}",
            end_section=r.local_steps == last,
        )  # fmt: skip
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment, print the table, write blobs.json and blobs.png."""
    parser = argparse.ArgumentParser(description="Section 5.1: ten clients that disagree.")
    parser.add_argument("--quick", action="store_true", help="fewer runs and draws")
    parser.add_argument("--out", type=Path, default=Path("."), help="folder to write to")
    options = parser.parse_args(arguments)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"cannot write to the folder {options.out}: {error.strerror}")
    settings = Settings.quick() if options.quick else Settings.paper()
    with Progress(*COLUMNS, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(METHODS) * len(settings.local_steps))
        outcome = run(settings, lambda n, text: bar.update(task, completed=n, description=text))
    Console().print(make_table(outcome))
    (options.out / "blobs.json").write_text(outcome.to_json())
    from fsgld.experiments import blobs_plot

    try:
        blobs_plot.save(outcome, options.out / "blobs.png")
    except ImportError as error:
        raise SystemExit(str(error)) from None
    print(f"wrote {options.out / 'blobs.png'} and {options.out / 'blobs.json'}")


if __name__ == "__main__":
    main()
