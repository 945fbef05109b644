"""A small study with three unequal sites, and a transport that stays in this process; shared by the tests of flare."""

import numpy as np

from fsgld.engines.flare.site import Site
from fsgld.study import Study

NAMES = ("east", "north", "west")
SIZES = (30, 70, 20)
MODEL = """
import jax.numpy as jnp
import numpy as np
import fsgld


def model(priors):
    return fsgld.Model(
        log_prior=lambda p: -0.5 * (jnp.sum(p["w"] ** 2) + p["b"] ** 2) / priors["sd"] ** 2,
        log_likelihood=lambda p, row: -jnp.logaddexp(0.0, (1 - 2 * row["y"]) * (row["x"] @ p["w"] + p["b"])),
        init={"w": jnp.zeros(2), "b": jnp.zeros(())},
    )


def rows(table):
    return {"x": np.stack([table["x1"], table["x2"]], axis=1), "y": table["y"]}
"""
QUICK = {
    "chains": 4,
    "seed": 3,
    "rounds": 12,
    "local_steps": 5,
    "batch_size": 8,
    "step_size": 0.1,
    "probs": [0.2, 0.5, 0.3],
}


def columns(s, n=None, marked=False):
    """The file of site s; its first three rows may be marked, with values that can be recognised."""
    rng = np.random.default_rng(s)
    n = SIZES[s] if n is None else n
    x = rng.normal(size=(n, 2))
    y = rng.uniform(size=n) < 1 / (1 + np.exp(-x @ rng.normal(size=2)))
    if marked:
        x[:3] = marks(s)
    return {"x1": x[:, 0], "x2": x[:, 1], "y": y * 1.0}


def marks(s):
    """Values that nothing else has: three rows."""
    return np.array([[1.234567891, -0.987654321], [0.765432198, 1.357924681], [-1.192837465, 0.864213579]]) + 0.0101 * s


def needles():
    """All marks as they would look in a message or a file: both precisions, both orders of bytes, and as text."""
    found = set()
    for s in range(len(NAMES)):
        rows = marks(s)
        for value in rows.ravel():
            found |= {np.float64(value).tobytes(), np.float64(value).byteswap().tobytes()}
            found |= {f"{abs(value):.7f}"[:-1].encode(), repr(float(value)).encode()}
        for pair in (*rows, *rows.T[:, :2]):  # four bytes alone turn up by chance
            found |= {pair.astype(order + "f4").tobytes() for order in "<>"}
    return sorted(found)


def write_study(folder, port=8002, patience=None, until=None, name="small", sites=NAMES, **sampling):
    """Write a study's folder and read it."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "coordinator": {"host": "localhost", "port": port}, "priors": {"sd": 2.0}, "sampling": sampling or QUICK,
        "patience": {"message": 20.0, "retries": 1, "join": 120.0} | (patience or {}),
    } | ({"until": until} if until else {})  # fmt: skip
    lines = [f'name = "{name}"', f"sites = {list(sites)}".replace("'", '"'), 'precision = "float64"']
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {toml(value)}" for key, value in values.items())]
    (folder / "study.toml").write_text("\n".join(lines) + "\n")
    (folder / "model.py").write_text(MODEL)
    return Study.read(folder)


def toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(one)}" for name, one in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


def shards(study, marked=False):
    """The data as `fsgld.sample` takes them."""
    return {name: study.rows(columns(s, marked=marked), name) for s, name in enumerate(NAMES)}


def make_sites(study, folder, limits=None):
    return {
        name: Site(name, study, study.rows(columns(s), name), folder / name, limits) for s, name in enumerate(NAMES)
    }


class Wire:
    """Carries bytes to sites in this process; `fault(site, data)` may raise, or give other bytes instead."""

    def __init__(self, sites, fault=lambda site, data, answer: answer()):
        self.sites, self.fault, self.sent = sites, fault, []

    def __call__(self, site, data, timeout):
        def answer():
            reply = self.sites[site].answer(data)
            self.sent.append((site, data, reply))
            return reply

        return self.fault(site, data, answer)
