"""BlackJAX as it comes: in a process of its own, without the compiler options that fsgld sets on import."""

import json
import os
import subprocess
import sys

import numpy as np

from . import FLAGS
from .contenders.blackjax import blackjax_sgld
from .timing import measure
from .workloads import WORKLOADS


class Apart:
    """A run that is timed by the process that does it; the two processes share a core and never run at once."""

    def __init__(self, w):
        command = [sys.executable, "-m", "benchmarks.apart", w.name]
        environ = {**os.environ, "FSGLD_XLA_FLAGS": "off", "XLA_FLAGS": FLAGS}
        self.process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def measure(self, rounds: int) -> np.ndarray:
        """Seconds of one run there: (CPU, wall)."""
        self.process.stdin.write(f"{rounds}\n")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"BlackJAX's process ended with code {self.process.wait()}; its error is above")
        return np.array(json.loads(line))

    def __call__(self, rounds: int) -> None:
        self.measure(rounds)


def main() -> None:
    """Time a run for every number of rounds that is read."""
    run = blackjax_sgld(WORKLOADS[sys.argv[1]]())
    for line in sys.stdin:
        print(json.dumps(measure(run, int(line)).tolist()), flush=True)


if __name__ == "__main__":
    main()
