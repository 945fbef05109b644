"""The picture of `metric`: log-likelihood over the number of draws, on learning and test pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsgld.experiments.figures import COLOURS, bare, new_figure
from fsgld.experiments.metric import DRAWS, DSGLD, LAPLACE, OURS, Outcome, Run

LINES = {DSGLD: COLOURS["DSGLD"], LAPLACE: COLOURS["exact"], DRAWS: COLOURS["FSGLD"], OURS: COLOURS["ours"]}
LOWEST = -0.7  # log ½, which says nothing, is −0.69


def draw(literal: Outcome, corrected: Outcome) -> dict[str, Any]:
    """Draw a panel for every number of local steps and kind of pairs; say in words what diverges."""
    rows = corrected.settings.local_steps
    figure = new_figure(11, 0.9 + 3.4 * len(rows))
    axes = figure.subplots(len(rows), 2, squeeze=False, sharex=True, sharey=True)
    ours = [run for run in corrected.runs if run.method == OURS]
    for i, T in enumerate(rows):
        runs = [run for method in LINES if (run := corrected.find(method, T)) and method != OURS] + ours
        for ax, what in zip(axes[i], ("learning", "test"), strict=True):
            _panel(bare(ax), runs, what)
            ax.set_title(f"{what} pairs, {T} local step{'s' if T > 1 else ''}", fontsize=11)
        axes[i, 0].set_ylabel("log-likelihood of a draw,\naveraged over pairs")
        _say_diverged(axes[i, 1], runs)
    for ax in axes[-1]:
        ax.set_xlabel("number of draws of a chain")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return {"metric": figure}


def _panel(ax: Any, runs: list[Run], what: str) -> None:
    """Draw means over chains with bands of one standard deviation, as far as all chains go."""
    for run in runs:
        values = getattr(run, what)
        shown = np.logical_and.accumulate(values.mean(0) > LOWEST)  # False for NaN
        n, mean, sd = run.draws[shown], values.mean(0)[shown], values.std(0, ddof=1)[shown]
        colour = LINES[run.method]
        ax.fill_between(n, mean - sd, mean + sd, color=colour, alpha=0.2, lw=0)
        ax.plot(n, mean, color=colour, lw=2, label=f"{run.method}, ± sd of chains")
        if run.diverged and len(n):
            ax.plot(n[-1], mean[-1], "x", color=colour, ms=9, mew=2.5)
    most = max(run.draws[-1] for run in runs if run.method != OURS)
    ax.set(xscale="log", xlim=(1, most), ylim=(LOWEST, -0.3))


def _say_diverged(ax: Any, runs: list[Run]) -> None:
    """Write which chains ran away."""
    lost = [run for run in runs if run.diverged or run.note]
    for k, run in enumerate(lost):
        words = run.note or (
            f"{len(run.diverged)} of {len(run.test)} chains diverge, rounds {min(run.diverged)} to {max(run.diverged)}"
        )
        style = {"color": LINES[run.method], "ha": "right", "fontsize": 9, "backgroundcolor": "#ffffffcc"}
        ax.text(0.98, 0.05 + 0.09 * k, f"✕ {run.method}: {words}", transform=ax.transAxes, **style)
