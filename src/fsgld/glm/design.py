"""The agreed design: all that turns a site's table into the same rows at every site, as plain JSON."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from formulaic import ModelSpec
from formulaic.formula import SimpleFormula
from formulaic.parser.types import Factor

from fsgld.errors import InputError, brief
from fsgld.glm import families
from fsgld.glm.formula import PLAIN, Parsed, parse

Rows = dict[str, np.ndarray]
SITE_EFFECTS = ("none", "separate", "hierarchical")
FORMAT = "fsgld glm design 1"


@dataclass(frozen=True)
class Design:
    """What all sites agreed on; every field is plain data, so that `to_json` and `from_json` carry it to a site.

    Attributes
    ----------
    formula, family, site_effects, offset, trials
        As given to `fsgld.glm`.
    levels
        The levels of every column that is a category.
    success
        The outcome's two levels if it is text; the second is counted as 1.
    learnt
        Mean and sd of what `center` and `scale` are applied to, over all rows.
    columns, centre, scale
        The design's columns without the intercept, their means (0 without an intercept) and sds.
    outcome
        The outcome's mean and sd; for counts the mean is the rate, Σ y/Σ exp(offset).
    average
        The outcome's mean, whatever the family.
    sites, rows
        The sites' names and numbers of rows.
    priors
        From parameter to prior, in words.
    pilot
        Where the hierarchy's coordinates come from: {"theta", "gradient", "precision"} of the log-likelihood.
    """

    formula: str
    family: str
    site_effects: str = "none"
    offset: str | None = None
    trials: str | None = None
    levels: dict[str, list[Any]] | None = None
    success: list[str] | None = None
    learnt: dict[str, list[float]] | None = None
    columns: tuple[str, ...] = ()
    centre: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    outcome: tuple[float, float] = (0.0, 1.0)
    average: float = 0.0
    sites: tuple[str, ...] = ()
    rows: tuple[int, ...] = ()
    priors: dict[str, str] | None = None
    pilot: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the design as plain data."""
        return {"format": FORMAT} | asdict(self)

    @staticmethod
    def from_json(content: Any) -> Design:
        """Read what `to_json` gave."""
        try:
            given = dict(content)
            if given.pop("format") != FORMAT:
                raise ValueError
            names = {field.name for field in fields(Design)}
            lists = ("columns", "centre", "scale", "outcome", "sites", "rows")
            values: Any = {k: tuple(v) if k in lists else v for k, v in given.items() if k in names}
            return Design(**values)
        except (TypeError, ValueError, KeyError, AttributeError):
            raise InputError("this is not a design written by fsgld.glm; make it anew") from None

    @cached_property
    def parsed(self) -> Parsed:
        """The formula, taken apart."""
        return parse(self.formula, self.offset, self.trials)

    @property
    def distribution(self) -> families.Family:
        """The family."""
        return families.get(self.family)

    @property
    def unit(self) -> tuple[float, float]:
        """Shift and unit of the outcome inside the model: (y − shift)/unit."""
        return (self.outcome[0], self.outcome[1]) if self.distribution.has_unit else (0.0, 1.0)

    def matrix(self, table: pd.DataFrame, name: str) -> pd.DataFrame:
        """Make the design's columns from complete rows of a table, without the intercept and not yet scaled."""
        name = where(table, name)
        p, levels, learnt = self.parsed, self.levels or {}, self.learnt or {}
        state = {
            call: {"ddof": 1, "center": learnt[call][0], "scale": learnt[call][1] if function == "scale" else None}
            for call, (function, _) in p.learns.items()
        }
        factors = {f.expr: p.categories.get(f.expr, f.expr) for term in p.terms for f in term.factors}
        coded = {f: (Factor.Kind.CATEGORICAL, {"categories": levels[v]}) for f, v in factors.items() if v in levels}
        coded = {f: code for f, code in coded.items() if f in p.categories or _is_text(table[f])}
        spec = ModelSpec.from_spec(
            SimpleFormula(list(p.terms)), transform_state=state, encoder_state=coded, output="pandas",
            na_action="ignore",
        )  # fmt: skip
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                made = pd.DataFrame(spec.get_model_matrix(table, context=dict(PLAIN)))
            except Exception as error:
                words = " ".join(str(error).split())
                inner = re.search(r"\[\w+: (.*)\]$", words)
                raise InputError(
                    f"{name}: the columns of {brief(self.formula)} cannot be made:"
                    f" {brief(inner.group(1) if inner else words, 160)[1:-1]}"
                ) from None
        made = made.drop(columns="Intercept", errors="ignore").astype(float)
        bad = ~np.isfinite(made.to_numpy())
        if bad.any():
            i, j = (int(k[0]) for k in np.nonzero(bad))
            row = int(table.index[i]) + 1
            raise InputError(
                f"{name}: row {row} gives no finite number in column {made.columns[j]}; mend the row or the formula"
            )
        return made

    def evaluate(self, expr: str, table: pd.DataFrame, name: str) -> np.ndarray:
        """Evaluate the outcome, the offset, the trials or what a function learns from: one number a row."""
        values, name = None, where(table, name)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            try:
                if expr in table:
                    values = table[expr].to_numpy()
                else:
                    code = compile(ast.parse(expr, mode="eval"), "formula", "eval")  # its parts were checked by `parse`
                    values = eval(code, {"__builtins__": {}}, {**PLAIN, "I": lambda x: x, **dict(table.items())})
                numbers = np.broadcast_to(np.asarray(values, float), (len(table),))
            except Exception:
                kind = "text" if values is not None else "not a column or an expression of columns"
                raise InputError(f"{name}: {brief(expr)} must be a number in each row, but it is {kind}") from None
        bad = ~np.isfinite(numbers)
        if bad.any():
            row = int(table.index[int(np.argmax(bad))]) + 1
            raise InputError(f"{name}: row {row} gives no finite number for {brief(expr)}; mend or remove it")
        return numbers

    def observed(self, table: pd.DataFrame, name: str) -> np.ndarray:
        """Give the outcome of complete rows, checked against the family's range."""
        p, family, name = self.parsed, self.distribution, where(table, name)
        if self.success is not None:
            y = (table[p.outcome] == self.success[1]).to_numpy(float)
        else:
            y = self.evaluate(p.outcome, table, name)
        trials = self.evaluate(self.trials, table, name) if self.trials else None
        bad, should = families.wrong_rows(family, y, trials)
        if bad.any():
            i = int(np.argmax(bad))
            also = f" out of {trials[i]:g}" if trials is not None else ""
            raise InputError(
                f"{name}: row {int(table.index[i]) + 1} has {p.outcome} = {y[i]:.6g}{also}, but family {self.family}"
                f" needs {should}"
            )
        return y

    def make_rows(
        self, table: pd.DataFrame, name: str, site: int | None, outcome: bool = True
    ) -> dict[str, np.ndarray]:
        """Turn complete rows of a table into the model's rows, scaled; `site` is the site's place in `sites`."""
        x = (self.matrix(table, name)[list(self.columns)].to_numpy() - np.array(self.centre)) / np.array(self.scale)
        rows = {"x": x}
        shift, unit = self.unit
        if outcome:
            rows["y"] = (self.observed(table, name) - shift) / unit
        if self.parsed.offset:
            rows["offset"] = self.evaluate(self.parsed.offset, table, name) / unit
        if self.trials:
            rows["trials"] = self.evaluate(self.trials, table, name)
        rows = {key: np.ascontiguousarray(column, np.float32) for key, column in rows.items()}
        if self.site_effects != "none" and site is not None:
            rows["site"] = np.full(len(table), site, np.int32)
        return rows

    def with_pilot(self, theta: Any, gradient: Any, precision: Any) -> Design:
        """Add where a hierarchy's coordinates come from: the log-likelihood's gradient and −Hessian at `theta`."""
        arrays = {"theta": theta, "gradient": gradient, "precision": precision}
        return replace(self, pilot={key: np.asarray(value, float).tolist() for key, value in arrays.items()})


def where(table: pd.DataFrame, name: str) -> str:
    """Name a table in messages: by its file, else by the site."""
    return str(table.attrs.get("file", name))


def _is_text(column: pd.Series) -> bool:
    """Whether a column holds text."""
    return column.dtype.kind not in "fiub"
