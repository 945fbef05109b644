"""Speed of fsgld against its peers and against a C loop, on one core.

Importing the package pins the process: it must happen before JAX and PyTorch count the cores.
`BENCH_CORE` picks another core than the last.
"""

import os

CORE = int(os.environ.get("BENCH_CORE", max(os.sched_getaffinity(0))))
os.sched_setaffinity(0, {CORE})
