"""A GLM as a study for the federation: a folder with a formula and no rows. The sites settle the design when it runs.

`model.py` of such a study holds an `Agreement` in place of `model` and `rows`; `fsgld.engines.flare` carries its
questions to the sites and back. What they settle on is told to every site, and is part of what the run is known by.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from fsgld.errors import InputError, brief, check_whole
from fsgld.glm import settle
from fsgld.glm.agree import complete, said
from fsgld.glm.build import build
from fsgld.glm.design import Design, Rows
from fsgld.glm.evidence import add_evidence
from fsgld.glm.priors import parse_prior
from fsgld.glm.remote import Asker, Desk, Remote
from fsgld.glm.sites import as_table
from fsgld.model import Model
from fsgld.results import Result
from fsgld.study import Study, read_columns

POSITIVE = ("sigma", "phi", "tau")
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

[until]
rhat = 1.01
ess = 400
"""
MODEL = '''\
"""{title}

Family {family}, site effects {effects}. Written by fsgld glm; sites settle levels, means and sds when it runs.
"""

from fsgld.glm.federated import Agreement

agreement = Agreement(
    formula={formula!r},
    family={family!r},
    site_effects={effects!r},
    offset={offset!r},
    trials={trials!r},
    priors={priors!r},
)
'''


@dataclass(frozen=True)
class Agreement:
    """What a study says before its sites have settled on a design; arguments are those of `fsgld.glm`."""

    formula: str
    family: str = "gaussian"
    site_effects: str = "none"
    offset: str | None = None
    trials: str | None = None
    priors: dict[str, str] = field(default_factory=dict)

    def begin(self, sites: Sequence[str]) -> Design:
        """Check all that needs no rows."""
        design = settle.begin(self.formula, self.family, self.site_effects, self.offset, self.trials)
        settle.check_sites(design, len(sites))
        for name, text in self.priors.items():
            parse_prior(text, name in POSITIVE, name)
        return design

    def words(self) -> list[str]:
        """Say what the sites will agree on."""
        lines = [f"formula {self.formula}; family {self.family}, site effects {self.site_effects}"]
        lines += [f"{name} {value}" for name, value in (("offset", self.offset), ("trials", self.trials)) if value]
        return lines + [f"prior: {name} ~ {text}" for name, text in self.priors.items()]

    def read(self, file: Path) -> pd.DataFrame:
        """Read a site's file, as `fsgld glm` does; the columns that the formula names."""
        variables = self.begin(("", "")).parsed.variables
        if file.suffix not in (".npz", ".parquet"):
            return as_table(file, str(file), variables)
        columns = read_columns(file)
        table = as_table({name: columns[name] for name in columns if name in variables}, str(file))
        table.attrs["columns"] = list(columns)
        return table

    def desk(self, site: str, sites: tuple[str, ...], table: pd.DataFrame, least: int) -> Desk:
        """Open a site's desk, which answers questions about its table."""
        return Desk(self.begin(sites), self.priors, site, sites, table, least)

    def settle(self, ask: Asker) -> dict[str, Any]:
        """Settle the design with all sites; give it, and what happened to each site's rows."""
        design, sites = settle.settle(self.begin(ask.sites), self.priors, Remote(ask))
        return {"design": design.to_json(), "sites": sites}

    def said(self, about: dict[str, Any]) -> list[str]:
        """Say what was settled: what happened to each site's rows, and every prior."""
        return said(about["sites"], about["design"]["priors"])

    def model(self, content: dict[str, Any]) -> Model:
        """Build the model of a design; the pilot's while a hierarchy has none yet."""
        design = Design.from_json(content)
        builder = build(design)
        return builder.pilot() if design.site_effects == "hierarchical" and not design.pilot else builder.model()

    def rows(self, content: dict[str, Any], table: pd.DataFrame, site: str) -> Rows:
        """Turn a site's table into the model's rows."""
        design = Design.from_json(content)
        return design.make_rows(complete(table, design.parsed.variables, site), site, design.sites.index(site))

    def options(self, content: dict[str, Any]) -> dict[str, Any]:
        """Give settings for `fsgld.sample`."""
        return settle.options(Design.from_json(content))

    def evidence(self, about: dict[str, Any], result: Result, ask: Asker) -> None:
        """Add what was settled, and ask for what a report shows beside the posterior."""
        result.settings["glm"] = dict(about)
        add_evidence(result, Design.from_json(about["design"]), result.draws, Remote(ask))

    def finish(self, result: Result) -> Result:
        """Give parameters by name and in the user's units."""
        return in_units(result)


def in_units(result: Result) -> Result:
    """Turn a result in inner units into named parameters; `settings["glm"]` has its design."""
    design = Design.from_json(result.settings["glm"]["design"])
    return replace(result, draws=build(design).named(result.draws, int(result.settings.get("seed", 0))))


def write(agreement: Agreement, sites: Sequence[str], folder: str | Path, seed: int = 0, chains: int = 8) -> Path:
    """Write the study's folder, and check that it can be read."""
    agreement.begin(sites)
    check_whole(chains=chains)
    folder, names = Path(folder), [_site_name(site) for site in sites]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"two sites would be named {brief(twice[0])}; give them different names")
    name = re.sub("[^a-z0-9-]", "-", folder.resolve().name.lower()).strip("-")[:40] or "glm"
    title = agreement.formula.replace("\\", " ").replace('"', "'")
    texts = {
        "study.toml": TOML.format(name=name, sites=json.dumps(names), seed=int(seed), chains=int(chains)),
        "model.py": MODEL.format(
            title=title, formula=agreement.formula, family=agreement.family, effects=agreement.site_effects,
            offset=agreement.offset, trials=agreement.trials, priors=agreement.priors,
        ),
    }  # fmt: skip
    try:
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder} is not empty; give another name")
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write the study {folder}: {error.strerror}; choose another folder") from None
    Study.read(folder).check()
    return folder


def _site_name(given: str) -> str:
    """Turn a file's stem or a name into a site's: small letters, digits and hyphens."""
    name = re.sub("[^a-z0-9]+", "-", str(given).lower()).strip("-")[:41]
    if not name or name == "server":
        raise InputError(f"{brief(given)} cannot name a site; use small letters, digits and hyphens, and not 'server'")
    return name
