"""The pictures of a report: matplotlib and ArviZ, as SVG whose colours are the page's CSS variables."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import arviz
import matplotlib
import numpy as np
from cycler import cycler
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fsgld.report.content import Estimate, Panel

# Drawn in these colours; in the page each is a variable, so that light, dark and print have their own
NAMES = {
    "#000000": "muted", "#010101": "ink", "#020202": "muted", "#030303": "grid", "#040404": "accent", "#050505": "warm",
    "#060606": "c1", "#070707": "c2", "#080808": "c3", "#090909": "c4", "#0a0a0a": "band",
}  # fmt: skip
COLOUR = {name: code for code, name in NAMES.items()}  # black is what ArviZ chooses itself
CHAINS = [COLOUR[name] for name in ("c1", "c2", "c3", "c4")]
WIDTH = 3.3  # inches of a card: 317 CSS pixels
POINTS = 300  # a chain, in a trace
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "text.parse_math": False, "axes.unicode_minus": True, "font.size": 8.5,
    "text.color": COLOUR["ink"], "axes.edgecolor": COLOUR["grid"], "axes.labelcolor": COLOUR["muted"],
    "xtick.color": COLOUR["muted"], "ytick.color": COLOUR["muted"], "axes.facecolor": "none",
    "figure.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False,
    "ytick.major.size": 0, "xtick.major.size": 3, "axes.prop_cycle": cycler(color=CHAINS),
    "axes.linewidth": 0.8, "path.simplify_threshold": 0.5, "axes.titlesize": 8.5, "axes.labelsize": 8.5,
    "xtick.labelsize": 8, "ytick.labelsize": 8.5, "figure.constrained_layout.use": False,
}  # fmt: skip
plot: Any = arviz  # without types
MARKS: dict[str, dict[str, Any]] = {
    "federated": {"color": COLOUR["accent"], "marker": "o", "markersize": 6.5, "linewidth": 2.6},
    "pooled": {"color": COLOUR["ink"], "marker": "D", "markersize": 4.2, "linewidth": 1.4},
    "alone": {"color": COLOUR["warm"], "marker": "o", "markersize": 3.6, "linewidth": 1.1},
}


def draw(content: dict[str, Any]) -> dict[str, Any]:
    """Draw all that the content has data for."""
    check = content["check"]
    with _style():
        return {
            "forest": [(panel.name, picture(panel.words, _forest(panel))) for panel in content["panels"]],
            "effects": picture(_list(content["effects"]), _rows(content["effects"])) if content["effects"] else None,
            "bars": picture(check["sentence"], _bars(check)) if check else None,
            "means": picture(_means_words(check), _means(check)) if check else None,
            "traces": [(name, *_mixing(name, draws)) for name, draws in content["traces"]],
        }


@contextmanager
def _style() -> Iterator[None]:
    """Draw in the report's style; fonts lack some letters of the world, the page's do not."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


Drawing = tuple[tuple[float, float], Callable[[Figure], None]]


def picture(words: str, drawing: Drawing) -> Markup:
    """Make an SVG element with a text alternative."""
    size, fill = drawing
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02)  # type: ignore[call-arg, union-attr]
    fill(figure)
    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": words}):  # ids that differ from picture to picture
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.S)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r'style="[^"]*"', lambda found: _restyle(found[0]), text)
    text = re.sub(r' d="[^"]*"', lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), text)
    text = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', lambda found: _open(found[1], words), text, count=1)
    return Markup(text)


def _restyle(style: str) -> str:
    """Turn the drawing's colours into variables, and leave the choice of fonts to the page."""
    for code, name in NAMES.items():
        style = style.replace(code, f"var(--{name})")
    return re.sub(r"font-family: [^;\"]*; ", "", style)


def _open(box: str, words: str) -> str:
    """Open the SVG element: as wide as its place."""
    return f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="{box}" role="img" aria-label="{escape(words)}">'


def _forest(panel: Panel) -> Drawing:
    """Draw one coefficient: federated, pooled, each site alone, on its own scale, with zero."""
    return _rows(panel.estimates)


def _rows(estimates: list[Estimate]) -> Drawing:
    """Draw intervals, one a row; those far wider than the first end in arrows."""

    def fill(figure: Figure) -> None:
        axes = figure.subplots()
        low, high = _limits(estimates)
        pad = 0.04 * (high - low)
        for i, e in enumerate(estimates):
            mark = MARKS[e.kind]
            axes.plot(
                [max(e.low, low), min(e.high, high)], [i, i], color=mark["color"], linewidth=mark["linewidth"],
                solid_capstyle="round",
            )  # fmt: skip
            if low <= e.mean <= high:
                axes.plot([e.mean], [i], mark["marker"], color=mark["color"], markersize=mark["markersize"])
            for end, beyond, arrow in ((low, e.low < low, "<"), (high, e.high > high, ">")):
                if beyond:
                    axes.plot([end], [i], arrow, color=mark["color"], markersize=4, clip_on=False)
        if low - pad <= 0 <= high + pad:
            axes.axvline(0, color=COLOUR["muted"], linewidth=0.9, linestyle=(0, (3, 3)), zorder=0)
        axes.set_xlim(low - pad, high + pad)
        axes.set_ylim(len(estimates) - 0.45, -0.55)
        axes.set_yticks(range(len(estimates)), [e.label for e in estimates])
        for label, e in zip(axes.get_yticklabels(), estimates, strict=True):
            label.set_color(COLOUR["ink" if e.kind != "alone" else "muted"])
            label.set_fontweight("bold" if e.kind == "federated" and estimates[-1].kind != "federated" else "normal")
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))

    return (WIDTH, 0.34 + 0.2 * len(estimates)), fill


def _limits(estimates: list[Estimate]) -> tuple[float, float]:
    """Choose the axis: all intervals, up to five widths of the first where they differ in kind; zero if near."""
    first = estimates[0]
    low, high = min(e.low for e in estimates), max(e.high for e in estimates)
    if estimates[-1].kind != first.kind:
        widest = 5 * (first.high - first.low)
        low, high = max(low, first.mean - widest), min(high, first.mean + widest)
    if max(low, -high) < high - low:
        low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _bars(check: dict[str, Any]) -> Drawing:
    """Draw the observed outcomes as bars, and what the model repeats as points with intervals."""

    def fill(figure: Figure) -> None:
        axes = figure.subplots()
        edges, (low, middle, high) = np.array(check["edges"]), np.array(check["replicated"], float)
        centre, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        observed = np.array(check["observed"], float)  # NaN where a site withholds a count
        axes.bar(centre, observed, 0.86 * width, color=COLOUR["band"], label="observed")
        axes.errorbar(
            centre, middle, [middle - low, high - middle], fmt="o", color=COLOUR["accent"], markersize=3.5,
            linewidth=1.6, label="replicated, 94 %",
        )  # fmt: skip
        axes.set_ylabel("rows")
        axes.set_xlabel("outcome")
        if len(centre) <= 6 and np.allclose(centre, np.round(centre)):
            axes.set_xticks(centre, [f"{x:.0f}" for x in centre])
        axes.grid(axis="y", color=COLOUR["grid"], linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_ylim(0, 1.22 * max(high.max(), np.nanmax([*observed, 1])))
        axes.legend(frameon=False, loc="upper center", ncols=2, fontsize=8, handlelength=1.2)

    return (WIDTH, 2.3), fill


def _means(check: dict[str, Any]) -> Drawing:
    """Draw each site's mean outcome against those of replications."""

    def fill(figure: Figure) -> None:
        axes = figure.subplots()
        for i, one in enumerate(check["sites"]):
            low, _, high = one["replicated_mean"]
            axes.plot([low, high], [i, i], color=COLOUR["accent"], linewidth=2.6, solid_capstyle="round")
            axes.plot([one["mean"]], [i], "D", color=COLOUR["ink"], markersize=4.5)
        axes.set_yticks(range(len(check["sites"])), [one["site"] for one in check["sites"]])
        axes.set_ylim(len(check["sites"]) - 0.45, -0.55)
        axes.tick_params(axis="y", labelcolor=COLOUR["ink"])
        axes.set_xlabel("observed ◆, replicated 94 %")
        axes.grid(axis="x", color=COLOUR["grid"], linewidth=0.6)
        axes.set_axisbelow(True)

    return (WIDTH, max(2.3, 0.75 + 0.25 * len(check["sites"]))), fill


def _mixing(name: str, draws: np.ndarray) -> tuple[Markup, Markup]:
    """Draw density and trace, and ranks, by ArviZ."""
    step = max(1, draws.shape[1] // POINTS)
    colours = [CHAINS[i % len(CHAINS)] for i in range(len(draws))]

    def trace(figure: Figure) -> None:
        axes = figure.subplots(1, 2, width_ratios=[1, 2])
        for chain, colour in zip(draws, colours, strict=True):
            if np.ptp(chain) > 1e-9 * np.abs(chain).max():  # else there is no density to estimate
                plot.plot_kde(chain, ax=axes[0], plot_kwargs={"color": colour, "linewidth": 1.1})
            axes[1].plot(np.arange(0, len(chain), step), chain[::step], color=colour, linewidth=0.6, alpha=0.75)
        axes[0].set_ylim(bottom=0)
        _tidy(axes[0], "density")
        _tidy(axes[1], "trace")

    def ranks(figure: Figure) -> None:
        axes = figure.subplots()
        plot.plot_rank({"x": draws}, ax=axes, colors=colours, ref_line_kwargs={"linewidth": 0.7})
        _tidy(axes, "ranks of each chain")
        axes.set(xlabel="", ylabel="", xlim=(0, draws.size))

    count = len(draws)
    return (
        picture(f"{name}: density and trace of {count} chains.", ((4.2, 1.35), trace)),
        picture(
            f"{name}: histograms of the ranks of {count} chains; even ones speak for mixing.", ((4.2, 1.25), ranks)
        ),
    )


def _tidy(axes: Axes, title: str) -> None:
    """Give an axes of ArviZ the report's look."""
    axes.set_title("")
    axes.set_title(title, loc="left", color=COLOUR["muted"], fontsize=8.5)
    axes.tick_params(labelsize=8)
    axes.set_yticklabels([]) if title != "trace" else axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(3))
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(3))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _list(estimates: list[Estimate]) -> str:
    """Put the sites' intercepts into words."""
    return f"Intercepts: {Panel('', estimates).words[2:]}"


def _means_words(check: dict[str, Any]) -> str:
    """Put the sites' means into words."""
    each = [
        f"{one['site']} {one['mean']:.3g} ({one['replicated_mean'][0]:.3g} to {one['replicated_mean'][2]:.3g})"
        for one in check["sites"]
    ]
    return f"Mean outcome, observed and in 94 % of replications: {'; '.join(each)}."
