"""Who is timed: each contender turns a workload into `run(rounds)`, one chain of FSGLD that returns a draw a round."""

from .blackjax import blackjax_sgld
from .c import c_loop
from .eager import eager
from .library import library
from .posteriors import posteriors_sgld

CONTENDERS = {
    "eager PyTorch": eager, "posteriors": posteriors_sgld, "BlackJAX": blackjax_sgld, "C": c_loop, "fsgld": library,
}  # fmt: skip
