"""Peak memory of one fsgld run on W4, for a fresh process. Prints bytes before, at the peak, of the data.

`python -m benchmarks.memory 900` runs the same program on 900 rows a client: what JAX itself needs.
`python -m benchmarks.memory 90000 apart` gives every client arrays of its own, not parts of large ones.
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


def apart(column: np.ndarray) -> np.ndarray:
    """Copy the rows of every client to an array of its own."""
    clients = np.empty(len(column), object)
    for s, rows in enumerate(column):
        clients[s] = rows.copy()
    return clients


def main(rows: str = "90000", how: str = "together") -> None:
    """Run 200 rounds of W4; the data count once as the user's arrays."""
    before = resident("VmRSS")
    w = network(int(rows))
    size = w.num_bytes
    if how == "apart":
        w = replace(w, data=tuple(map(apart, w.data)))
    library(w)(200)
    print(json.dumps({"before": before, "peak": resident("VmHWM"), "data": size}))


if __name__ == "__main__":
    main(*sys.argv[1:])
