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

from fsgld.glm import settle
from fsgld.glm.build import build
from fsgld.glm.design import Design
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
    def options(self) -> dict[str, Any]:
        """Settings for `fsgld.sample`."""
        return settle.options(self.design)

    def sample(self, **options: Any) -> Result:
        """Sample with `fsgld.sample`; parameters come back by name and in the user's units."""
        from fsgld.sample import sample

        return self.in_units(sample(self.model, self.shards, **(self.options | options)))

    def in_units(self, result: Result) -> Result:
        """Turn a result of `fsgld.sample(glm.model, glm.shards)` into named parameters; the design goes with it."""
        from fsgld.glm.federated import in_units

        about = {"design": self.design.to_json(), "sites": self.sites}
        return in_units(replace(result, settings=result.settings | {"glm": about}))


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
        Levels, outcomes and design columns that fewer rows of a site have are refused, and so are sites with fewer.
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
    design = settle.begin(formula, family, site_effects, offset, trials)
    if not isinstance(tables, Mapping) or not tables:
        raise InputError(f"tables must be a dict from site to table, with one at least; got {brief(tables, 40)}")
    settle.check_sites(design, len(tables))
    here = settle.Here(tables, least, skip)
    design, sites = settle.settle(design, priors or {}, here)
    return Glm(design, build(design).model(), here.rows(design), sites + here.left_out)
