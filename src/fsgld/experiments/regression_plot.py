"""The picture of `regression`: test error over the number of draws, for every data set and split."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsgld.experiments.figures import COLOURS, bare, new_figure
from fsgld.experiments.regression import Outcome, Run
from fsgld.experiments.reproduce import scientific

LINES = {"DSGLD": COLOURS["DSGLD"], "FSGLD": COLOURS["FSGLD"], "our default": COLOURS["ours"]}


def draw(literal: Outcome, corrected: Outcome) -> dict[str, Any]:
    """Draw a panel for every split and data set; what is off the scale with literal settings is said in words."""
    datasets, splits = corrected.settings.datasets, corrected.settings.splits
    figure = new_figure(1.5 + 3.9 * len(datasets), 0.6 + 3.3 * len(splits))
    axes = figure.subplots(len(splits), len(datasets), squeeze=False)
    for i, split in enumerate(splits):
        for j, dataset in enumerate(datasets):
            ax = bare(axes[i, j])
            runs = [run for method in LINES if (run := corrected.find(dataset, split, method))]
            _panel(ax, runs, _literal_words(literal.find(dataset, split, "FSGLD")))
            ax.set_title(f"{dataset}, {split}", fontsize=11, pad=18)
            if j == 0:
                ax.set_ylabel("test error ÷ target’s variance,\naveraged over draws")
            if i == len(splits) - 1:
                ax.set_xlabel("number of draws of a chain")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, 2 * len(datasets)), frameon=False)
    return {"regression": figure}


def _panel(ax: Any, runs: list[Run], words: str) -> None:
    """Draw means over chains with bands of one standard deviation, and the exact posterior's error."""
    for run in runs:
        mean, sd = run.errors.mean(0), run.errors.std(0, ddof=1)
        ax.fill_between(run.draws, mean - sd, mean + sd, color=LINES[run.method], alpha=0.25, lw=0)
        ax.plot(run.draws, mean, color=LINES[run.method], lw=2, label=f"{run.method}, ± sd of chains")
    ax.axhline(runs[0].exact, color=COLOURS["exact"], ls="--", lw=1.5, label="exact posterior")
    shown = np.concatenate([run.errors.mean(0) for run in runs])
    low, high = min(shown.min(), runs[0].exact), shown.max()
    ax.set(xscale="log", xlim=(1, max(run.draws[-1] for run in runs)))
    ax.set_ylim(low - 0.1 * (high - low), high + 0.3 * (high - low))
    ax.text(0.5, 1.02, words, transform=ax.transAxes, color=COLOURS["literal"], ha="center", fontsize=9)


def _literal_words(run: Run | None) -> str:
    """Say where FSGLD with literal settings is: far above the panel."""
    if run is None:
        return ""
    if run.diverged:
        return f"literal settings, FSGLD: {run.diverged} of {len(run.errors)} chains diverge"
    return f"literal settings, FSGLD: {scientific(run.errors[:, -1].mean())}, off the scale"
