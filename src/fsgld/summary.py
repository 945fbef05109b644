"""The table that `Result.summary` gives: statistics of each parameter, and notes in words."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fsgld import diagnostics


class Summary(NamedTuple):
    """A table of posterior statistics, one row a parameter, and notes in words."""

    names: tuple[str, ...]
    columns: dict[str, np.ndarray]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        width = max(map(len, self.names))
        lines = [" " * width + "".join(f"{name:>10}" for name in self.columns)]
        for i, name in enumerate(self.names):
            cells = (_cell(key, column[i]) for key, column in self.columns.items())
            lines.append(name.ljust(width) + "".join(cells))
        return "\n".join([*lines, *self.notes])


def statistics(draws: np.ndarray, interval: float) -> dict[str, np.ndarray]:
    """Compute the columns of the table from draws of shape (chains, draws, d)."""
    low, high = diagnostics.interval(draws, interval)
    return {
        "mean": draws.mean((0, 1)), "sd": draws.std((0, 1), ddof=1),
        f"{50 - 50 * interval:g}%": low, f"{50 + 50 * interval:g}%": high,
        "mcse": diagnostics.mcse_mean(draws), "ess_bulk": diagnostics.ess_bulk(draws),
        "ess_tail": diagnostics.ess_tail(draws), "r_hat": diagnostics.rhat(draws),
    }  # fmt: skip


def _cell(name: str, value: float) -> str:
    """Format one cell of the summary."""
    if name.startswith("ess"):
        return f"{value:>10.0f}"
    return f"{value:>10.3f}" if name == "r_hat" else f"{value:>10.4g}"


def thin_evidence(names: tuple[str, ...], columns: dict[str, np.ndarray]) -> list[str]:
    """Say in words when the draws are too few or the chains disagree."""
    notes = []
    rhat, ess = columns["r_hat"], np.fmin(columns["ess_bulk"], columns["ess_tail"])
    if np.any(rhat > 1.01):
        worst = int(np.nanargmax(rhat))
        notes.append(f"chains disagree: R-hat is {rhat[worst]:.3f} for {names[worst]}; run longer")
    if np.any(ess < 400):
        worst = int(np.nanargmin(ess))
        notes.append(f"few effective draws: {ess[worst]:.0f} for {names[worst]}; run longer")
    if np.isnan(rhat).any():
        notes.append("no R-hat for some parameters: it needs two chains, and draws that are not all equal")
    return notes
