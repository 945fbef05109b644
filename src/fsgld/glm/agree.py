"""Columns agreed across sites without moving rows: sites send summaries, the design is merged from them.

Round 1: a site describes its columns (`describe`): kinds, levels with counts, missing values; count, mean and sum of
squares of what `center` and `scale` need. `agree` merges these. Round 2: with levels agreed, a site sends the same
three numbers for the outcome and for each column of the design (`moments`); `settle` merges them. Nothing else leaves
a site. It refuses where a sum would be about fewer than `least` rows: a level, a value of a binary outcome, or a
column of the design that so few rows have; such a count cannot be withheld, since any sum over rows would tell it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fsgld.errors import InputError, brief
from fsgld.glm.design import Design, _is_text, where
from fsgld.glm.priors import parse_prior

MOST_LEVELS = 200
Summary = dict[str, Any]


def complete(table: pd.DataFrame, variables: Sequence[str], name: str) -> pd.DataFrame:
    """Keep rows without missing values in the columns that are used; the index still counts the file's rows."""
    header, name = table.attrs.get("columns", list(table.columns)), where(table, name)
    for variable in variables:
        if variable not in table:
            near = ", ".join(map(str, header[:12])) + (", …" if len(header) > 12 else "")
            told = f"it has no column {brief(variable)}"
            raise InputError(f"{name} has no column {brief(variable)}; its columns are {near}", told)
    return table[list(variables)].dropna()


def describe(table: pd.DataFrame, design: Design, name: str, least: int = 1) -> Summary:
    """Summarise a site's columns for round 1."""
    p, file = design.parsed, where(table, name)
    whole = complete(table, p.variables, name)
    missing = {v: int(table[v].isna().sum()) for v in p.variables if table[v].isna().any()}
    if not len(whole):
        most = max(missing, key=lambda v: missing[v]) if missing else ""
        why = f" (column {most} lacks {missing[most]} of {len(table)} values)" if most else ""
        left = "no rows are left after dropping those with missing values"
        raise InputError(f"{file}: {left}{why}; leave the file or the column out", left)
    if len(whole) < least:
        raise InputError(
            f"{file}: {len(whole)} complete rows are fewer than the {least} that a summary needs",
            f"fewer than {least} complete rows",
        )
    levels: dict[str, list[list[Any]]] = {}
    for variable in p.variables:
        if _is_text(whole[variable]) or variable in p.categories.values():
            counts = whole[variable].value_counts()
            if len(counts) > MOST_LEVELS:
                raise InputError(
                    f"{file}: column {variable} is text or a category with {len(counts)} levels, more than"
                    f" {MOST_LEVELS}; is it a number with some text in it, or a name?",
                    f"column {variable} is text or a category with more than {MOST_LEVELS} levels",
                )
            if counts.min() < least:
                rare = f"column {variable} has a level with fewer than {least} rows"
                raise InputError(f"{file}: {rare}, {brief(counts.idxmin())}; merge levels, or leave it out", rare)
            levels[variable] = [[_plain(level), int(n)] for level, n in counts.items()]
    return {
        "site": name, "read": len(table), "rows": len(whole), "missing": missing,
        "kinds": {v: "text" if _is_text(whole[v]) else "number" for v in p.variables}, "levels": levels,
        "learns": {call: _three(design.evaluate(e, whole, name)) for call, (_, e) in p.learns.items()},
    }  # fmt: skip


def agree(design: Design, summaries: Sequence[Summary]) -> Design:
    """Merge round 1: levels, and what functions learn."""
    p = design.parsed
    for variable in p.variables:
        kinds = {summary["kinds"][variable]: summary["site"] for summary in reversed(summaries)}
        if len(kinds) > 1:
            raise InputError(
                f"column {variable} is numbers at {kinds['number']} but text at {kinds['text']}; write it alike at all"
                " sites (text such as a comment in one cell makes a column text)"
            )
    levels = {
        variable: sorted({level for summary in summaries for level, _ in summary["levels"][variable]})
        for variable in summaries[0]["levels"]
    }
    success = outcome_levels(design, levels.get(p.outcome))
    for variable, found in levels.items():
        if len(found) < 2 and variable != p.outcome:
            raise InputError(f"column {variable} has one level only, {brief(found[0])}, at all sites; leave it out")
    learnt = {}
    for call, (function, _) in p.learns.items():
        n, mean, squares = merge([summary["learns"][call] for summary in summaries])
        sd = float(np.sqrt(squares / max(n - 1, 1)))
        if function == "scale" and not sd > 0:
            raise InputError(f"{call}: all rows have one value, so there is nothing to scale by; leave it out")
        learnt[call] = [float(mean), sd]
    sites, rows = (tuple(summary[key] for summary in summaries) for key in ("site", "rows"))
    return replace(design, levels=levels, success=success, learnt=learnt, sites=sites, rows=rows)


def moments(table: pd.DataFrame, design: Design, name: str, least: int = 1) -> Summary:
    """Summarise a site's outcome and design columns for round 2: count, mean, sum of squares around the mean."""
    whole = complete(table, design.parsed.variables, name)
    made, y = design.matrix(whole, name), design.observed(whole, name)
    check_rare(made, where(table, name), least)
    check_outcome(y, design, where(table, name), least)
    exposure = np.exp(design.evaluate(design.parsed.offset, whole, name)) if design.parsed.offset else np.ones(len(y))
    return {
        "site": name, "columns": list(made.columns), "x": [_three(column) for column in made.to_numpy().T],
        "y": _three(y), "exposure": float(exposure.mean()),
    }  # fmt: skip


def check_rare(made: pd.DataFrame, name: str, least: int) -> None:
    """Refuse columns with one value in all rows but a few: their sums would be about those few."""
    for column, values in made.items():
        others = len(values) - int(np.unique(values, return_counts=True)[1].max())
        if 0 < others < least:
            rare = f"column {column} has one value in all but fewer than {least} rows"
            raise InputError(f"{name}: {rare}; merge levels, or leave it out", rare)


def check_outcome(y: np.ndarray, design: Design, name: str, least: int) -> None:
    """Refuse a binary outcome that a few rows only have."""
    if design.family == "bernoulli" and 0 < min(y.sum(), len(y) - y.sum()) < least:
        rare = f"fewer than {least} rows have one of the two outcomes"
        raise InputError(f"{name}: {rare}; leave the table out", rare)


def settle(design: Design, summaries: Sequence[Summary]) -> Design:
    """Merge round 2: means and sds of the design's columns and of the outcome."""
    columns = summaries[0]["columns"]
    for summary in summaries:
        if summary["columns"] != columns:
            raise InputError(f"{summary['site']} makes other columns of the formula than {summaries[0]['site']}")
    if not columns and not design.parsed.intercept:
        raise InputError(f"the formula {brief(design.formula)} has neither predictors nor an intercept")
    merged = [merge([summary["x"][j] for summary in summaries]) for j in range(len(columns))]
    n, mean, squares = merge([summary["y"] for summary in summaries])
    sd, average = float(np.sqrt(squares / max(n - 1, 1))), float(mean)
    if design.distribution.counts:
        mean = mean * n / sum(summary["exposure"] * summary["y"][0] for summary in summaries)
    if design.distribution.has_unit and not sd > 0:
        raise InputError(
            f"the outcome {design.parsed.outcome} has one value only, {mean:.6g}; there is nothing to explain"
        )
    scale = [float(np.sqrt(m[2] / max(m[0] - 1, 1))) for m in merged]
    centred = design.parsed.intercept
    return replace(
        design, columns=tuple(columns), outcome=(float(mean), sd), average=average,
        centre=tuple(float(m[1]) if centred else 0.0 for m in merged),
        scale=tuple(s if s > 1e-12 * abs(m[1]) else 1.0 for s, m in zip(scale, merged, strict=True)),
    )  # fmt: skip


def report(design: Design, first: Sequence[Summary], second: Sequence[Summary]) -> list[Summary]:
    """Say what happened to each site's rows and columns."""
    lines = []
    for one, two in zip(first, second, strict=True):
        here = {variable: {level for level, _ in found} for variable, found in one["levels"].items()}
        absent = {v: [x for x in (design.levels or {})[v] if x not in found] for v, found in here.items()}
        constant = [
            c for c, three in zip(two["columns"], two["x"], strict=True) if not three[2] > 1e-24 * three[1] ** 2
        ]
        lines.append({
            "site": one["site"], "rows_read": one["read"], "rows": one["rows"], "missing": one["missing"],
            "absent_levels": {v: x for v, x in absent.items() if x}, "constant_columns": constant,
            "outcome_mean": two["y"][1],
        })  # fmt: skip
    return lines


def words(line: Summary) -> str:
    """Put a site's report into words."""
    if "reason" in line:
        return f"{line['site']}: left out, since {line['reason']}"
    parts = [f"{line['rows']} rows"]
    if dropped := line["rows_read"] - line["rows"]:
        most = sorted(line["missing"].items(), key=lambda item: -item[1])[:4]
        parts.append(f"{dropped} dropped for missing values ({', '.join(f'{v} {n}' for v, n in most)})")
    parts += [f"no {v} = {', '.join(map(str, levels))}" for v, levels in line["absent_levels"].items()]
    if line["constant_columns"]:
        parts.append(f"constant here: {', '.join(line['constant_columns'][:6])}")
    return f"{line['site']}: {'; '.join(parts)}"


def said(sites: Sequence[Summary], priors: Mapping[str, str]) -> list[str]:
    """Say what happened to each site's rows, and every prior."""
    named = [f"prior: {name} ~ {parse_prior(text, None, name)}" for name, text in priors.items()]
    return [*map(words, sites), *named]


def merge(parts: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Merge counts, means and sums of squares around the mean (Chan et al., 1983)."""
    n, mean, squares = 0.0, 0.0, 0.0
    for m, other, more in parts:
        gap = other - mean
        squares += more + gap**2 * n * m / (n + m)
        mean += gap * m / (n + m)
        n += m
    return n, mean, squares


def _three(values: np.ndarray) -> list[float]:
    """Give count, mean, and sum of squares around the mean."""
    mean = float(np.mean(values))
    return [float(len(values)), mean, float(((values - mean) ** 2).sum())]


def outcome_levels(design: Design, levels: list[Any] | None) -> list[str] | None:
    """Check an outcome that is text: two levels, for a bernoulli family."""
    if levels is None or not all(isinstance(level, str) for level in levels):
        return None
    if design.family != "bernoulli" or len(levels) != 2:
        raise InputError(
            f"the outcome {design.parsed.outcome} is text with levels {brief(levels, 60)}; family {design.family} needs"
            f" {'two levels' if design.family == 'bernoulli' else 'numbers'}"
        )
    return levels


def _plain(level: Any) -> Any:
    """Give a level as a string or a number of Python's."""
    if isinstance(level, str):
        return level
    return int(level) if float(level).is_integer() else float(level)
