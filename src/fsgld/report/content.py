"""What a report says, found in a result: plain numbers, sentences and tables; nothing is drawn here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fsgld import __version__
from fsgld.report import sites, words
from fsgld.report.words import number, plain
from fsgld.results import Result

INTERVAL, REACH = 0.94, 1.8808  # and the normal quantile that belongs to it
DISAGREE = 1.1  # an R-hat beyond which the draws are no answer
MOST_PANELS, MOST_TRACES, MOST_LINES, MOST_SITES = 24, 12, 200, 12
RATIOS = {
    "bernoulli": "odds ratio",
    "binomial": "odds ratio",
    "poisson": "rate ratio",
    "negative_binomial": "rate ratio",
}


class Estimate(NamedTuple):
    """One line of a forest plot."""

    label: str
    kind: str  # federated, pooled, alone
    mean: float
    low: float
    high: float


class Panel(NamedTuple):
    """One coefficient of the forest plot."""

    name: str
    estimates: list[Estimate]

    @property
    def words(self) -> str:
        """The panel as a text alternative."""
        each = [f"{e.label} {number(e.mean, e.high - e.low)} ({words.span(e.low, e.high)})" for e in self.estimates]
        return f"{self.name}: mean and 94 % interval; {'; '.join(each)}."


def collect(result: Result, pooled: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Find everything that a report of this result can say."""
    about = result.settings.get("glm") or {}
    design = about.get("design") or {}
    summary = result.summary(INTERVAL)
    names, draws = result.flat_draws()
    whole = draws[[not status.diverged for status in result.status]].astype(float)
    columns = {plain(name) for name in design.get("columns", ())}
    lines = _lines(summary, whole, design)
    coefficients = [line for line in lines if line["name"] in columns] if design else lines
    agree = not (np.asarray(summary.columns.get("r_hat", 1.0)) > DISAGREE).any()
    return {
        "title": plain(design["formula"], 200) if design else f"A posterior of {len(names):,} parameters",
        "is_formula": bool(design), "facts": _facts(result, design), "ratio": RATIOS.get(design.get("family", "")),
        "lead": words.lead(coefficients, bool(design), agree),
        "notes": [plain(note, 400) for note in _notes(result, summary)],
        "coefficients": coefficients[:MOST_LINES], "effects": _effects(lines, design),
        "others": [line for line in lines if line["name"] not in columns][:MOST_LINES] if design else [],
        "left_off": max(0, len(lines) - MOST_LINES), "pooled": bool(pooled), "alone": len(about.get("alone") or {}),
        "most_sites": MOST_SITES,
        "panels": _panels(coefficients, about.get("alone") or {}, pooled or {}, design),
        "check": _check(about.get("check")), "convergence": words.convergence(summary, whole.shape),
        "diagnostics": lines[:MOST_LINES], "traces": _traces(names, whole, summary),
        "draws": whole.shape[0] * whole.shape[1],
        "sites": sites.table(result), "surrogate": sites.surrogate_sentence(result), "pulls": sites.pulls(result),
        "left": sites.what_left(result), "settings": words.settings(result),
        "priors": [(plain(name), words.prior(text)) for name, text in (design.get("priors") or {}).items()],
        "versions": plain(result.settings.get("versions", "not written in the result"), 200),
        "report_version": __version__,
    }  # fmt: skip


def _facts(result: Result, design: dict[str, Any]) -> list[tuple[str, str]]:
    """Give the facts under the title."""
    rows = result.settings.get("rows") or design.get("rows") or []
    facts = [("Sites", f"{len(result.clients):,}")]
    if rows:
        facts.append(("Rows", f"{sum(rows):,}"))
    if design:
        facts.append(("Family", plain(design["family"].replace("_", " "))))
        facts.append(("Site effects", plain(design["site_effects"])))
    kept = sum(status.draws for status in result.status)
    return [*facts, ("Chains", f"{len(result.status)}"), ("Draws", f"{kept:,}")]


def _notes(result: Result, summary: Any) -> list[str]:
    """Collect warnings of the run, each once."""
    before = result.settings.get("preflight") or {}
    return list(dict.fromkeys([*before.get("notes", []), *result.settings.get("notes", []), *summary.notes]))


def _lines(summary: Any, whole: np.ndarray, design: dict[str, Any]) -> list[dict[str, Any]]:
    """Give one line a parameter: numbers and the same as text."""
    if not len(whole):
        return []
    low, high = [key for key in summary.columns if key.endswith("%")]
    positive = (whole > 0).mean((0, 1))
    order = _order(summary.names, design)
    lines = []
    for i in order:
        c = {key: float(column[i]) for key, column in summary.columns.items()}
        line = {"name": plain(summary.names[i]), "key": summary.names[i], "mean": c["mean"], "sd": c["sd"]}
        line |= {"low": c[low], "high": c[high], "positive": float(positive[i])}
        line["text"] = {
            "mean": number(c["mean"], c["sd"]), "sd": number(c["sd"], c["sd"]), "span": words.span(c[low], c[high]),
            "positive": words.probability(float(positive[i])), "r_hat": f"{c['r_hat']:.3f}",
            "ess_bulk": f"{c['ess_bulk']:,.0f}", "ess_tail": f"{c['ess_tail']:,.0f}", "mcse": f"{c['mcse']:.2g}",
            "ratio": words.ratio(c["mean"], c[low], c[high]),
        }  # fmt: skip
        lines.append(line)
    return lines


def _order(names: tuple[str, ...], design: dict[str, Any]) -> list[int]:
    """Put coefficients in the formula's order, before all else."""
    first = [name for name in design.get("columns", ()) if name in names]
    return [names.index(name) for name in first] + [i for i, name in enumerate(names) if name not in first]


def _panels(
    lines: list[dict[str, Any]], alone: dict[str, Any], pooled: Mapping[str, Any], design: dict[str, Any]
) -> list[Panel]:
    """Collect the forest plot: federated, pooled where it is known, each site alone; the largest sites if many."""
    rows = dict(zip(design.get("sites", ()), design.get("rows", ()), strict=False))
    chosen = sorted(alone, key=lambda site: -rows.get(site, 0))[:MOST_SITES]
    panels = []
    for line in lines[:MOST_PANELS]:
        found = [Estimate("Federated", "federated", line["mean"], line["low"], line["high"])]
        others = [("Pooled", "pooled", pooled)] if line["key"] in pooled else []
        others += [(plain(site, 24), "alone", alone[site]) for site in alone if site in chosen]
        for label, kind, given in others:
            if line["key"] in given:
                mean, sd = given[line["key"]]
                found.append(Estimate(label, kind, mean, mean - REACH * sd, mean + REACH * sd))
        panels.append(Panel(line["name"], [e for e in found if np.isfinite(e[2:]).all()]))
    return [panel for panel in panels if panel.estimates]


def _effects(lines: list[dict[str, Any]], design: dict[str, Any]) -> list[Estimate]:
    """Collect the sites' intercepts, where they have their own."""
    stems = {"hierarchical": "site[{}]", "separate": "Intercept[{}]"}
    stem = stems.get(design.get("site_effects", ""))
    by_key = {line["key"]: line for line in lines}
    found = [(site, by_key.get(stem.format(site))) for site in design.get("sites", ())] if stem else []
    return [
        Estimate(plain(site, 24), "federated", line["mean"], line["low"], line["high"]) for site, line in found if line
    ][:40]


def _check(check: dict[str, Any] | None) -> dict[str, Any] | None:
    """Say in words whether the posterior predictive check finds anything."""
    if not check:
        return None
    outside = [
        plain(one["site"]) for one in check["sites"]
        if not one["replicated_mean"][0] <= one["mean"] <= one["replicated_mean"][2]
    ]  # fmt: skip
    low, _, high = check["replicated"]
    bars = [(lo, seen, hi) for lo, seen, hi in zip(low, check["observed"], high, strict=True) if seen is not None]
    bins = sum(not lo <= seen <= hi for lo, seen, hi in bars)
    sentence = "Yes: every bar, and every site's mean outcome, lies within what 94 % of replications by the model give."
    if bins or outside:
        sentence = (
            f"{bins} of {len(bars)} bars and the mean outcomes of {len(outside)} of {len(check['sites'])} sites"
            f"{' (' + words.listing(outside) + ')' if outside else ''} lie outside what 94 % of replications by the"
            " model give; 6 % would by chance."
        )
    sites = [one | {"site": plain(one["site"], 24)} for one in check["sites"]][:40]
    return check | {"sentence": sentence, "sites": sites, "withheld": len(low) - len(bars), "open_ends": len(low) > 2}


def _traces(names: tuple[str, ...], whole: np.ndarray, summary: Any) -> list[tuple[str, np.ndarray]]:
    """Choose the parameters with the fewest effective draws, for they are where trouble would show."""
    if whole.shape[0] == 0 or whole.shape[1] < 4:
        return []
    ess = np.nan_to_num(np.fmin(summary.columns["ess_bulk"], summary.columns["ess_tail"]))
    worst = np.argsort(ess, kind="stable")[:MOST_TRACES]
    return [(plain(names[i]), whole[..., i]) for i in worst]
