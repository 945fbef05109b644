"""Peak memory of one fsgld run on W4, for a fresh process. Prints bytes before, at the peak, of the data.

`python -m benchmarks.memory 900` runs the same program on 900 rows a client: what JAX itself needs.
`python -m benchmarks.memory FOLDER` maps x.npy and y.npy of a folder, as a user would with data in files.
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from .contenders.library import library
from .workloads import network


def resident(field: str) -> int:
    """Bytes by /proc: VmRSS now, VmHWM at the peak (getrusage would count the parent's peak too)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", status)[1])


def mapped(folder: str):
    """W4 on rows in files."""
    return replace(network(1), data=tuple(np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in "xy"))


def main(rows: str = "90000") -> None:
    """Run 200 rounds of W4; the data count once as the user's arrays."""
    before = resident("VmRSS")
    w = network(int(rows)) if rows.isdigit() else mapped(rows)
    library(w)(200)
    print(json.dumps({"before": before, "peak": resident("VmHWM"), "data": w.num_bytes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
