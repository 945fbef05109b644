"""How sites settle a design: one walk through all questions, whether the tables are here or at their sites.

`settle` asks `Sites`: for descriptions, for moments with the levels agreed, and, for a hierarchy, for derivatives of
the pilot model's log-likelihood. `Here` answers from tables in this process; `fsgld.glm.remote` asks by messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pandas as pd

from fsgld.errors import InputError, brief
from fsgld.glm import agree, families
from fsgld.glm.agree import Summary
from fsgld.glm.build import build, choose_priors
from fsgld.glm.design import SITE_EFFECTS, Design
from fsgld.glm.sites import as_table
from fsgld.rows import Shards, gather


class Sites(Protocol):
    """Whoever answers questions about the sites' tables."""

    def describe(self, design: Design) -> list[Summary]:
        """Give round 1 of `fsgld.glm.agree`."""

    def moments(self, design: Design) -> list[Summary]:
        """Give round 2."""

    def table(self, design: Design) -> Shards:
        """Give the rows that a design makes, or who answers for them."""


def begin(formula: str, family: str, site_effects: str, offset: str | None, trials: str | None) -> Design:
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


def check_sites(design: Design, count: int) -> None:
    """Refuse intercepts of sites where there is one site only."""
    if design.site_effects != "none" and count < 2:
        raise InputError(f"{design.site_effects} site effects need two sites at least; got {count}")


def settle(design: Design, priors: Mapping[str, str], sites: Sites) -> tuple[Design, list[Summary]]:
    """Settle a design that `begin` gave; give it, and what happened to each site's rows."""
    first = sites.describe(design)
    design = agree.agree(design, first)
    second = sites.moments(design)
    design = agree.settle(design, second)
    design = replace(design, priors=choose_priors(design, dict(priors)))
    if design.site_effects == "hierarchical":
        design = add_pilot(design, sites.table(design))
    return design, agree.report(design, first, second)


def add_pilot(design: Design, table: Shards) -> Design:
    """Fit the pilot model by federated Newton, and keep the log-likelihood's gradient and −Hessian at its mode."""
    from fsgld import newton
    from fsgld.model import ravel

    model = build(design).pilot()
    mode = newton.find_mode(model.flatten(), ravel(model.start()), table)
    q, theta = mode.surrogates.total(), np.asarray(mode.theta, float)
    P = np.asarray(q.precision, float)
    return design.with_pilot(theta, np.asarray(q.shift, float) - P @ theta, (P + P.T) / 2)


def options(design: Design) -> dict[str, Any]:
    """Give settings for `fsgld.sample`.

    Where intercepts are their own, sites are visited half evenly, half by rows; a hierarchy has heavy-tailed
    remainders, and its visits are short.
    """
    if design.site_effects == "none":
        return {}
    rows = np.array(design.rows, float)
    probs = (0.5 * rows / rows.sum() + 0.5 / len(rows)).tolist()
    return {"probs": probs} | ({"local_steps": 1} if design.site_effects == "hierarchical" else {})


class Here:
    """Sites whose tables are in this process."""

    def __init__(self, tables: Mapping[str, Any], least: int, skip: bool) -> None:
        self.given, self.least, self.skip = tables, least, skip
        self.read: dict[str, pd.DataFrame] = {}
        self.left_out: list[Summary] = []

    def describe(self, design: Design) -> list[Summary]:
        """Read and describe all tables; those that cannot be used are left out, or refused."""
        found = []
        for name, given in self.given.items():
            try:
                table = as_table(given, str(name), design.parsed.variables)
                found.append(agree.describe(table, design, str(name), self.least))
                self.read[str(name)] = table
            except InputError as error:
                if not self.skip:
                    raise
                self.left_out.append({"site": str(name), "rows": 0, "reason": str(error)})
        if not found:
            raise InputError(f"no site can be used; {self.left_out[0]['reason']}")
        if design.site_effects != "none" and len(found) < 2:
            raise InputError(
                f"{design.site_effects} site effects need two usable sites at least; {self.left_out[0]['reason']}"
            )
        return found

    def moments(self, design: Design) -> list[Summary]:
        """Sum up every table's columns."""
        return [agree.moments(table, design, name, self.least) for name, table in self.read.items()]

    def rows(self, design: Design) -> dict[str, dict[str, np.ndarray]]:
        """Make the model's rows."""
        whole = {name: agree.complete(table, design.parsed.variables, name) for name, table in self.read.items()}
        return {name: design.make_rows(table, name, i) for i, (name, table) in enumerate(whole.items())}

    def table(self, design: Design) -> Shards:
        """Put the rows into one table."""
        return gather(self.rows(design))
