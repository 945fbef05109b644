"""Speed of fsgld against its peers and against a C loop, on one core.

Importing the package pins the process: it must happen before JAX and PyTorch count the cores.
`BENCH_CORE` picks another core than the last. Then it imports fsgld, before anybody starts JAX: fsgld tells XLA's
compiler a few things on import, which hold for BlackJAX as well. `apart.py` times BlackJAX without them.
"""

import os

CORE = int(os.environ.get("BENCH_CORE", max(os.sched_getaffinity(0))))
os.sched_setaffinity(0, {CORE})

FLAGS = os.environ.get("XLA_FLAGS", "")  # the user's, before fsgld adds its own

import fsgld  # noqa: E402, F401
