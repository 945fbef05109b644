"""What the figures of all experiments share: colours that colour-blind readers can tell apart, and bare axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Okabe and Ito; the two muted ones are darkened so that they can be read as text
COLOURS = {
    "SGLD": "#555555",
    "DSGLD": "#0072B2",
    "FSGLD": "#B65C93",
    "ours": "#00805D",
    "exact": "#D55E00",
    "literal": "#A07800",
}


def new_figure(width: float, height: float) -> Any:
    """Make an empty figure of so many inches, or say how to install Matplotlib.

    Returns
    -------
    matplotlib.figure.Figure
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need Matplotlib: pip install 'fsgld[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def bare(ax: Any) -> Any:
    """Take the frame away but for the axes themselves."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def name_line(ax: Any, x: float, y: float, text: str, colour: str, **style: Any) -> None:
    """Write a line's name beside it."""
    style = {"fontsize": 10, "fontweight": "bold", "va": "center"} | style
    ax.annotate(text, (x, y), style.pop("shift", (6, 0)), textcoords="offset points", color=colour, **style)


def name_ends(ax: Any, ends: Sequence[tuple[float, str, str]], gap: float = 0.055) -> None:
    """Write the names of lines at the right edge, (height, text, colour) each, so far apart that none overlap.

    Call it last: it needs the limits of the axes. The gap is a share of the axes' height.
    """
    to_axes = ax.transData + ax.transAxes.inverted()
    x = ax.get_xlim()[1]
    ends = sorted(ends)
    heights = [float(to_axes.transform((x, y))[1]) for y, *_ in ends]
    for i in range(1, len(heights)):  # push up from below, then back down if the last went out at the top
        heights[i] = max(heights[i], heights[i - 1] + gap)
    over = max(0.0, heights[-1] - 1)
    for i in reversed(range(len(heights))):
        most = heights[i + 1] - gap if i + 1 < len(heights) else heights[i] - over
        heights[i] = min(heights[i], most)
    for height, (_, text, colour) in zip(heights, ends, strict=True):
        ax.text(1.02, height, text, transform=ax.transAxes, color=colour, fontsize=10, fontweight="bold", va="center")


def shades(colour: str, count: int) -> list[Any]:
    """Give shades of a colour, from light to full."""
    from matplotlib.colors import to_rgb

    full = np.array(to_rgb(colour))
    return [tuple(1 - (1 - full) * share) for share in np.linspace(0.6, 1, count)]
