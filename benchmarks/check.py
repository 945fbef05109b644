"""Nobody is timed on wrong arithmetic: chains against closed forms, hand-written gradients against JAX's.

W1 is an AR(1), a = 1 − (h/2)Λ with innovation variance h + (h²/4) Σ_s (N_s²/f_s) σ_s²/m: mean and variance are compared
with that law (|z| < 4.5 for 4 numbers a contender, a false alarm in 37,000). The mean of W2 is the exact posterior's.
Draws are a round apart, so nearly independent.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.flatten_util import ravel_pytree

from .contenders.c import c_gradient
from .contenders.everyone import CONTENDERS
from .contenders.torch_models import LOG_LIKELIHOOD, flatten, parameters, tensors
from .workloads import WORKLOADS, regression, toy

ROUNDS = {"eager PyTorch": (300, 30), "posteriors": (150, 15)}  # (W1, W2): the slow ones
MANY_ROUNDS = (20_000, 1_000)
Z = 4.5
RMS_Z = 1.6


def check() -> bool:
    """Print every comparison; true if all agree."""
    return all([*law_of_toy(), *mean_of_regression(), *gradients()])


def law_of_toy():
    """Mean and variance of the W1 chain against the AR(1)."""
    w = toy()
    mean, variance = ar1(w)
    print("W1, mean and variance of both coordinates against the closed form")
    print(f"{'closed form':<16} {show(mean)} {show(variance)}")
    for who, make in CONTENDERS.items():
        draws = make(w)(ROUNDS.get(who, MANY_ROUNDS)[0])[1:].astype(float)
        n, m, v = len(draws), draws.mean(0), draws.var(0, ddof=1)
        z = np.abs([(m - mean) / np.sqrt(variance / n), (v / variance - 1) / np.sqrt(2 / (n - 1))]).max()
        yield verdict(f"{who:<16} {show(m)} {show(v)}   {n} draws, largest |z| {z:.1f}", z < Z)


def ar1(w):
    """Stationary mean and variance of the W1 chain, per coordinate."""
    x = w.data.astype(float)
    total_rows, f = w.num_clients * w.num_rows, 1 / w.num_clients
    lam = 1 + total_rows
    a = 1 - w.step_size / 2 * lam
    noise = (w.num_rows**2 / f * x.var(1)).sum(0) / w.batch_size
    return x.sum((0, 1)) / lam, (w.step_size + w.step_size**2 / 4 * noise) / (1 - a**2)


def mean_of_regression():
    """Mean of the W2 chain, all coordinates together, against the exact posterior's."""
    w = regression()
    precision = w.precision.sum(0, dtype=float) + np.eye(81)
    mean = np.linalg.solve(precision, w.shift.sum(0, dtype=float))
    print("\nW2, mean of 81 coordinates against the exact posterior's, in Monte Carlo errors")
    for who, make in CONTENDERS.items():
        draws = make(w)(ROUNDS.get(who, MANY_ROUNDS)[1])[1:].astype(float)
        z = (draws.mean(0) - mean) / (draws.std(0, ddof=1) / np.sqrt(len(draws)))
        rms, sd = np.sqrt(np.mean(z**2)), draws.std(0, ddof=1).mean()
        yield verdict(f"{who:<16} rms z {rms:.2f}, mean sd {sd:.5f}, {len(draws)} draws", rms < RMS_Z)


def gradients():
    """The batch gradients of the C code and of the PyTorch models against `jax.grad`, at a random θ."""
    print("\nlikelihood gradient of a mini-batch, largest relative difference from jax.grad")
    for name, make in WORKLOADS.items():
        w = make()
        theta = 0.3 * np.random.default_rng(0).standard_normal(w.flat_init.size, np.float32)
        batch = jax.tree.map(lambda a, m=w.batch_size: a[0, :m], w.data)
        truth = jax_gradient(w, theta, batch)
        for who, value in (("C", c_gradient(w, theta)), ("PyTorch", torch_gradient(w, theta, batch))):
            error = np.abs(value - truth).max() / np.abs(truth).max()
            yield verdict(f"{name} {who:<8} {error:.1e}", error < 1e-4)


def jax_gradient(w, theta, batch):
    _, unravel = ravel_pytree(w.init)
    total = lambda t: jnp.sum(jax.vmap(w.log_likelihood, (None, 0))(unravel(t), batch))  # noqa: E731
    return np.asarray(jax.grad(total)(jnp.asarray(theta)))


def torch_gradient(w, theta, batch):
    params, pieces = parameters(w), torch.from_numpy(theta)
    values = pieces.split([p.numel() for p in params])
    params = [v.reshape(p.shape).clone().requires_grad_() for v, p in zip(values, params, strict=True)]
    log_likelihood = LOG_LIKELIHOOD[w.name](params, tensors(batch))
    return flatten(torch.autograd.grad(log_likelihood, params)).numpy()


def show(pair):
    return " ".join(f"{value:>9.5f}" for value in pair)


def verdict(line, ok):
    print(f"{line}   {'ok' if ok else 'WRONG'}", flush=True)
    return ok
