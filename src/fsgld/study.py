"""A study is a folder: `study.toml` says who takes part and how to sample, `model.py` holds the model.

`model.py` has two functions: `model(priors)` returns a `fsgld.Model`, and `rows(table)` turns the columns of a site's
file, a dict of arrays, into the rows that the model's likelihood takes (`rows(table, site)` if it matters whose they
are). An optional `finish(result)` is run where the result is. Both are run at the sites, so a site's
owner reads them before joining; the digest of the two files is in every message.

Where the model depends on what all sites have, as columns of a formula do, `model.py` has an `agreement` instead (see
`fsgld.glm.federated`): the sites settle on plain data first, and `settled` gives the study that follows from them.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import json
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fsgld.errors import InputError, brief, check_whole, first_line, is_number

Columns = dict[str, np.ndarray]
FILES = ("study.toml", "model.py")
SETTINGS = (
    "surrogates", "step_size", "batch_size", "local_steps", "rounds", "chains", "probs", "mini_batches", "alpha",
    "thin", "burn_in", "max_rounds", "seed", "dynamics", "schedule", "friction", "decay", "floor", "likelihood",
    "refresh",
)  # fmt: skip
"""Arguments of `fsgld.sample` that a study may set; parts by their names, with their numbers beside them."""

NAMES = {
    "surrogates": ("auto", "none", "diagonal", "linear"), "dynamics": ("langevin", "whitened", "sghmc", "psgld"),
    "likelihood": ("plain", "control_variate"), "refresh": ("never", "on_visit"),
}  # fmt: skip

TEMPLATE_TOML = """\
# A study across sites. This file and model.py are all that the sites get to run: read both.
name = "{name}"
sites = ["north", "south", "west"]  # who takes part; each gets a start-up kit of this name
precision = "float64"

[coordinator]
host = "localhost"  # the name under which sites reach the coordinator
port = 8002

[priors]  # handed to model(priors) in model.py
sd = 1.0

[sampling]  # arguments of fsgld.sample; what is not given is chosen by the pre-flight
chains = 8
seed = 0

[until]  # stop when all R-hat and effective sample sizes are good enough
rhat = 1.01
ess = 400

[patience]  # seconds
message = 60  # for a site's answer, each time
retries = 1  # before a site counts as away
join = 600  # for sites to connect, and for the coordinator to come back
absence = 86400  # for a site to wait for a coordinator that is not there, before it stops
"""
TEMPLATE_MODEL = '''\
"""Logistic regression of `y` on `x1` and `x2`. Rows stay at their site; these functions come to them."""

import jax.numpy as jnp
import numpy as np

import fsgld


def model(priors):
    """Give the model: log prior, log-likelihood of ONE row, and a start."""
    return fsgld.Model(
        log_prior=lambda p: -0.5 * (jnp.sum(p["w"] ** 2) + p["b"] ** 2) / priors["sd"] ** 2,
        log_likelihood=lambda p, row: -jnp.logaddexp(0.0, (1 - 2 * row["y"]) * (row["x"] @ p["w"] + p["b"])),
        init={"w": jnp.zeros(2), "b": jnp.zeros(())},
    )


def rows(table):
    """Turn a site's columns into rows; columns that are not used here are not read by anything."""
    return {"x": np.stack([table["x1"], table["x2"]], axis=1), "y": table["y"]}
'''


@dataclass(frozen=True)
class Study:
    """A study that was read from its folder and checked."""

    name: str
    sites: tuple[str, ...]
    host: str
    port: int
    precision: str
    digest: str
    settings: dict[str, Any]
    until: dict[str, float] | None
    patience: dict[str, float]
    priors: dict[str, Any]
    folder: Path
    code: dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @staticmethod
    def read(folder: str | Path) -> Study:
        """Read and check the folder of a study; the model is not run yet."""
        folder = Path(folder).resolve()
        for name in FILES:
            if not (folder / name).is_file():
                raise InputError(f"{folder} has no {name}; a study is a folder with {' and '.join(FILES)}"
                                 " (fsgld study new makes one)")  # fmt: skip
        try:
            given = tomllib.loads((folder / "study.toml").read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{folder / 'study.toml'} is not TOML: {first_line(error)}") from None
        known = {"name", "sites", "precision", "coordinator", "priors", "sampling", "until", "patience"}
        _only(given, known, "study.toml")
        _only(given.get("sampling", {}), set(SETTINGS), "[sampling]")
        sha = hashlib.sha256()
        for name in FILES:
            content = (folder / name).read_bytes()
            sha.update(f"{name} {len(content)}\n".encode() + content)
        centre = {"host": "localhost", "port": 8002} | given.get("coordinator", {})
        patience = {"message": 60.0, "retries": 1, "join": 600.0, "absence": 86400.0} | given.get("patience", {})
        _only(patience, {"message", "retries", "join", "absence"}, "[patience]")
        study = Study(
            given.get("name", folder.name), tuple(given.get("sites", ())), centre["host"], centre["port"],
            given.get("precision", "float64"), sha.hexdigest(), dict(given.get("sampling", {})), given.get("until"),
            patience, given.get("priors", {}), folder,
        )  # fmt: skip
        _check(study)
        return study

    @property
    def agreement(self) -> Any:
        """What `model.py` leaves for the sites to settle, or None."""
        self._load()
        return self.code.get("agreement")

    def check(self) -> None:
        """Run what needs no data, to find mistakes early."""
        if self.agreement is None:
            self.model()
        else:
            self.agreement.begin(self.sites)

    def settled(self, content: dict[str, Any]) -> Study:
        """Give the study with what its sites have settled on; its digest says so."""
        self._load()
        digest = hashlib.sha256(f"{self.digest} {json.dumps(content, sort_keys=True)}".encode()).hexdigest()
        kept = self.code.setdefault("settled", {})  # a model finds its compiled programs again
        if digest not in kept:
            code = {"agreement": self.agreement, "content": content, "made": self.agreement.model(content)}
            settings = self.agreement.options(content) | self.settings
            kept[digest] = replace(self, digest=digest, settings=settings, code=code)
        return kept[digest]

    def model(self) -> Any:
        """Run `model(priors)`, once: the same functions find their compiled programs again."""
        from fsgld.model import Model

        if "made" not in self.code and self.agreement is not None:
            raise InputError("the sites have not agreed on this study's columns yet; fsgld run lets them")
        if "made" not in self.code:
            found = self._call("model", self.priors)
            if not isinstance(found, Model):
                raise InputError(f"model(priors) in model.py must return a fsgld.Model; it returns {brief(found, 60)}")
            self.code["made"] = found
        return self.code["made"]

    def rows(self, table: Columns, site: str = "") -> Any:
        """Run `rows(table)`, or `rows(table, site)` where the site matters, on a site's columns."""
        if self.agreement is not None:
            return self.agreement.rows(self.code["content"], table, site)
        more = (site,) if len(inspect.signature(self.code["rows"]).parameters) == 2 else ()
        return self._call("rows", table, *more)

    def finish(self, result: Any) -> Any:
        """Run `finish(result)`, if model.py has one: parameters in the user's units, say."""
        if self.agreement is not None:
            return self.agreement.finish(result)
        return self._call("finish", result) if "finish" in self.code else result

    def _load(self) -> None:
        if not self.code:
            self.code.update(_functions(self.folder / "model.py"))

    def _call(self, name: str, *args: Any) -> Any:
        self._load()
        try:
            return self.code[name](*args)
        except KeyError as error:
            raise InputError(f"{name} in model.py asks for {error}, which is not there") from None
        except Exception as error:
            raise InputError(f"{name} in model.py fails: {first_line(error)}") from error


def new(folder: str | Path) -> Path:
    """Write a small study to begin with."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; give another name")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(
        TEMPLATE_TOML.format(name=re.sub("[^a-z0-9-]", "-", folder.resolve().name.lower()))
    )
    (folder / "model.py").write_text(TEMPLATE_MODEL)
    return folder


def read_columns(file: str | Path) -> Columns:
    """Read a site's data: CSV, Parquet or NPZ; a dict of columns (first axis: rows)."""
    file = Path(file)
    if not file.is_file():
        raise InputError(f"there is no file {file}")
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        if file.suffix == ".parquet":
            from pyarrow import parquet

            table = parquet.read_table(file)
            return {name: table[name].to_numpy() for name in table.column_names}
        if file.suffix == ".csv":
            with file.open(newline="", encoding="utf-8-sig") as stream:
                header, *lines = csv.reader(stream)
            return {name: _column([line[i] for line in lines if line]) for i, name in enumerate(header)}
    except ImportError:
        raise InputError(f"{file} needs pyarrow: pip install 'fsgld[data]'") from None
    except (ValueError, OSError, IndexError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read ({type(error).__name__}); is it a whole {file.suffix} file?") from None
    raise InputError(f"{file} must end in .csv, .parquet or .npz")


def _column(cells: list[str]) -> np.ndarray:
    """Read cells as numbers if all of them are, else as text."""
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array(cells)


def _functions(file: Path) -> dict[str, Any]:
    """Run model.py and take its functions."""
    space: dict[str, Any] = {"__name__": "fsgld_study_model", "__file__": str(file)}
    try:
        exec(compile(file.read_text(), str(file), "exec"), space)
    except Exception as error:
        raise InputError(f"{file} fails: {first_line(error)}") from error
    if "agreement" in space:
        return {"agreement": space["agreement"]}
    for name in ("model", "rows"):
        most = 1 if name == "model" else 2
        if not callable(space.get(name)) or not 1 <= len(inspect.signature(space[name]).parameters) <= most:
            raise InputError(f"{file} must have a function {name} of one argument; see fsgld study new")
    return {name: space[name] for name in ("model", "rows", "finish") if callable(space.get(name))}


def _check(study: Study) -> None:
    """Check what study.toml says."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", str(study.name)):
        raise InputError(f"name must be small letters, digits and hyphens; got {brief(study.name)}")
    if len(study.sites) < 1 or len(set(study.sites)) < len(study.sites):
        raise InputError(f"sites must be different names, one a site; got {brief(list(study.sites))}")
    for site in study.sites:
        if not isinstance(site, str) or not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", site) or site == "server":
            raise InputError(f"sites are named with small letters, digits and hyphens; got {brief(site)}")
    if study.precision not in ("float32", "float64"):
        raise InputError(f'precision must be "float32" or "float64"; got {brief(study.precision)}')
    if not isinstance(study.host, str) or not re.fullmatch(r"[A-Za-z0-9.-]{1,200}", study.host):
        raise InputError(f"host must be a host name; got {brief(study.host)}")
    check_whole(port=study.port)
    check_whole(0, retries=study.patience["retries"])
    for name in ("message", "join", "absence"):
        if not is_number(study.patience[name]) or study.patience[name] <= 0:
            raise InputError(f"patience.{name} must be a number of seconds; got {brief(study.patience[name])}")
    for name, known in NAMES.items():
        if study.settings.get(name, known[0]) not in known:
            given = brief(study.settings[name])
            raise InputError(f"{name} must be one of {', '.join(known)} in a study; got {given}")


def _only(given: Any, known: set[str], where: str) -> None:
    """Refuse names that mean nothing here."""
    if not isinstance(given, dict):
        raise InputError(f"{where} must be a table; got {brief(given)}")
    for name in given:
        if name not in known:
            raise InputError(f"{where} has an unknown name {name!r}; known are {', '.join(sorted(known))}")
