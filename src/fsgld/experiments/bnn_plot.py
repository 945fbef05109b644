"""The picture of `bnn`: test log-likelihoods of all repetitions, by method and split."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from fsgld.experiments.bnn import CENTRAL, DRAWS, DSGLD, OURS, Outcome, Run
from fsgld.experiments.figures import COLOURS, bare, new_figure

LINES = {CENTRAL: COLOURS["SGLD"], OURS: COLOURS["ours"], DSGLD: COLOURS["DSGLD"], DRAWS: COLOURS["FSGLD"]}
CONSTANT = float(np.log(0.5))
LOWEST, HIGHEST = -0.8, -0.25


def draw(literal: Outcome, corrected: Outcome) -> dict[str, Any]:
    """Draw a panel for every data set, with a column for every split and method; a dot is a chain."""
    names = corrected.settings.datasets
    figure = new_figure(1.5 + 5.2 * len(names), 5.2)
    axes = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for ax, name in zip(axes, names, strict=True):
        columns = [(a, m) for a, m in product(corrected.settings.shapes, LINES) if corrected.find(name, a, m)]
        for i, (a, method) in enumerate(columns):
            run = corrected.find(name, a, method)
            assert run is not None
            _column(ax, i, run)
        _panel(bare(ax), name, columns, corrected)
    axes[0].set_ylabel("average log-likelihood of test rows:\nmeans of chains, ± 2 sd of their draws")
    return {"bnn": figure}


def _column(ax: Any, i: int, run: Run) -> None:
    """Draw one run: chains as dots with bars of two sds of their draws; what is out of sight is said in words."""
    colour = LINES[run.method]
    values, sds = run.over_chains("test"), run.over_chains("sd")
    seen = values > LOWEST
    x = i + np.linspace(-0.28, 0.28, max(len(values), 2))[: len(values)]
    ax.errorbar(x[seen], values[seen], 2 * sds[seen], fmt="o", ms=4, color=colour, elinewidth=1, alpha=0.85)
    style = {"ha": "center", "color": colour, "bbox": {"fc": "white", "ec": "none", "alpha": 0.75, "pad": 0.5}}
    if len(values) and seen.all():
        top = min(float((values + 2 * sds).max()) + 0.01, HIGHEST - 0.02)
        ax.text(i, top, f"{values.mean():.3f}".replace("-", "−"), fontsize=10, fontweight="bold", **style)
    words = [f"{run.diverged} diverged"] * bool(run.diverged) + [f"{(~seen).sum()} below"] * bool((~seen).any())
    ax.text(i, LOWEST + 0.008, "\n".join(words), va="bottom", fontsize=9, **style)


def _panel(ax: Any, name: str, columns: list[tuple[float, str]], corrected: Outcome) -> None:
    """Name the columns and the level of a prediction that knows nothing."""
    data = next(run.data for run in corrected.runs if run.data.name == name)
    ax.axhline(CONSTANT, color="#777777", lw=1, ls="--")
    ax.text(-0.45, CONSTANT + 0.006, "a coin: log ½", color="#555555", fontsize=9)
    ax.set_xticks(
        range(len(columns)), [m.replace(", ", ",\n").replace("centralised", "central-\nised") for _, m in columns]
    )
    ax.tick_params(axis="x", labelsize=8.5, length=0)
    splits = [a for a, _ in columns]
    for a in dict.fromkeys(splits):
        middle = np.mean([i for i, other in enumerate(splits) if other == a])
        kind = "IID" if a > 1 else "non-IID"
        ax.text(middle, -0.17, f"{kind}: Beta({a:g}, {a:g})", ha="center", transform=ax.get_xaxis_transform())
    ax.set(ylim=(LOWEST, HIGHEST), xlim=(-0.5, len(columns) - 0.5))
    ax.set_title(f"{name}: {data.rows:,} rows, {corrected.settings.clients} clients of {data.size:,}", fontsize=11)
