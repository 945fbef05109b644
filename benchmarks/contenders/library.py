"""fsgld itself, by its public API and nothing else."""

import warnings

import jax
import numpy as np

import fsgld

from ..workloads import log_prior

warnings.filterwarnings("ignore", "never visited")  # a short run among 10,000 clients


def library(w):
    """One chain by `fsgld.sample`: FSGLD, or DSGLD where the workload has no surrogates."""
    model = fsgld.Model(log_prior, w.log_likelihood, w.init)
    shards, surrogates = w.shards, None
    if w.shift is not None:
        surrogates = [fsgld.Gaussian(*q_s) for q_s in zip(w.shift, w.precision, strict=True)]
    settings = {
        "dynamics": fsgld.langevin(step_size=w.step_size),
        "likelihood": fsgld.plain,
        "batch_size": w.batch_size,
        "local_steps": w.local_steps,
        "thin": w.local_steps,  # a draw a round
    }

    def run(rounds):
        fixed = {"chains": 1, "burn_in": 0, "seed": 0, "progress": False}
        result = fsgld.sample(model, shards, surrogates, rounds=rounds, **settings, **fixed)
        leaves = [np.asarray(leaf)[0].reshape(rounds, -1) for leaf in jax.tree.leaves(result.draws)]
        return np.concatenate(leaves, axis=1)

    return run
