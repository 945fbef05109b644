"""What a report says of the sites: rows, rounds, absence, pulls, and what left them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from fsgld.report.words import plain
from fsgld.results import Result

MOST_SITES = 60
PROBES = 64  # of the pre-flight, at most


def table(result: Result) -> dict[str, Any]:
    """Give one line a site: rows, share of rounds and information, time away, how much rests on its surrogate."""
    given, about = result.settings, _about(result)
    count = len(result.clients)
    rounds = np.bincount(result.visited.ravel(), minlength=count)[:count] / max(1, result.visited.size)
    rows, shares = given.get("rows") or [None] * count, given.get("shares") or [None] * count
    away, kept = given.get("away") or [0.0] * count, given.get("away_in_draws") or [0.0] * count
    told = {line["site"]: line for line in about.get("sites", [])}
    sent = (given.get("federation") or {}).get("sites") or {}
    lines = []
    for s, name in enumerate(result.clients[:MOST_SITES]):
        lines.append({
            "site": plain(name), "rows": "—" if rows[s] is None else f"{rows[s]:,}", "rounds": _percent(rounds[s]),
            "share": "—" if shares[s] is None else _percent(shares[s]), "away": _away(away[s], sent.get(name)),
            "surrogate": "—" if shares[s] is None else _percent(shares[s] * kept[s]),
            "remarks": _remarks(told.get(name)),
        })  # fmt: skip
    out = [
        {"site": plain(line["site"]), "reason": plain(line["reason"], 300)}
        for line in about.get("sites", []) if "reason" in line
    ]  # fmt: skip
    return {"lines": lines, "left_out": out, "more": max(0, count - MOST_SITES)}


def surrogate_sentence(result: Result) -> str:
    """Say how much of the answer rests on surrogates instead of rows."""
    shares, kept = result.settings.get("shares"), result.settings.get("away_in_draws")
    if not kept or not any(kept):
        return "Every site was there in every round, so no part of the answer rests on a surrogate in place of rows."
    if not shares:
        return "Some sites were away in some rounds; how much of the answer that concerns is not known."
    part = float(np.dot(shares, kept))
    return (
        f"About {_percent(part)} of the answer rests on surrogates: while a site was away, its rows were in the"
        " posterior only through the Gaussian that stands for them (share of information × share of draws)."
    )


def pulls(result: Result) -> dict[str, Any] | None:
    """Give the table of pulls, sites with the largest first if there are many, and what stands out."""
    given = _about(result).get("pull")
    if not given:
        return None
    size = {site: max(map(abs, each.values()), default=0.0) for site, each in given.items()}
    chosen = set(sorted(given, key=lambda site: -size[site])[:8])
    names = [site for site in given if site in chosen]
    columns = list(next(iter(given.values())))[:60]
    rows = [{"name": plain(column), "cells": [_cell(given[site][column]) for site in names]} for column in columns]
    cells = [(abs(given[s][c]), s, c) for s in given for c in columns]
    beyond = sum(size > 1 for size, _, _ in cells)
    largest = max(cells, default=None)
    sentence = ""
    if largest:
        _, site, column = largest
        way = "up" if given[site][column] > 0 else "down"
        sentence = (
            f"{beyond} of {len(cells)} pulls are beyond ±1. The largest: {plain(site)} pulls {plain(column)} {way} by"
            f" {abs(given[site][column]):.1f} posterior sds."
        )
    return {
        "sites": [plain(s, 24) for s in names], "rows": rows, "sentence": sentence, "more": len(given) - len(names),
    }  # fmt: skip


def what_left(result: Result) -> dict[str, Any]:
    """List what left each site, or would have left it in a federation: kinds of messages, and per site how many."""
    given, about = result.settings, _about(result)
    design = about.get("design") or {}
    d = result.flat_draws()[1].shape[-1] - (design.get("site_effects") == "hierarchical")
    kinds = []
    if design:
        k = len(design.get("columns", ())) + 1
        kinds.append(("Summary of its columns", f"types, levels and missing values with counts; count, mean and sum of"
                      f" squares of {k} columns", "once"))  # fmt: skip
    if found := re.search(r"(\d+) sweeps", str(given.get("surrogates", ""))):
        often = f"{int(found[1]) + 1} times" + (", and for the hierarchy's start" if design.get("pilot") else "")
        numbers = 1 + d + d * (d + 1) // 2
        kinds.append(("Its log-likelihood's value, gradient and curvature", f"{numbers:,} sums over its rows", often))
    elif given.get("surrogates") not in (None, "none"):
        kinds.append(("Its surrogate q_s", f"{d + d * (d + 1) // 2:,} numbers at most", "once"))
    if "preflight" in given:
        kinds.append(("Residuals and mini-batch noise at probes", f"{3 * PROBES * d + 1:,} sums at most", "once"))
    kinds.append(("The chain's position and its kept draws", f"{d:,} numbers a draw", "every visit"))
    if about.get("check"):
        kinds.append(("For this report", "a histogram, means and sds of outcomes; its own fit; gradient, curvature",
                      "once"))  # fmt: skip
    visits = np.bincount(result.visited.ravel(), minlength=len(result.clients))
    sent = (given.get("federation") or {}).get("sites") or {}
    lines = [
        {"site": plain(name), "visits": f"{visits[s]:,}", "messages": _whole(sent.get(name), "messages"),
         "bytes": _whole(sent.get(name), "bytes_received")}
        for s, name in enumerate(result.clients[:MOST_SITES])
    ]  # fmt: skip
    return {"kinds": kinds, "lines": lines, "federated": bool(sent)}


def _about(result: Result) -> dict[str, Any]:
    return result.settings.get("glm") or {}


def _percent(share: float) -> str:
    """Write a share; a small one is not zero."""
    return "0 %" if share == 0 else "< 0.1 %" if share < 1e-3 else f"{100 * share:.1f} %"


def _away(share: float, sent: dict[str, Any] | None) -> str:
    seconds = (sent or {}).get("seconds_away")
    return _percent(share) + (f" ({seconds:,.0f} s)" if seconds else "")


def _whole(line: dict[str, Any] | None, key: str) -> str:
    return f"{line[key]:,}" if line and key in line else "—"


def _cell(pull: float) -> dict[str, Any]:
    """Give a pull as text, with the side and strength of its colour."""
    shown = f"{pull:+.1f}".replace("-", "−")
    shown = "0.0" if shown in ("+0.0", "−0.0") else shown
    return {"text": shown, "side": "up" if pull > 0 else "down", "strength": round(min(abs(pull) / 2, 1) * 55)}


def _remarks(line: dict[str, Any] | None) -> str:
    """Say what happened to a site's rows, without the number of those kept."""
    if not line or "reason" in line:
        return ""
    from fsgld.glm.agree import words

    return plain(words(line).partition(": ")[2].partition("; ")[2], 300)
