"""Who is timed: each contender turns a workload into `run(rounds)`, one chain of FSGLD that returns a draw a round."""

import sys
from importlib.util import find_spec

from .blackjax import blackjax_sgld
from .c import c_loop
from .eager import eager
from .posteriors import posteriors_sgld

CONTENDERS = {"eager PyTorch": eager, "posteriors": posteriors_sgld, "BlackJAX": blackjax_sgld, "C": c_loop}

if find_spec("fsgld"):
    from .library import library

    CONTENDERS["fsgld"] = library
else:
    print("fsgld is not installed: its lines are left out", file=sys.stderr)
