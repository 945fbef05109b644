"""`make federation`: a coordinator and three hospitals as separate processes on this machine, with mutual TLS.

The study is examples/heart; the data are the heart-disease hospitals if they are there (`fsgld data get
heart_disease`), else generated. The draws are compared with those of the compiled engine on the same data.
"""

from __future__ import annotations

import csv
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fsgld import Result, data
from fsgld.engines.flare.arguments import arguments
from fsgld.sample import sample
from fsgld.study import Study, read_columns

COLUMNS = ("age", "sex", "thalach", "exang", "oldpeak", "num")
START_SECONDS = 60.0


def main(example: Path, folder: Path) -> None:
    """Make a study folder, start everything, run, compare, and stop everything."""
    begin = time.monotonic()
    study = prepare(example, folder)
    result = federate(study, folder)
    print(f"{time.monotonic() - begin:.0f} seconds; {_compare(study, folder, result)}")


def federate(study: Study, folder: Path, **settings: Any) -> Result:
    """Start the coordinator and all sites as commands, run the study, and stop everything; settings are the run's."""
    commands = [_start(folder, "coordinator", str(study.folder))]
    try:
        _wait_for(study.folder / "coordinator" / "provisioned.json")
        commands += [
            _start(folder, "site", str(study.folder / "kits" / site), "--data", str(folder / f"{site}.csv"))
            for site in study.sites
        ]
        subprocess.run([sys.executable, "-m", "fsgld", "run", str(study.folder)], check=True, **settings)
    finally:
        for command in commands:
            command.terminate()
        for command in commands:
            command.wait(20)
    return Result.load(study.folder / "result.npz")


def prepare(example: Path, folder: Path) -> Study:
    """Copy the example and write one file a site; ports that are in use are avoided."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "study", ignore_errors=True)
    shutil.copytree(example, folder / "study")
    toml = folder / "study" / "study.toml"
    toml.write_text(toml.read_text().replace("port = 8002", f"port = {_free_port()}"))
    study = Study.read(folder / "study")
    for s, site in enumerate(study.sites):
        table = _hospital(site, s)
        with (folder / f"{site}.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(COLUMNS)
            writer.writerows(zip(*(table[name] for name in COLUMNS), strict=True))
    return study


def _hospital(site: str, s: int) -> dict[str, np.ndarray]:
    """Take a hospital's patients, or make some up."""
    if data.where("heart_disease"):
        table = data.load("heart_disease")
        return {name: table[name][table["site"] == site] for name in COLUMNS}
    rng = np.random.default_rng(s)
    n = (300, 290, 200)[s % 3]
    made = {
        "age": rng.normal(54, 9, n).round(), "sex": rng.integers(0, 2, n), "thalach": rng.normal(138, 25, n).round(),
        "exang": rng.integers(0, 2, n), "oldpeak": rng.gamma(1.0, 1.0, n).round(1),
    }  # fmt: skip
    chance = 1 / (1 + np.exp(-(made["sex"] + made["exang"] + 0.6 * made["oldpeak"] - 1.5 + 0.3 * s)))
    return made | {"num": (rng.uniform(size=n) < chance) * 1}


def _compare(study: Study, folder: Path, result: Result) -> str:
    """Run the compiled engine on the same data in this process, and say how far the draws are apart."""
    import jax

    update: Any = jax.config.update
    update("jax_enable_x64", True)
    shards = {site: study.rows(read_columns(folder / f"{site}.csv"), site) for site in study.sites}
    given = arguments(study) | {"until": None, "rounds": result.settings["rounds"]}
    expected = sample(study.model(), shards, **given)
    pairs = zip(jax.tree.leaves(result.draws), jax.tree.leaves(expected.draws), strict=True)
    if max(result.settings["away"]) > 0 or result.visited.shape != expected.visited.shape:
        return "a site was away at times, so the draws are not those of the compiled engine"
    apart = max(float(np.abs(a - b).max()) for a, b in pairs)
    return f"draws differ from the compiled engine's on the same data by {apart:.1g} at most"


def _start(folder: Path, *words: str) -> subprocess.Popen:
    """Start a command; what it prints goes to a file."""
    name = Path(words[1]).name if words[0] == "site" else words[0]
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", "fsgld", *words], stdout=log, stderr=log)


def _wait_for(file: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not file.is_file():
        if time.monotonic() > end:
            raise TimeoutError(f"the coordinator did not make its kits within {START_SECONDS:.0f} s")
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return int(s.getsockname()[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
