"""The picture of `variance`: the paper's Figure 1, and the standard deviations as ratios."""

from __future__ import annotations

from typing import Any

import numpy as np

from fsgld.experiments.figures import COLOURS, bare, name_line, new_figure
from fsgld.experiments.variance import POSTERIOR_SD, VARIATE, Outcome

LINES = {  # method: colour, shift of its error bars to the side
    "SGLD": (COLOURS["SGLD"], -0.007),
    "DSGLD": (COLOURS["DSGLD"], 0.0),
    "FSGLD, exact surrogates": (COLOURS["FSGLD"], 0.007),
    VARIATE: (COLOURS["ours"], 0.0),
}


def draw(literal: Outcome, corrected: Outcome) -> dict[str, Any]:
    """Draw estimates ± one standard deviation, and the deviations relative to SGLD's."""
    figure = new_figure(11, 4.3)
    left, right = figure.subplots(1, 2)
    _estimates(bare(left), literal)
    _ratios(bare(right), literal)
    return {"variance": figure}


def _estimates(ax: Any, outcome: Outcome) -> None:
    """Draw the gradient with bars, as the paper does."""
    theta = np.array(outcome.settings.points)
    ax.plot(theta, outcome.gradient, color="black", lw=1)
    for method in ("DSGLD", "SGLD", "FSGLD, exact surrogates"):
        colour, shift = LINES[method]
        ax.errorbar(theta + shift, outcome.gradient, outcome.sd[method], fmt="none", ecolor=colour, elinewidth=2.2,
                    label=method)  # fmt: skip
    ax.legend(frameon=False, title="± one sd of the estimate", alignment="left")
    ax.set(xlabel="θ, probability of heads", ylabel="gradient of the log posterior at θ")


def _ratios(ax: Any, outcome: Outcome) -> None:
    """Draw standard deviations as multiples of SGLD's, with the posterior's bulk behind them."""
    theta = np.array(outcome.settings.points)
    ax.axvspan(0.5 - 2 * POSTERIOR_SD, 0.5 + 2 * POSTERIOR_SD, color="0.93", lw=0)
    ax.text(0.5, 1.95, "posterior mean ± 2 sd", ha="center", va="top", fontsize=9, color="0.35")
    for method, (colour, _) in LINES.items():
        ratio = outcome.ratio(method)
        ax.plot(theta, ratio, color=colour, lw=2)
        if method == VARIATE:
            name_line(ax, 0.69, 0.08, "FSGLD + our\ncontrol variate", colour)
        else:
            name_line(ax, 0.5, ratio[0], f"{method}: {ratio[0]:.3f}", colour, shift=(0, 9), ha="center")
    ax.set(xlabel="θ, probability of heads", ylabel="sd of the estimate ÷ SGLD’s", ylim=(-0.05, 2), xlim=(0, 1))
