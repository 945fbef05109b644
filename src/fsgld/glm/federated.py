"""A GLM as a study for the federation: a folder whose `model.py` holds the agreed design, and no rows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fsgld.errors import InputError, brief
from fsgld.glm import Glm
from fsgld.glm.agree import complete
from fsgld.glm.build import build
from fsgld.glm.design import Design, Rows
from fsgld.glm.sites import as_table
from fsgld.glm.tables import to_numbers
from fsgld.model import Model
from fsgld.results import Result
from fsgld.study import Study

TOML = """\
# A GLM across sites, written by fsgld glm. This file and model.py are all that the sites get to run: read both.
name = "{name}"
sites = {sites}
precision = "float64"

[coordinator]
host = "localhost"  # the name under which sites reach the coordinator
port = 8002

[sampling]
chains = {chains}
seed = {seed}
{probs}
[until]
rhat = 1.01
ess = 400
"""
MODEL = '''\
"""{formula}

Family {family}, site effects {effects}. Written by fsgld glm: DESIGN is what the sites agreed on.
"""

import json

from fsgld.glm import federated

DESIGN = json.loads(r"""
{design}
""")
SITES = json.loads(r"""
{sites}
""")


def model(priors):
    """Give the model."""
    return federated.model(DESIGN)


def rows(table, site):
    """Turn a site's columns into rows."""
    return federated.rows(DESIGN, table, site)


def finish(result):
    """Give parameters by name and in the user's units."""
    return federated.finish(DESIGN, SITES, result)
'''


def write(made: Glm, folder: str | Path, seed: int = 0, chains: int = 4) -> Path:
    """Write the study's folder and check that it can be read."""
    folder = Path(folder)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} is not empty; give another name")
        folder.mkdir(parents=True, exist_ok=True)
        for site in made.design.sites:
            if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", site) or site == "server":
                raise InputError(
                    f"in a study sites are named with small letters, digits and hyphens; got {brief(site)}"
                )
        probs = "" if isinstance(made.probs, str) else f"probs = {[round(float(f), 12) for f in made.probs]}\n"
        name = re.sub("[^a-z0-9-]", "-", folder.resolve().name.lower()).strip("-")[:40] or "glm"
        sites = json.dumps(list(made.design.sites))
        (folder / "study.toml").write_text(
            TOML.format(name=name, sites=sites, seed=int(seed), chains=int(chains), probs=probs), encoding="utf-8"
        )
        text = MODEL.format(
            formula=made.design.formula.replace("\\", " ").replace('"""', "'"), family=made.design.family,
            effects=made.design.site_effects, design=json.dumps(made.design.to_json(), indent=1),
            sites=json.dumps(made.sites, indent=1),
        )  # fmt: skip
        (folder / "model.py").write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the study {folder}: {error.strerror}; choose another folder") from None
    Study.read(folder).model()
    return folder


def model(design: dict[str, Any]) -> Model:
    """Build the model from a design's JSON."""
    return build(Design.from_json(design)).model()


def rows(design: dict[str, Any], table: dict[str, np.ndarray], site: str) -> Rows:
    """Turn a site's columns into the model's rows; incomplete rows are dropped."""
    agreed = Design.from_json(design)
    if site not in agreed.sites:
        raise InputError(f"the design has no site {brief(site)}; it has {', '.join(agreed.sites)}")
    used = {name: to_numbers(column) for name, column in table.items() if name in agreed.parsed.variables}
    frame = as_table(used, site)
    frame.attrs["columns"] = list(table)
    whole = complete(frame, agreed.parsed.variables, site)
    for variable, levels in (agreed.levels or {}).items():
        if not whole[variable].isin(levels).all():
            raise InputError(f"{site}: column {variable} has a level that was not agreed on; agree on the design anew")
    if not len(whole):
        raise InputError(f"{site}: no rows are left after dropping those with missing values")
    return agreed.make_rows(whole, site, agreed.sites.index(site))


def finish(design: dict[str, Any], sites: list[dict[str, Any]], result: Result) -> Result:
    """Turn a result of the study into named parameters, with the design."""
    agreed = Design.from_json(design)
    draws = build(agreed).named(result.draws, int(result.settings.get("seed", 0)))
    return replace(result, draws=draws, settings=result.settings | {"glm": {"design": design, "sites": sites}})
