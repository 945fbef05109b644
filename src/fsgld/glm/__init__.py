"""Generalised linear models across silos: a formula, one table a site, no row leaves.

`fsgld.glm(formula, family, tables)` agrees on the columns and gives a `Glm`: the model, the design, the sites' rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsgld.errors import InputError, brief

try:
    import formulaic  # noqa: F401
except ImportError:
    raise ImportError("formulas need formulaic: pip install 'fsgld[glm]'") from None

from fsgld.glm import agree as _agree
from fsgld.glm import families
from fsgld.glm.build import Builder, build, choose_priors
from fsgld.glm.design import SITE_EFFECTS, Design
from fsgld.glm.sites import as_table
from fsgld.model import Model
from fsgld.results import Result

__all__ = ["Design", "Glm", "glm"]


@dataclass(frozen=True)
class Glm:
    """A model across sites with all that was agreed.

    Attributes
    ----------
    design
        Columns, levels, scales and priors, as plain data: `design.to_json()`.
    model, shards
        For `fsgld.sample(glm.model, glm.shards)`; its draws are in inner units.
    sites
        What happened to each site's rows.
    """

    design: Design
    model: Model
    shards: dict[str, dict[str, np.ndarray]]
    sites: list[dict[str, Any]]

    @property
    def probs(self) -> Any:
        """How often sites are visited: half evenly, half by rows where intercepts are their own; else "auto"."""
        if self.design.site_effects == "none":
            return "auto"
        rows = np.array(self.design.rows, float)
        return 0.5 * rows / rows.sum() + 0.5 / len(rows)

    @property
    def options(self) -> dict[str, Any]:
        """Settings for `fsgld.sample`: a hierarchy has heavy-tailed remainders, and short visits cost nothing here."""
        return {"probs": self.probs} | ({"local_steps": 1} if self.design.site_effects == "hierarchical" else {})

    def sample(self, **options: Any) -> Result:
        """Sample with `fsgld.sample`; parameters come back by name and in the user's units."""
        from fsgld.sample import sample

        return self.in_units(sample(self.model, self.shards, **(self.options | options)))

    def in_units(self, result: Result) -> Result:
        """Turn a result of `fsgld.sample(glm.model, glm.shards)` into named parameters; the design goes with it."""
        from fsgld.glm.federated import finish

        return finish(self.design.to_json(), self.sites, result)


def glm(
    formula: str,
    family: str = "gaussian",
    tables: Mapping[str, Any] | None = None,
    *,
    site_effects: str = "none",
    offset: str | None = None,
    trials: str | None = None,
    priors: Mapping[str, str] | None = None,
    least: int = 1,
    skip: bool = False,
) -> Glm:
    """Agree on a design across sites and build the model.

    Parameters
    ----------
    formula
        "outcome ~ a + b*c + C(d) + bs(e, knots=[...], lower_bound=..., upper_bound=...) + offset(log(exposure))".
    family
        "gaussian", "bernoulli", "binomial", "poisson" or "negative_binomial".
    tables
        From site to its table: a path, a DataFrame, or a dict of columns.
    site_effects
        "none"; "separate" intercepts; or "hierarchical": u_s ~ N(0, tau²), tau unknown.
    offset, trials
        An expression that is added to the linear predictor; the column with the number of trials (binomial).
    priors
        From parameter ("age", "coefficients" for all, "Intercept", "sigma", "phi", "tau") to its prior, as
        "normal(0, 1)", "student_t(4, 0, 1)", "half_normal(1)", "half_t(3, 1)", "exponential(1)". The Intercept's
        is for predictors at their means.
    least
        Counts below this are withheld from a site's summary, and sites with fewer rows refused.
    skip
        Leave out sites that cannot be used (no rows, no such column) instead of refusing; `sites` says so.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 20)
    >>> tables = {"a": {"x": x, "y": 2 * x + np.sin(9 * x)}, "b": {"x": x, "y": 2 * x + np.cos(9 * x)}}
    >>> model = glm("y ~ x", "gaussian", tables, site_effects="hierarchical")
    >>> model.design.columns
    ('x',)
    """
    design = start_design(formula, family, site_effects, offset, trials)
    if not isinstance(tables, Mapping) or not tables:
        raise InputError(f"tables must be a dict from site to table, with one at least; got {brief(tables, 40)}")
    if site_effects != "none" and len(tables) < 2:
        raise InputError(f"{site_effects} site effects need two sites at least; got {len(tables)}")
    read, first, left_out = _describe_all(design, tables, least, skip)
    if site_effects != "none" and len(first) < 2:
        raise InputError(f"{site_effects} site effects need two usable sites at least; {left_out[0]['reason']}")
    design = _agree.agree(design, first)
    second = [_agree.moments(table, design, name) for name, table in read.items()]
    design = _agree.settle(design, second)
    design = replace(design, priors=choose_priors(design, dict(priors or {})))
    whole = {name: _agree.complete(table, design.parsed.variables, name) for name, table in read.items()}
    shards = {name: design.make_rows(table, name, i) for i, (name, table) in enumerate(whole.items())}
    if site_effects == "hierarchical":
        design = add_pilot(design, shards)
    return Glm(design, build(design).model(), shards, _agree.report(design, first, second) + left_out)


def _describe_all(
    design: Design, tables: Mapping[str, Any], least: int, skip: bool
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Read and describe all sites; give tables, summaries, and what was left out."""
    read, first, left_out = {}, [], []
    for name, given in tables.items():
        try:
            table = as_table(given, str(name), design.parsed.variables)
            first.append(_agree.describe(table, design, str(name), least))
            read[str(name)] = table
        except InputError as error:
            if not skip:
                raise
            left_out.append({"site": str(name), "rows": 0, "reason": str(error)})
    if not first:
        raise InputError(f"no site can be used; {left_out[0]['reason']}")
    return read, first, left_out


def start_design(formula: str, family: str, site_effects: str, offset: str | None, trials: str | None) -> Design:
    """Check what needs no rows."""
    kind = families.get(family)
    if site_effects not in SITE_EFFECTS:
        raise InputError(f"site_effects must be one of {', '.join(SITE_EFFECTS)}; got {brief(site_effects)}")
    if (kind.name == "binomial") != (trials is not None):
        raise InputError("family binomial needs trials, the column with the number of trials; no other family takes it")
    design = Design(formula, kind.name, site_effects, offset, trials)
    if site_effects != "none" and not design.parsed.intercept:
        raise InputError(f"{site_effects} site effects are intercepts, but the formula has none; take the 0 or -1 out")
    return design


def add_pilot(design: Design, shards: dict[str, dict[str, np.ndarray]]) -> Design:
    """Fit the pilot model by federated Newton, and keep the log-likelihood's gradient and −Hessian at its mode."""
    from jax.flatten_util import ravel_pytree

    from fsgld import newton
    from fsgld.shards import gather

    model, table = build(design).pilot(), gather(shards)
    mode = newton.find_mode(model.flatten(), ravel_pytree(model.start())[0], table)
    q, theta = mode.surrogates.total(), np.asarray(mode.theta, float)
    P = np.asarray(q.precision, float)
    return design.with_pilot(theta, np.asarray(q.shift, float) - P @ theta, (P + P.T) / 2)


def rebuild(content: dict[str, Any]) -> Builder:
    """Build a model from a design's JSON, as a site does."""
    return build(Design.from_json(content))
