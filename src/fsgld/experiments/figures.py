"""What the figures of all experiments share: colours that colour-blind readers can tell apart, and bare axes."""

from __future__ import annotations

from typing import Any

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
