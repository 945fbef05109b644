"""The four workloads of the speed table as data: rows, model, surrogates, sizes.

Data are generated with a fixed seed. The models are written as a user would write them: the log-likelihood of one row.
Every prior is N(0, I), every client has the same number of rows, and every client is picked with f_s = 1/S.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree


@dataclass(frozen=True)
class Workload:
    """One posterior, split among S clients, with the settings of the chain that samples it."""

    name: str
    log_likelihood: Callable[[Any, Any], jax.Array]  # of ONE row
    init: Any  # parameters, a pytree
    data: Any  # pytree of arrays (S, N_s, ...)
    shift: np.ndarray | None  # (S, d); None: no surrogates, i.e. DSGLD
    precision: np.ndarray | None  # (S, d) or (S, d, d)
    step_size: float
    batch_size: int
    local_steps: int

    @property
    def num_clients(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    @property
    def num_rows(self) -> int:
        """Rows of one client."""
        return jax.tree.leaves(self.data)[0].shape[1]

    @property
    def num_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.data))

    @property
    def shards(self) -> list:
        """One pytree a client; views, no copies."""
        return [jax.tree.map(lambda a, s=s: a[s], self.data) for s in range(self.num_clients)]

    @property
    def flat_init(self) -> np.ndarray:
        return np.asarray(ravel_pytree(self.init)[0])


def log_prior(params) -> jax.Array:
    """Log N(0, I), the prior of all four workloads."""
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def toy(num_clients: int = 10, num_rows: int = 200, step_size: float = 1e-4) -> Workload:
    """W1: the mean of a 2-D Gaussian, clients that disagree, exact diagonal surrogates."""
    rng = np.random.default_rng(1)
    centres = rng.uniform(-6, 6, (num_clients, 1, 2))
    x = (centres + rng.standard_normal((num_clients, num_rows, 2))).astype(np.float32)
    precision = np.full((num_clients, 2), num_rows, np.float32)
    return Workload("W1", _toy, np.zeros(2, np.float32), x, x.sum(1), precision, step_size, 10, 100)


def _toy(mu, x):
    return -0.5 * jnp.sum((x - mu) ** 2)


def regression() -> Workload:
    """W2: linear regression in the shape of the superconductivity data, exact dense surrogates."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((10, 1700, 81), np.float32)
    y = x @ rng.standard_normal(81, np.float32) + rng.standard_normal((10, 1700), np.float32)
    shift, precision = np.einsum("sni,sn->si", x, y), np.einsum("sni,snj->sij", x, x)
    return Workload("W2", _regression, np.zeros(81, np.float32), (x, y), shift, precision, 1e-6, 10, 600)


def _regression(beta, row):
    x, y = row
    return -0.5 * (y - x @ beta) ** 2


def metric() -> Workload:
    """W3: Bayesian metric learning; a pair is its 50 squared projections z and y = ±1 (similar or not).

    The dense surrogate is the second-order Taylor polynomial of the log-likelihood at zero.
    """
    rng = np.random.default_rng(3)
    y = rng.choice(np.float32([-1, 1]), (10, 1000))
    z = rng.standard_normal((10, 1000, 50), np.float32) ** 2 * (1.5 - 0.5 * y[..., None])
    z /= np.sqrt(50) * 2
    u = -y[..., None] * np.concatenate([z, -np.ones_like(z[..., :1])], -1)  # log p = log σ(u·θ)
    shift, precision = u.sum(1) / 2, np.einsum("sni,snj->sij", u, u) / 4
    init = {"gamma": np.zeros(50, np.float32), "mu": np.zeros((), np.float32)}
    return Workload("W3", _metric, init, (z, y), shift, precision, 1e-5, 256, 100)


def _metric(params, pair):
    z, y = pair
    return jax.nn.log_sigmoid(-y * (z @ params["gamma"] - params["mu"]))


def network(num_rows: int = 90_000) -> Workload:
    """W4: MLP 18-18-18-8-2 in the shape of the SUSY data; weak diagonal surrogates (their values cost nothing)."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((30, num_rows, 18), np.float32)
    y = (x[..., 0] > 0).astype(np.int32)
    sizes = (18, 18, 18, 8, 2)
    init = [_layer(rng, a, b) for a, b in pairwise(sizes)]
    shift, precision = np.zeros((30, 854), np.float32), np.ones((30, 854), np.float32)
    return Workload("W4", _network, init, (x, y), shift, precision, 1e-8, 50, 40)


def _layer(rng, fan_in, fan_out):
    return rng.standard_normal((fan_in, fan_out), np.float32) / np.float32(fan_in**0.5), np.zeros(fan_out, np.float32)


def _network(layers, row):
    x, y = row
    for weight, bias in layers[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    weight, bias = layers[-1]
    return jax.nn.log_softmax(x @ weight + bias)[y]


WORKLOADS = {"W1": toy, "W2": regression, "W3": metric, "W4": network}
