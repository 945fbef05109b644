"""The gold cases against NUTS: `fsgld.sample(model, shards)` must be right without tuning.

`python -m fsgld.experiments.cases` runs every case (`cases_build`) with the defaults and several numbers of local
steps, compares means and sds with stored NUTS references (tests/references) and prints a table in Markdown. `--paper`
runs the paper's recipe instead: local surrogates, plain mini-batches, raw coordinates, equal probabilities.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import fsgld
from fsgld import diagnostics
from fsgld.errors import InputError, first_line
from fsgld.experiments.cases_build import CASES, SAME_POSTERIOR, Case

__all__ = ["CASES", "Case", "Row", "compare", "load_reference", "main"]

REFERENCES = Path(__file__).parents[3] / "tests" / "references"
Reference = dict[str, Any]
MEAN_ERROR, SD_ERROR = 0.1, 0.05  # allowed, in posterior sds
Z = 3  # Monte Carlo errors that are forgiven; they may not exceed what is allowed
Fit = Callable[[fsgld.Model, Any], list[fsgld.Gaussian]]
PAPER: dict[str, Fit] = {
    "local draws": partial(fsgld.fit, method=fsgld.from_draws, check=False),  # the paper did not look
    "Laplace": partial(fsgld.fit, method=fsgld.laplace),
}
HEAD = ("case", "split", "local steps", "mean error", "sd ratio", "verdict", "ESS", "seconds", "what ran", "notes")
CAPTION = f"""Mean error: worst parameter, in posterior sds; sd ratio: worst parameter; ± one Monte Carlo error.
Verdict: mean error < {MEAN_ERROR} and sd ratio within 1 ± {SD_ERROR}, {Z} Monte Carlo errors forgiven; unsure where
these are larger than that. ESS: the smallest. Seconds with compilation. What ran: step size h, mini-batch m, local
steps T."""


class Row(NamedTuple):
    """How far draws are from a reference: the worst parameters, with Monte Carlo errors of draws and reference.

    Errors of means and sds are in the reference's sds. Chains that diverged are left out, and counted.
    """

    mean_error: float
    mean_error_mcse: float
    mean_parameter: str
    sd_ratio: float
    sd_ratio_mcse: float
    sd_parameter: str
    ess: float  # the smallest of all parameters, bulk or tail
    diverged: int
    chains: int

    @property
    def verdict(self) -> str:
        """Say "pass", "fail", or "unsure" if there are too few effective draws to tell."""
        mean_mcse, sd_mcse = Z * self.mean_error_mcse, Z * self.sd_ratio_mcse
        if self.diverged or self.mean_error - mean_mcse > MEAN_ERROR or abs(self.sd_ratio - 1) - sd_mcse > SD_ERROR:
            return "fail"
        return "pass" if mean_mcse <= MEAN_ERROR and sd_mcse <= SD_ERROR else "unsure"


def load_reference(name: str) -> Reference:
    """Read a case's NUTS reference."""
    path = REFERENCES / f"{SAME_POSTERIOR.get(name, name)}.json"
    if not path.is_file():
        raise InputError(f"there is no reference {path}; run python tests/make_references.py {name} in a checkout")
    return dict(json.loads(path.read_text()))


def compare(result: fsgld.Result, reference: Reference) -> Row:
    """Compare the draws of a run with a reference."""
    names, draws = result.flat_draws()
    if names != tuple(reference["parameters"]):
        raise InputError(f"the reference has parameters {', '.join(reference['parameters'])}; got {', '.join(names)}")
    whole = draws[[not status.diverged for status in result.status]].astype(float)
    diverged = len(draws) - len(whole)
    if not len(whole):
        return Row(np.nan, np.nan, "", np.nan, np.nan, "", np.nan, diverged, len(draws))
    mean, sd, mcse_mean, mcse_sd = (_column(reference, key) for key in ("mean", "sd", "mcse_mean", "mcse_sd"))
    error, ratio = np.abs(whole.mean((0, 1)) - mean) / sd, whole.std((0, 1), ddof=1) / sd
    error_mcse = np.hypot(diagnostics.mcse_mean(whole), mcse_mean) / sd
    ratio_mcse = np.hypot(diagnostics.mcse_sd(whole), ratio * mcse_sd) / sd
    i, j = _worst(error, error_mcse), _worst(np.abs(ratio - 1), ratio_mcse)
    ess = np.fmin(diagnostics.ess_bulk(whole), diagnostics.ess_tail(whole)).min()
    numbers = float(error[i]), float(error_mcse[i]), names[i], float(ratio[j]), float(ratio_mcse[j]), names[j]
    return Row(*numbers, float(ess), diverged, len(draws))


def _column(reference: Reference, key: str) -> np.ndarray:
    """Take one number a parameter from a reference."""
    return np.array([parameter[key] for parameter in reference["parameters"].values()])


def _worst(error: np.ndarray, mcse: np.ndarray) -> int:
    """Find the parameter that decides: the largest error beyond what is forgiven; not a number is worst."""
    return int(np.nan_to_num(error - Z * mcse, nan=np.inf).argmax())


def run_defaults(case: Case, local_steps: Any, seed: int) -> fsgld.Result:
    """Sample with no tuning; clients are away as the case says."""
    given: dict[str, Any] = {"probs": "auto" if case.probs is None else case.probs, "local_steps": local_steps}
    present = None
    if case.away:
        present = _present(case, fsgld.preflight(case.model, case.shards, **given).rounds)
    return fsgld.sample(case.model, case.shards, present=present, seed=seed, **given)


def _present(case: Case, rounds: int) -> np.ndarray:
    """Write down who is there in which round."""
    there = np.ones((rounds, len(case.shards)), bool)
    for s, client in enumerate(case.shards):
        begin, end = (case.away or {}).get(str(client), (0.0, 0.0))
        there[int(begin * rounds) : int(end * rounds), s] = False
    return there


def run_paper(case: Case, fit: Fit, reference: Reference, seed: int) -> fsgld.Result:
    """Sample as the paper does, with a tenth of the largest step that is stable at the posterior's mode."""
    surrogates = fit(case.model, case.shards)
    return fsgld.sample(
        case.model, case.shards, surrogates, dynamics=fsgld.langevin(_tenth_of_stable(case, reference)),
        likelihood=fsgld.plain, batch_size=32, local_steps=100, rounds=1000, probs=None, seed=seed,
    )  # fmt: skip


def _tenth_of_stable(case: Case, reference: Reference) -> float:
    """Compute h = 0.4/λ_max; Langevin steps on a Gaussian of precision λ_max are stable below 4/λ_max."""
    mode = jnp.asarray(_column(reference, "mode"))
    unravel = ravel_pytree(case.model.start())[1]
    anchored = fsgld.fit(case.model, case.shards, fsgld.anchored, anchor=mode)
    prior = -jax.hessian(lambda theta: case.model.log_prior(unravel(theta)))(mode)
    precision = np.asarray(fsgld.Gaussian.stack(anchored).total().precision, float) + np.asarray(prior, float)
    return float(0.4 / np.linalg.eigvalsh(precision).max())


def predictive_gap(case: Case, result: fsgld.Result, reference: Reference) -> float:
    """Compute how far the mean log predictive density of the test rows is above the mode's."""
    flat, (_, draws) = case.model.flatten(), result.flat_draws()
    thetas = draws[np.isfinite(draws).all(-1)]
    thetas = jnp.asarray(thetas[:: -(-len(thetas) // 1000)])
    at = jax.vmap(flat.log_likelihood, (0, None))
    ours = jax.nn.logsumexp(at(thetas, case.test), 0) - jnp.log(len(thetas))
    return float(jnp.mean(ours - at(jnp.asarray(_column(reference, "mode"), thetas.dtype)[None], case.test)[0]))


def describe(case: Case, how: str, reference: Reference, run: Callable[[], fsgld.Result]) -> list[str]:
    """Run a case and lay the outcome out as a line of the table; what is raised is said in words."""
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = run()
        except Exception as error:
            words = str(error) if isinstance(error, InputError) else first_line(error)
            return [case.name, case.split, how, "", "", "refused", "", f"{time.perf_counter() - begin:.0f}", "", words]
    seconds, row, s = time.perf_counter() - begin, compare(result, reference), result.settings
    h = str(s["step_size"]).removeprefix("constant, step_size ")
    notes = [case.note, f"diverged {row.diverged} of {row.chains} chains" if row.diverged else ""]
    if case.test is not None and row.diverged < row.chains:
        notes.append(f"test log-likelihood {predictive_gap(case, result, reference):+.4f} against the mode's")
    notes += [str(w.message) for w in caught if "diverged" not in str(w.message)]
    return [
        case.name, case.split, how, _worst_cell(row.mean_error, row.mean_error_mcse, row.mean_parameter),
        _worst_cell(row.sd_ratio, row.sd_ratio_mcse, row.sd_parameter), row.verdict,
        "" if np.isnan(row.ess) else f"{row.ess:.0f}", f"{seconds:.0f}",
        f"{s['dynamics']}, h {h}, m {s['batch_size']}, T {s['local_steps']}, {s['rounds']} rounds",
        "; ".join(filter(None, notes)),
    ]  # fmt: skip


def _worst_cell(value: float, mcse: float, parameter: str) -> str:
    """Write a measure of the worst parameter; nothing if no chain is left."""
    return f"{value:.3f} ± {mcse:.3f} {parameter}" if parameter else ""


def run(
    names: Sequence[str], local_steps: Sequence[int | str], paper: bool = False, seeds: Sequence[int] = (0,)
) -> Iterator[list[str]]:
    """Run cases one after the other, and give the lines of the table as they come."""
    for name in names:
        case, reference = CASES[name](), load_reference(name)
        for seed in seeds:
            also = f", seed {seed}" if len(seeds) > 1 else ""
            if paper:
                for surrogates, fit in PAPER.items():
                    how = f"100, paper, {surrogates}{also}"
                    yield describe(case, how, reference, partial(run_paper, case, fit, reference, seed))
                continue
            for steps in local_steps:
                yield describe(case, f"{steps}{also}", reference, partial(run_defaults, case, steps, seed))


def _as_line(cells: Sequence[str]) -> str:
    """Write a line of a Markdown table."""
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def _local_steps(text: str) -> int | str:
    """Read a number of local steps, or "auto"."""
    return text if text == "auto" else int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the cases, print the table line by line, and write it."""
    parser = argparse.ArgumentParser(description="Run the gold cases against NUTS.")
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES), help="all by default")
    parser.add_argument("--local-steps", nargs="+", type=_local_steps, default=[1, 20, 200, "auto"])
    parser.add_argument("--paper", action="store_true", help="the paper's recipe instead of the defaults")
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, help="a Markdown file to write to")
    options = parser.parse_args(arguments)
    lines = [CAPTION, "", _as_line(HEAD), _as_line(["---"] * len(HEAD))]
    print(*lines, sep="\n", flush=True)
    for cells in run(options.case, options.local_steps, options.paper, options.seed):
        lines.append(_as_line(cells))
        print(lines[-1], flush=True)
        if options.out:
            options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
