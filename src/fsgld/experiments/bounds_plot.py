"""The picture of `bounds`: the paper's Figure 4, and errors beside their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsgld.experiments.bounds import Outcome
from fsgld.experiments.figures import COLOURS, bare, name_ends, new_figure

STYLE = {"DSGLD": COLOURS["DSGLD"], "FSGLD": COLOURS["FSGLD"], "FSGLD + control variate": COLOURS["ours"]}


def draw(literal: Outcome, corrected: Outcome) -> dict[str, Any]:
    """Draw the constants of every client as bars, and errors with bounds as lines."""
    figure = new_figure(12.5, 4.6)
    left, right = figure.subplots(1, 2)
    _constants(bare(left), literal, corrected)
    _errors(bare(right), corrected)
    return {"bounds": figure}


def _constants(ax: Any, literal: Outcome, corrected: Outcome) -> None:
    """Draw γ_s² and ε_s², the latter with both surrogates."""
    dsgld, fsgld_, _ = corrected.methods
    bars = {
        "γ² (DSGLD)": (dsgld.constants, COLOURS["DSGLD"]),
        "ε² (FSGLD)": (fsgld_.constants, COLOURS["FSGLD"]),
        "ε² with the surrogate as printed": (literal.methods[1].constants, COLOURS["literal"]),
    }
    clients = np.arange(1, len(dsgld.constants) + 1)
    for i, (name, (values, colour)) in enumerate(bars.items()):
        ax.bar(clients + 0.27 * (i - 1), values, 0.25, color=colour, label=name)
    top = max(values.max() for values, _ in bars.values())
    ax.set(yscale="log", ylim=(0.5, top * 30), xticks=clients, xlabel="client")
    ax.set_ylabel("constant of the bound (squared gradient of one row)")
    ax.legend(frameon=False, loc="upper left")


def _errors(ax: Any, outcome: Outcome) -> None:
    """Draw measured errors, and the bounds with the smallest C that holds."""
    ends = []
    for method in outcome.methods:
        colour = STYLE[method.name]
        ax.plot(outcome.T, method.mse, color=colour, lw=2)
        ax.plot(outcome.T, outcome.C * method.bound, "--", color=colour, lw=1.5)
        ends += [
            (method.mse[-1], method.name, colour),
            (outcome.C * method.bound[-1], _short(method.name) + " bound", colour),
        ]
    ax.set(xscale="log", yscale="log", xlim=(outcome.T[0], outcome.T[-1]), xlabel="steps T, one local update a visit")
    ax.set_ylabel("mean squared error of the posterior mean")
    ax.set_title(f"bounds (dashed) with C = {outcome.C:.2g}, the smallest that holds", fontsize=10)
    name_ends(ax, ends)


def _short(name: str) -> str:
    return name.replace("FSGLD + ", "").replace("SGLD", "SGLD’s").replace("variate", "variate’s")
