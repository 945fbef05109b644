"""Running an experiment and writing what it found: CSV, JSON, a table in Markdown, figures as PNG and SVG."""

from __future__ import annotations

import csv
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fsgld.errors import InputError, check_whole
from fsgld.experiments import EXPERIMENTS

Announce = Callable[[int, int, str], None]  # how many parts are done, of how many, and what is next
Records = list[dict[str, Any]]  # lines of a table, each from column to value


class Line(NamedTuple):
    """One line of the table: a quantity, what the paper says, and what was found."""

    quantity: str
    paper: str
    literal: str
    corrected: str
    ours: str


HEADER = ("", "paper", "literal setting", "corrected setting", "our default")


class Outcome(Protocol):
    """What every experiment gives: its settings, and all numbers as tables by name."""

    @property
    def settings(self) -> Any: ...

    def tables(self) -> dict[str, Records]:
        """Give what was found, ready for CSV."""
        ...


def silent(done: int, total: int, text: str) -> None:
    """Announce nothing."""


def reproduce(
    name: str, out: str | Path = "reproduced", *, quick: bool = False, seeds: int | None = None,
    announce: Announce = silent,
) -> tuple[Path, list[Line]]:  # fmt: skip
    """Run one experiment as printed and as corrected; write data, table and figures to a folder.

    Parameters
    ----------
    name
        One of `EXPERIMENTS`.
    out
        Where the experiment's folder goes.
    quick
        Run in seconds, with fewer draws.
    seeds
        How many repetitions, at least two; by default as in the paper.
    announce
        Called with the parts done, all parts, and what is next.

    Returns
    -------
    folder, lines
        Where it is, and the table.
    """
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}; choose one of {', '.join(EXPERIMENTS)}")
    folder = _make_folder(Path(out) / name)
    module = import_module(f"fsgld.experiments.{name}")
    literal, corrected = _settings(module.Settings, name, quick, seeds)
    outcomes, seconds = _run(module.run, literal, corrected, announce)
    for label, outcome in outcomes.items():
        _write_tables(folder, label, outcome)
    pair = outcomes.get("literal", outcomes["corrected"]), outcomes["corrected"]
    lines: list[Line] = module.compare(*pair)
    (folder / "table.md").write_text(markdown(EXPERIMENTS[name], lines))
    (folder / "settings.json").write_text(_describe(outcomes, seconds))
    for stem, figure in import_module(f"fsgld.experiments.{name}_plot").draw(*pair).items():
        save_figure(figure, folder / stem)
    return folder, lines


def markdown(title: str, lines: Sequence[Line]) -> str:
    """Lay the table out in Markdown."""
    rows = [HEADER, ("---",) * len(HEADER), *lines]
    return f"# {title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def as_table(title: str, lines: Sequence[Line]) -> Table:
    """Lay the table out for a terminal."""
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in HEADER:
        table.add_column(name)
    for line in lines:
        table.add_row(*line)
    return table


def save_figure(figure: Any, stem: Path) -> None:
    """Write a figure as PNG and SVG; the same figure gives the same bytes."""
    from matplotlib import rc_context

    figure.savefig(stem.with_suffix(".png"), dpi=150)
    with rc_context({"svg.hashsalt": "fsgld"}):
        figure.savefig(stem.with_suffix(".svg"), metadata={"Date": None})


def pm(values: Any, digits: int = 3) -> str:
    """Write the mean of repetitions ± its standard error, the error to two digits."""
    values = np.asarray(values, float)
    if not np.isfinite(values).all():
        lost = int((~np.isfinite(values)).sum())
        return "diverged" if lost == values.size else f"{lost} of {values.size} diverged"
    if values.size == 1:
        return f"{float(values.squeeze()):.{digits}g}"
    return plus_minus(float(values.mean()), float(values.std(ddof=1) / np.sqrt(values.size)))


def scientific(value: float) -> str:
    """Write a number as a·10ᵇ, to two digits."""
    power = int(np.floor(np.log10(abs(value))))
    return f"{value / 10.0**power:.1f}·10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def plus_minus(value: float, error: float) -> str:
    """Write a number ± its standard error, to the second digit of the error."""
    if not (np.isfinite(value) and np.isfinite(error)):
        return "diverged"
    if error == 0:
        return f"{value:.3g}".replace("-", "−")
    size = max(abs(value), error)
    if size >= 1e6 or size < 1e-3:
        power = int(np.floor(np.log10(size)))
        times = scientific(10.0**power).removeprefix("1.0")
        return f"({plus_minus(value / 10.0**power, error / 10.0**power)}){times}"
    digits = max(0, 1 - int(np.floor(np.log10(error))))
    return f"{value:,.{digits}f} ± {error:,.{digits}f}".replace("-", "−")


def has_repetitions(name: str) -> bool:
    """Say whether an experiment is repeated with several seeds; one whose numbers are exact is not."""
    kind = import_module(f"fsgld.experiments.{name}").Settings
    return "seeds" in {field.name for field in fields(kind)}


def _settings(kind: Any, name: str, quick: bool, seeds: int | None) -> tuple[Any, Any]:
    """Choose the literal and the corrected settings."""
    pair = (kind.quick(literal=True), kind.quick()) if quick else (kind.paper(), kind.corrected())
    if seeds is None:
        return pair
    check_whole(2, seeds=seeds)
    if not has_repetitions(name):
        raise InputError(f"{name} has no repetitions, its numbers are exact; leave --seeds out")
    return replace(pair[0], seeds=seeds), replace(pair[1], seeds=seeds)


def _run(run: Any, literal: Any, corrected: Any, announce: Announce) -> tuple[dict[str, Any], dict[str, float]]:
    """Run both settings, or one if they are the same."""
    pairs = {"corrected": corrected} if literal == corrected else {"literal": literal, "corrected": corrected}
    outcomes, seconds = {}, {}
    for label, settings in pairs.items():
        begin = time.perf_counter()
        outcomes[label] = run(settings, lambda n, of, text, label=label: announce(n, of, f"{label}: {text}"))
        seconds[label] = time.perf_counter() - begin
    return outcomes, seconds


def _make_folder(folder: Path) -> Path:
    """Make the folder before the work starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to the folder {folder} ({error.strerror}); choose another with --out") from None
    return folder


def _write_tables(folder: Path, label: str, outcome: Outcome) -> None:
    """Write every table of an outcome as CSV."""
    for name, records in outcome.tables().items():
        with (folder / f"{label}-{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]))
            writer.writeheader()
            writer.writerows(records)


def _describe(outcomes: dict[str, Any], seconds: dict[str, float]) -> str:
    """Say what was run, how long it took and on what."""
    content = {
        "settings": {label: asdict(outcome.settings) for label, outcome in outcomes.items()},
        "seconds": {label: round(value, 1) for label, value in seconds.items()},
        "versions": {name: version(name) for name in ("fsgld", "jax", "numpy")},
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }
    return json.dumps(content, indent=1, default=str) + "\n"
