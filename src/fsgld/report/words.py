"""Numbers and sentences of a report."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fsgld.results import Result

SETTINGS = {
    "surrogates": "Surrogates", "dynamics": "Dynamics", "step_size": "Step size h",
    "likelihood": "Likelihood's gradient", "batch_size": "Mini-batch m", "mini_batches": "Rows drawn",
    "local_steps": "Local steps a visit", "rounds": "Rounds", "chains": "Chains", "thin": "One draw in (steps)",
    "burn_in": "Burn-in", "refresh": "Refresh", "alpha": "α", "seed": "Seed", "dtype": "Precision", "engine": "Engine",
}  # fmt: skip


def plain(text: Any, most: int = 60) -> str:
    """Make text from data printable and short; escaping is the template's and the drawing's."""
    shown = "".join(c if c.isprintable() else "·" for c in str(text))
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def number(x: float, spread: float) -> str:
    """Write a number with two digits of its spread, and a true minus sign."""
    if not np.isfinite(x):
        return "—"
    if not np.isfinite(spread) or spread <= 0:
        return f"{x:.3g}".replace("-", "−")
    digits = 1 - int(np.floor(np.log10(spread)))
    if digits > 7 or (digits < 0 and abs(x) >= 1e7):
        return f"{x:.3g}".replace("-", "−")
    shown = f"{x:,.{max(0, digits)}f}"
    return shown.lstrip("-") if float(shown.replace(",", "")) == 0 else shown.replace("-", "−")


def span(low: float, high: float) -> str:
    """Write an interval."""
    return f"{number(low, (high - low) / 4)} to {number(high, (high - low) / 4)}"


def ratio(mean: float, low: float, high: float) -> str:
    """Write e to the power of a coefficient, with its interval."""
    if max(abs(low), abs(high)) > 20:
        return "—"
    center, a, b = (float(np.exp(x)) for x in (mean, low, high))
    return f"{number(center, (b - a) / 4)} ({number(a, (b - a) / 4)} to {number(b, (b - a) / 4)})"


def probability(p: float) -> str:
    """Write a probability."""
    return "> 0.999" if p > 0.999 else "< 0.001" if p < 0.001 else f"{p:.3f}"


def listing(names: list[str], most: int = 6) -> str:
    """Join names as a sentence does."""
    if len(names) > most:
        return ", ".join(names[:most]) + f" and {len(names) - most} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def lead(lines: list[dict[str, Any]], is_formula: bool, agree: bool = True) -> list[str]:
    """Say the answer in words: which coefficients are clear of zero; not if the chains are far from agreeing."""
    if not lines:
        return ["No chain ran to the end, so there is no answer."]
    if not agree:
        return ["The chains do not agree yet, so this is no answer: run longer. What follows is how it stands."]
    above = [line["name"] for line in lines if line["low"] > 0]
    below = [line["name"] for line in lines if line["high"] < 0]
    rest = [line["name"] for line in lines if line["low"] <= 0 <= line["high"]]
    what = "coefficient" if is_formula else "parameter"
    said = [f"{listing(names)} ({sign})" for names, sign in ((above, "positive"), (below, "negative")) if names]
    first = f"The 94 % interval is clear of zero for {'; '.join(said)}." if said else ""
    if rest and said:
        return [first, f"It holds zero for {listing(rest)}."]
    return [first or f"The 94 % interval of every {what} holds zero."]


def convergence(summary: Any, shape: tuple[int, ...]) -> str:
    """Say in one sentence whether the chains converged."""
    chains, draws = shape[:2]
    if not chains:
        return "No chain ran to the end: there is nothing to rely on."
    c, names = summary.columns, [plain(name) for name in summary.names]
    ess = np.fmin(c["ess_bulk"], c["ess_tail"])
    if np.isnan(c["r_hat"]).all() or np.isnan(ess).all():
        return f"{chains} chain{'s' * (chains > 1)} of {draws:,} draws cannot be compared, so convergence is not known."
    worst, fewest = int(np.nanargmax(c["r_hat"])), int(np.nanargmin(ess))
    error = 100 * np.nanmax(c["mcse"] / c["sd"])
    verdict = "agree" if ess[fewest] >= 400 else "agree, but have few effective draws (run longer)"
    if c["r_hat"][worst] > 1.01:
        verdict = "do not agree yet (run longer)"
    return (
        f"{chains} chains of {draws:,} draws {verdict}: the largest R-hat is {c['r_hat'][worst]:.3f} ({names[worst]}),"
        f" the smallest effective sample size {ess[fewest]:,.0f} ({names[fewest]}), and the Monte Carlo error of a"
        f" mean at most {error:.1f} % of its sd."
    )


def prior(text: str) -> str:
    """Write a prior with numbers short enough to read."""
    return re.sub(r"-?\d[\d.e+-]*", lambda found: f"{float(found[0]):.4g}", plain(text))


def settings(result: Result) -> list[tuple[str, str]]:
    """Name the settings of the run."""
    given = result.settings
    shown = {key: f"{x:,}" if type(x) is int and key != "seed" else plain(x, 120) for key, x in given.items()}
    rows = [(label, shown[key]) for key, label in SETTINGS.items() if given.get(key) is not None]
    design = (given.get("glm") or {}).get("design") or {}
    rows += [(key.capitalize(), plain(design[key])) for key in ("offset", "trials") if design.get(key)]
    study = given.get("study") or {}
    rows += [("Study", f"{plain(study['name'])} ({plain(study['digest'], 13)})")] if study else []
    took = sum(result.timings.values())
    return [*rows, ("Seconds", f"{took:,.0f}")] if took else rows
