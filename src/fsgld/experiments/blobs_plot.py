"""The pictures of `blobs`: the paper's Figure 2, with a zoom on the exact posterior in every panel, and Figure 3b."""

from __future__ import annotations

from math import floor, log10
from pathlib import Path
from typing import Any

import numpy as np

from fsgld.experiments.blobs import DEFAULT, METHODS, VARIATE, Outcome, mse_curve
from fsgld.experiments.blobs_law import posterior
from fsgld.experiments.figures import COLOURS, bare, name_ends, name_line, new_figure, shades

CLIENTS = ("#88CCEE", "#CC6677", "#DDCC77", "#117733", "#332288",
           "#AA4499", "#44AA99", "#999933", "#882255", "#AAAAAA")  # fmt: skip  # Tol's muted
EXACT = "#D55E00"
ROWS = (  # colours of Okabe and Ito, and the story of each method in a few words
    ("#0072B2", "smears into a mixture of local posteriors"),
    ("#B65C93", "in the right place, far too wide"),
    ("#00805D", "matches the exact posterior"),
)
CAPTION = (
    "colours: the clients’ rows     black: draws     "
    "orange circle: 95 % of the exact posterior, in a zoom of ± 10 posterior sd"
)
REACH = 8.5  # half the width of a panel
ZOOM = 10  # half the width of a zoom, in posterior standard deviations
SHOWN = 1500  # draws in a panel
INSET = 0.41  # the zoom's share of a panel
GAPS = {"wspace": 0.04, "hspace": 0.04}
CORNERS = [(x, y) for x in (0.57, 0.02) for y in (0.57, 0.02)]


def save(outcome: Outcome, file: str | Path) -> None:
    """Draw the grid and write it as PNG."""
    grid(outcome).savefig(file, dpi=150)


def draw(literal: Outcome, corrected: Outcome) -> dict[str, Any]:
    """Draw the grid with corrected surrogates, and the errors of the mean with both."""
    return {"blobs": grid(corrected), "mse": errors(literal, corrected)}


def errors(literal: Outcome, corrected: Outcome) -> Any:
    """Draw the mean squared error of the posterior mean over the number of draws."""
    figure = new_figure(9, 5.2)
    ax, ends = bare(figure.subplots()), []
    many = corrected.settings.local_steps[-1]
    blues = dict(zip(corrected.settings.local_steps, shades(COLOURS["DSGLD"], 4), strict=False))
    chosen = [
        *((run, blues[run.local_steps], f"DSGLD ({run.local_steps})") for run in corrected.find("DSGLD")),
        *((run, COLOURS["FSGLD"], "FSGLD (any number)" if run.local_steps == many else "")
          for run in corrected.find("FSGLD")),
        *((run, COLOURS["literal"], "FSGLD, printed 1/N") for run in literal.find("FSGLD", many)),
        *((run, shades(COLOURS["ours"], 2)[0], VARIATE) for run in corrected.find(VARIATE, many)),
        *((run, COLOURS["ours"], DEFAULT) for run in corrected.find(DEFAULT)),
    ]  # fmt: skip
    mean, variance = posterior(corrected.shards)
    most = max(run.draws.shape[1] for run, *_ in chosen)
    for run, colour, name in chosen:
        n, mse, _ = mse_curve(run.draws, mean)
        ax.plot(n, mse, color=colour, lw=2)
        if n[-1] < most / 2:  # the library stops by itself
            name_line(ax, n[-1], mse[-1], name, colour, shift=(4, -8))
        elif name:
            ends.append((mse[-1], name, colour))
    ax.plot([1, most], [2 * variance, 2 * variance / most], "--", color=EXACT, lw=1.5)
    ends.append((2 * variance / most, "independent exact draws", EXACT))
    ax.set(
        xscale="log",
        yscale="log",
        xlim=(1, most),
        xlabel="number of draws of a chain    (in brackets: local updates a visit)",
    )
    ax.set_ylabel("mean squared error of the posterior mean")
    name_ends(ax, ends)
    return figure


def grid(outcome: Outcome) -> Any:
    """Draw a grid, methods × local updates, the exact posterior, and the variances.

    Returns
    -------
    matplotlib.figure.Figure
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("the picture needs Matplotlib: pip install 'fsgld[plots]'") from None
    columns, corner = outcome.settings.local_steps, _free_corner(outcome.shards)
    methods = [method for method in METHODS if outcome.find(method)]
    figure, main, side = _grids(Figure, len(methods), len(columns))
    for i, run in enumerate(run for method in methods for run in outcome.find(method)):
        ax = figure.add_subplot(main[divmod(i, len(columns))])
        _panel(ax, outcome.shards, run.draws.reshape(-1, 2), corner)
        _label(ax, run.variance_ratio)
        if i < len(columns):
            ax.set_title(f"{run.local_steps} local update" + "s" * (run.local_steps > 1))
        if i % len(columns) == 0:
            _name_row(ax, run.method, *ROWS[i // len(columns)])
    _exact(figure.add_subplot(side[0]), outcome, corner)
    _variances(figure.add_subplot(side[1:]), outcome)
    return figure


def _grids(new_figure: Any, rows: int, columns: int) -> tuple[Any, Any, Any]:
    """Lay out the figure: the grid of panels, and a column beside it. Sizes are in inches."""
    panel, left, middle, right, bottom, top = 3.1, 0.75, 1.05, 0.1, 0.75, 0.35
    width = left + panel * columns + middle + panel + right
    height = bottom + panel * rows + top
    figure = new_figure(figsize=(width, height))
    x, y = (left + panel * columns) / width, {"bottom": bottom / height, "top": 1 - top / height}
    main = figure.add_gridspec(rows, columns, left=left / width, right=x, **y, **GAPS)
    beside = {"left": x + middle / width, "right": 1 - right / width}
    side = figure.add_gridspec(rows, 1, **beside, **y, **GAPS)
    caption = CAPTION if columns > 2 else CAPTION.replace("draws     ", "draws\n")
    figure.text(
        (left / width + x) / 2, 0.3 / height, caption, fontsize=12 if columns > 2 else 10, ha="center", va="center"
    )
    return figure, main, side


def _name_row(ax: Any, method: str, colour: str, story: str) -> None:
    """Write the method and its story beside a row."""
    style = {"transform": ax.transAxes, "rotation": 90, "ha": "right", "va": "center"}
    ax.text(-0.11, 0.5, method, fontsize=14, fontweight="bold", color=colour, **style)
    ax.text(-0.025, 0.5, story, fontsize=11, **style)


def _panel(ax: Any, shards: list[np.ndarray], draws: np.ndarray, corner: tuple[float, float]) -> None:
    """Show rows coloured by client, draws in black, and a zoom on the exact posterior."""
    shown = draws[np.linspace(0, len(draws) - 1, SHOWN).astype(int)]
    for s, rows in enumerate(shards):
        ax.scatter(*rows.T, s=3, color=CLIENTS[s % len(CLIENTS)], alpha=0.45, linewidths=0)
    ax.scatter(*shown.T, s=2.5, color="black", alpha=0.6, linewidths=0)
    ax.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=[], yticks=[], aspect="equal")
    zoom = ax.inset_axes((*corner, INSET, INSET))
    zoom.scatter(*shown.T, s=2.5, color="black", alpha=0.5, linewidths=0)
    _zoom_to_posterior(zoom, *posterior(shards))
    ax.indicate_inset_zoom(zoom, edgecolor=EXACT, alpha=1, linewidth=0.8)


def _zoom_to_posterior(zoom: Any, mean: np.ndarray, variance: float) -> None:
    """Look at the exact posterior and draw the circle that holds 95 % of it."""
    from matplotlib.patches import Circle

    sd = np.sqrt(variance)
    radius = np.sqrt(-2 * np.log(0.05)) * sd
    zoom.add_patch(Circle((mean[0], mean[1]), radius, fill=False, color=EXACT, lw=2, zorder=3))
    (left, right), (low, high) = ((x - ZOOM * sd, x + ZOOM * sd) for x in mean)
    zoom.set(xlim=(left, right), ylim=(low, high), xticks=[], yticks=[])
    zoom.spines[:].set(color=EXACT, linewidth=0.8)


def _exact(ax: Any, outcome: Outcome, corner: tuple[float, float]) -> None:
    """Show draws from the exact posterior, for comparison."""
    mean, variance = posterior(outcome.shards)
    rng = np.random.default_rng(outcome.settings.seed)
    _panel(ax, outcome.shards, rng.normal(mean, np.sqrt(variance), (SHOWN, 2)), corner)
    _label(ax, 1.0)
    ax.set_title("exact posterior", color=EXACT, fontweight="bold")


def _label(ax: Any, ratio: float) -> None:
    """Write the variance ratio into a panel, to three digits."""
    digits = 2 - floor(log10(ratio))
    text = f"variance × {round(ratio, digits):,.{max(0, digits)}f}"
    box = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 2}
    ax.text(0.03, 0.04, text, transform=ax.transAxes, fontsize=11, bbox=box)


def _variances(ax: Any, outcome: Outcome) -> None:
    """Show variance ratios over the number of local updates: measured, and by theory."""
    shown = {method: row for method, row in zip(METHODS, ROWS, strict=True) if outcome.find(method)}
    for method, (colour, _) in shown.items():
        runs = outcome.find(method)
        x = [run.local_steps for run in runs]
        ax.plot(x, [run.variance_ratio_theory for run in runs], color=colour, lw=1.5)
        ax.plot(x, [run.variance_ratio for run in runs], "o", color=colour, ms=7)
        ax.annotate(method, (x[-1], runs[-1].variance_ratio), (0, 9), color=colour, fontsize=11,
                    textcoords="offset points", ha="right", fontweight="bold")  # fmt: skip
    ax.axhline(1, color=EXACT, ls="--", lw=1.5, zorder=0)
    ax.text(1, 0.85, "exact posterior", color=EXACT, fontsize=11, va="top", fontweight="bold")
    ax.set(xscale="log", yscale="log", xlabel="local updates", ylim=(0.4, None))
    ax.set_ylabel(
        "variance ÷ the posterior’s (dots: measured; lines join theory)", fontsize=10 if len(shown) > 2 else 7
    )
    ax.xaxis.set_major_formatter("{x:.0f}")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.spines[["top", "right"]].set_visible(False)


def _free_corner(shards: list[np.ndarray]) -> tuple[float, float]:
    """Find the corner of a panel where a zoom hides the fewest rows."""
    at = (np.concatenate(shards) + REACH) / (2 * REACH)
    hidden = [((at > corner) & (at < np.add(corner, INSET))).all(1).sum() for corner in CORNERS]
    return CORNERS[int(np.argmin(hidden))]
