"""What a message costs: three sites on loopback, 1 and 32 chains, 50 and 1000 local steps (docs/federation.md)."""

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from fsgld import diagnostics
from fsgld.engines.flare.demo import federate, prepare
from fsgld.engines.flare.leg import run_folder
from fsgld.engines.flare.post import read_ledger
from fsgld.study import Study

EXAMPLE = Path(__file__).parents[1] / "examples" / "heart"
CASES = [(1, 50, 600), (32, 50, 300), (1, 1000, 300), (32, 1000, 100)]  # chains, local steps, rounds


def measure(folder: Path, chains: int, local_steps: int, rounds: int) -> str:
    study = prepare(EXAMPLE, folder)
    toml = folder / "study" / "study.toml"
    text = re.sub(r"\[until\][^[]*", "", toml.read_text())
    settings = f"chains = {chains}\nlocal_steps = {local_steps}\nrounds = {rounds}\nbatch_size = 32\nburn_in = 0.1"
    toml.write_text(text.replace("chains = 16", settings))
    study = Study.read(folder / "study")
    result = federate(study, folder, stdout=subprocess.DEVNULL)
    lines = [line for line in read_ledger(run_folder(study)) if line.get("kind") == "update" and line["round"] >= 20]
    share = rounds / (rounds - 20)
    ess = float(np.min(diagnostics.ess_bulk(result.flat_draws()[1])))
    seconds = np.median([line["seconds"] for line in lines])
    size = sum(line["sent"] + line["received"] for line in lines) * share
    wall = lines[-1]["time"] - lines[0]["time"]
    step = result.settings["step_size"].split()[-1]
    cells = [
        chains, local_steps, step, f"{seconds:.3f}", f"{wall / (rounds - 20):.3f}", f"{len(lines) * share / ess:.2g}",
        f"{size / ess / 1000:.2g}", f"{size / len(lines) / share / 1000:.2g}", f"{ess:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    for case in CASES:
        begin = time.monotonic()
        print(measure(Path(sys.argv[1]), *case), f"{time.monotonic() - begin:.0f} s", flush=True)
