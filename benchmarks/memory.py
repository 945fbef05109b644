"""Peak memory of one fsgld run on W4, for a fresh process. Prints bytes before, at the peak, of the data.

`python -m benchmarks.memory 900` runs the same program on 900 rows a client: what JAX itself needs.
"""

import json
import re
import sys
from pathlib import Path

from .contenders.library import library
from .workloads import network


def resident(field: str) -> int:
    """Bytes by /proc: VmRSS now, VmHWM at the peak (getrusage would count the parent's peak too)."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"{field}:\s+(\d+) kB", status)[1])


def main() -> None:
    """Run 200 rounds of W4; the data count once as the user's arrays."""
    before = resident("VmRSS")
    w = network(*map(int, sys.argv[1:]))
    library(w)(200)
    print(json.dumps({"before": before, "peak": resident("VmHWM"), "data": w.num_bytes}))


if __name__ == "__main__":
    main()
