"""The demo: Section 5.1 in a minute or two, as a table in the terminal and a picture; `make demo` runs it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import floor, log10
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fsgld.experiments import blobs
from fsgld.experiments.blobs import Outcome, Settings
from fsgld.experiments.blobs_law import posterior

CAPTION = """mean error: worst coordinate, in posterior sd; variance: in posterior variances
± one Monte Carlo standard error; seconds with compilation"""
COLUMNS = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))


def to_json(outcome: Outcome) -> str:
    """Write settings, the exact posterior and the measures; not the draws."""
    mean, variance = posterior(outcome.shards)
    exact = {"mean": mean.tolist(), "variance": variance}
    content = {"settings": asdict(outcome.settings), "posterior": exact, "runs": outcome.tables()["runs"]}
    return json.dumps(content, indent=1) + "\n"


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
    settings = replace(Settings.quick() if options.quick else Settings.corrected(), methods=Settings.methods)
    with Progress(*COLUMNS, console=Console(stderr=True)) as bar:
        task = bar.add_task("")
        outcome = blobs.run(settings, lambda n, of, text: bar.update(task, completed=n, total=of, description=text))
    Console().print(make_table(outcome))
    (options.out / "blobs.json").write_text(to_json(outcome))
    from fsgld.experiments import blobs_plot

    try:
        blobs_plot.save(outcome, options.out / "blobs.png")
    except ImportError as error:
        raise SystemExit(str(error)) from None
    print(f"wrote {options.out / 'blobs.png'} and {options.out / 'blobs.json'}")


if __name__ == "__main__":
    main()
