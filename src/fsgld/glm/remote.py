"""A GLM's questions as fields of messages: how a site answers them, and how the coordinator asks.

A design goes to the sites as text. A site takes nothing for granted: `Desk` makes columns, priors and bins of its own
from its table and the study, and refuses a design that differs. Errors may quote a table; `told` is what is said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import pandas as pd

from fsgld.errors import InputError
from fsgld.glm import agree, evidence
from fsgld.glm.agree import Summary
from fsgld.glm.build import build, choose_priors
from fsgld.glm.design import Design, where
from fsgld.glm.evidence import Outcomes
from fsgld.rows import Shards

Fields = dict[str, Any]
GIVEN = ("formula", "family", "site_effects", "offset", "trials")


class Desk:
    """A site's answers about its table. `least` rows must share what a sum is about."""

    def __init__(
        self, design: Design, priors: Mapping[str, str], name: str, sites: tuple[str, ...], table: pd.DataFrame,
        least: int,
    ) -> None:  # fmt: skip
        self.begun, self.priors, self.name, self.sites = design, priors, name, sites
        self.file, self.least = table, least
        self.summary = agree.describe(table, design, name, least)
        if self.summary["kinds"].get(design.parsed.outcome) != "text":  # tell the owner before anybody asks
            y = design.observed(agree.complete(table, design.parsed.variables, name), name)
            agree.check_outcome(y, design, where(table, name), least)
        self.questions: evidence.Questions | None = None
        self.table: Shards | None = None
        self.answers: dict[str, Callable[[Fields], Fields]] = {
            "describe": self._describe, "moments": self._moments, "outcomes": self._outcomes, "alone": self._alone,
            "pull": self._pull,
        }  # fmt: skip

    @property
    def rows(self) -> int:
        """Complete rows."""
        return int(self.summary["rows"])

    def check(self, text: str) -> dict[str, Any]:
        """Read a design that has been settled; refuse one that does not follow from this table and the study."""
        design = self._read(text)
        own = agree.moments(self.file, design, self.name, self.least)
        k = len(own["columns"])
        numbers = [*design.centre, *design.scale, *design.outcome, design.average]
        _refuse_unless(list(design.columns) == own["columns"], "columns")
        _refuse_unless(len(design.centre) == len(design.scale) == k and len(design.outcome) == 2, "means and sds")
        _refuse_unless(_finite(numbers) and min([1.0, *design.scale]) > 0 and design.outcome[1] >= 0, "means and sds")
        _refuse_unless(design.priors == choose_priors(design, dict(self.priors)), "priors")
        size = build(design).size
        if design.pilot is not None:
            shapes = {"theta": (size,), "gradient": (size,), "precision": (size, size)}
            _refuse_unless(isinstance(design.pilot, dict) and set(design.pilot) == set(shapes), "pilot fit")
            _refuse_unless(all(_has_shape(design.pilot[key], shape) for key, shape in shapes.items()), "pilot fit")
        return design.to_json()

    def settle(self, content: dict[str, Any], table: Shards) -> None:
        """Take a design that was checked, and the rows that it makes."""
        self.questions, self.table = evidence.Questions(Design.from_json(content)), table

    def _read(self, text: str) -> Design:
        """Read a design; check what is agreed before any column is made."""
        try:
            design = Design.from_json(json.loads(text))
        except ValueError:
            raise InputError("the design is not one", "the design is not one") from None
        mine = self.begun
        _refuse_unless(all(getattr(design, key) == getattr(mine, key) for key in GIVEN), "formula")
        here = self.summary["levels"]
        levels = design.levels
        _refuse_unless(isinstance(levels, dict) and set(levels) == set(here), "levels")
        assert isinstance(levels, dict)
        for variable, found in levels.items():
            _refuse_unless(isinstance(found, list) and all(map(_is_level, found)), "levels")
            _refuse_unless({level for level, _ in here[variable]} <= set(found), "levels")
            _refuse_unless(len({type(level) is str for level in found}) == 1 and found == sorted(set(found)), "levels")
        _refuse_unless(
            design.success == agree.outcome_levels(mine, levels.get(mine.parsed.outcome)), "outcome's levels"
        )
        learnt = design.learnt
        _refuse_unless(isinstance(learnt, dict) and set(learnt) == set(mine.parsed.learns), "means and sds")
        assert isinstance(learnt, dict)
        _refuse_unless(all(_has_shape(pair, (2,)) for pair in learnt.values()), "means and sds")
        whole = all(isinstance(n, int) and n > 0 for n in design.rows) and len(design.rows) == len(self.sites)
        _refuse_unless(design.sites == self.sites and whole, "sites")
        _refuse_unless(design.rows[self.sites.index(self.name)] == self.rows, "number of rows")
        return design

    def _describe(self, fields: Fields) -> Fields:
        p, s = self.begun.parsed, self.summary
        levels = [(i, level, n) for i, v in enumerate(p.variables) for level, n in s["levels"].get(v, [])]
        return {
            "read": s["read"], "rows": s["rows"], "levels": [json.dumps(level) for _, level, _ in levels],
            "missing": np.array([s["missing"].get(v, 0) for v in p.variables], np.int64),
            "text": np.array([s["kinds"][v] == "text" for v in p.variables], np.int64),
            "places": np.array([i for i, _, _ in levels], np.int64),
            "counts": np.array([n for _, _, n in levels], np.int64),
            "learns": np.array([s["learns"][call] for call in p.learns], float).reshape(-1, 3),
        }  # fmt: skip

    def _moments(self, fields: Fields) -> Fields:
        found = agree.moments(self.file, self._read(fields["design"]), self.name, self.least)
        return {
            "columns": found["columns"], "x": np.array(found["x"], float).reshape(-1, 3), "y": np.array(found["y"]),
            "exposure": found["exposure"],
        }  # fmt: skip

    def _outcomes(self, fields: Fields) -> Fields:
        questions, table = self._settled()
        w, place = np.asarray(fields["w"], float), self.sites.index(self.name)
        fits = w.shape[1] == questions.builder.size and 0 < len(w) <= evidence.DRAWS
        _refuse_unless(fits, "number of draws or parameters")
        return questions.outcomes(table, 0, place, w, fields["seed"], self.least)._asdict()

    def _alone(self, fields: Fields) -> Fields:
        questions, table = self._settled()
        mean, sd = questions.alone(table, 0) or (None, None)
        return {"mean": mean, "sd": sd}

    def _pull(self, fields: Fields) -> Fields:
        questions, table = self._settled()
        w = np.asarray(fields["w"], float)
        _refuse_unless(len(w) == questions.builder.size, "number of parameters")
        G, H = questions.slopes(table, w)
        return {"gradient": G, "curvature": H}

    def _settled(self) -> tuple[evidence.Questions, Shards]:
        _refuse_unless(self.questions is not None, "there is none yet")
        assert self.questions is not None and self.table is not None
        return self.questions, self.table


class Asker(Protocol):
    """How a federation puts questions to its sites."""

    sites: tuple[str, ...]

    def all(self, kind: str, fields: Fields) -> dict[str, Fields]:
        """Ask every site."""

    def some(self, kind: str, fields: Fields) -> dict[str, Fields]:
        """Ask those that are there; whoever does not answer, or refuses, is left out."""

    def table(self, content: dict[str, Any]) -> Shards:
        """Tell every site a design, and give the table that passes on questions about the rows which it makes."""


class Remote:
    """The sites of a federation: `fsgld.glm.settle.Sites`, and the witness of `fsgld.glm.evidence`."""

    def __init__(self, ask: Asker) -> None:
        self.ask = ask

    def describe(self, design: Design) -> list[Summary]:
        """Ask for descriptions and check them."""
        answers = self.ask.all("describe", {})
        return [_summary(design, site, answers[site]) for site in self.ask.sites]

    def moments(self, design: Design) -> list[Summary]:
        """Ask for moments with the levels agreed."""
        answers = self.ask.all("moments", {"design": json.dumps(design.to_json())})
        found = []
        for site in self.ask.sites:
            given = answers[site]
            _sane(site, len(given["x"]) == len(given["columns"]) and _finite([*given["x"].ravel(), *given["y"]]))
            _sane(site, given["exposure"] > 0 and given["y"][0] == design.rows[self.ask.sites.index(site)])
            found.append({"site": site, **given, "x": given["x"].tolist(), "y": given["y"].tolist()})
        return found

    def table(self, design: Design) -> Shards:
        """Tell the design and give the table of the sites."""
        return self.ask.table(design.to_json())

    def outcomes(self, w: np.ndarray, seed: int) -> dict[str, Outcomes]:
        """Ask for histograms, means and sds."""
        return {site: Outcomes(**given) for site, given in self.ask.some("outcomes", {"w": w, "seed": seed}).items()}

    def alone(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Ask for each site's own fit."""
        answers = self.ask.some("alone", {})
        return {site: (given["mean"], given["sd"]) for site, given in answers.items() if "mean" in given}

    def slopes(self, w: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Ask for gradients and curvatures."""
        answers = self.ask.some("pull", {"w": w})
        return {site: (given["gradient"][0], given["curvature"][0]) for site, given in answers.items()}


def _summary(design: Design, site: str, given: Fields) -> Summary:
    """Turn the fields of a description into what `agree.describe` gives, checked."""
    p = design.parsed
    variables, calls, places = p.variables, list(p.learns), given["places"].tolist()
    _sane(site, len(given["missing"]) == len(given["text"]) == len(variables) and len(given["learns"]) == len(calls))
    _sane(site, len(places) == len(given["levels"]) == len(given["counts"]) and _finite(given["learns"].ravel()))
    _sane(site, 0 < given["rows"] <= given["read"] and all(0 <= i < len(variables) for i in places))
    try:
        words = [json.loads(level) for level in given["levels"]]
    except ValueError:
        words = [None]
    _sane(site, all(map(_is_level, words)) and (given["counts"] > 0).all())
    levels: dict[str, list[Any]] = {}
    for i, level, n in zip(places, words, given["counts"].tolist(), strict=True):
        levels.setdefault(variables[i], []).append([level, n])
        _sane(site, isinstance(level, str) == bool(given["text"][i]))
    coded = {v for v, is_text in zip(variables, given["text"], strict=True) if is_text} | set(p.categories.values())
    _sane(site, set(levels) == coded)
    return {
        "site": site, "read": given["read"], "rows": given["rows"], "levels": levels,
        "missing": {v: int(n) for v, n in zip(variables, given["missing"], strict=True) if n},
        "kinds": {v: "text" if is_text else "number" for v, is_text in zip(variables, given["text"], strict=True)},
        "learns": dict(zip(calls, given["learns"].tolist(), strict=True)),
    }  # fmt: skip


def _refuse_unless(fine: Any, what: str) -> None:
    if not fine:
        told = f"the design does not fit this site and its study: {what}"
        raise InputError(told, told)


def _sane(site: str, fine: Any) -> None:
    if not fine:
        raise InputError(f"{site}: what it says of its columns makes no sense; is its fsgld another version?")


def _is_level(level: Any) -> bool:
    return isinstance(level, str) or (isinstance(level, int | float) and type(level) is not bool and _finite([level]))


def _finite(numbers: Any) -> bool:
    try:
        return bool(np.isfinite(np.asarray(list(numbers), float)).all())
    except (TypeError, ValueError):
        return False


def _has_shape(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether nested lists are finite numbers of a shape."""
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        return False
    return array.shape == shape and bool(np.isfinite(array).all())
