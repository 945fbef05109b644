"""Bayesian inference on data that cannot leave its owners.

`fsgld` implements Federated Stochastic Gradient Langevin Dynamics (el Mekkaoui, Mesquita,
Blomstedt and Kaski, UAI 2021). Start with `Model` and `sample`. The modules `fsgld.shards` (splitting
helpers), `fsgld.schedules` (step sizes) and `fsgld.theory` (the paper's bounds) complete the names below.
"""

from fsgld import schedules, shards, theory
from fsgld.dynamics import langevin, psgld, sghmc, whitened
from fsgld.errors import CheckpointError, InputError
from fsgld.fit import analytic, anchored, fit, from_draws, laplace
from fsgld.likelihood import control_variate, plain
from fsgld.model import Model
from fsgld.results import Result
from fsgld.sample import sample
from fsgld.surrogates import Gaussian

__version__ = "0.1.0"

__all__ = [
    "CheckpointError",
    "Gaussian",
    "InputError",
    "Model",
    "Result",
    "analytic",
    "anchored",
    "control_variate",
    "fit",
    "from_draws",
    "langevin",
    "laplace",
    "plain",
    "psgld",
    "sample",
    "schedules",
    "sghmc",
    "shards",
    "theory",
    "whitened",
]
