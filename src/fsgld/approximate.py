"""The one-round answer: the Gaussian prior × q at the posterior's mode, and how far it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from fsgld import newton
from fsgld.checks import check_auto, check_kind
from fsgld.derivatives import Shard, prior_taylor, sum_over_rows
from fsgld.diagnostics import pareto_k
from fsgld.errors import check_whole
from fsgld.model import FlatModel, Model, Params, Row, Theta, leaf_names, ravel
from fsgld.model_checks import check_finite_at, check_model
from fsgld.programs import put
from fsgld.randomness import root_key
from fsgld.rows import Data, Shards, gather
from fsgld.surrogates import Gaussian


@dataclass(frozen=True)
class Approximation:
    """A Gaussian in place of the posterior, and what importance weights say about it.

    Attributes
    ----------
    mean, sd
        Pytrees like the model's parameters; the mean is the posterior's mode.
    weighted_mean, weighted_sd
        The same after draws of the Gaussian were weighted by posterior/Gaussian (weights are truncated at √n of their
        mean; Ionides, 2008). Where they differ from mean and sd, the posterior is not Gaussian.
    gaussian
        The Gaussian on the flat vector θ, with its covariance.
    khat
        The tail index k̂ of these weights (PSIS; Vehtari et al., 2024). Up to 0.7 the weighted numbers can be
        relied on; beyond, the Gaussian misses part of the posterior.
    sweeps
        The federated Newton sweeps that were needed: messages to and from every client.
    """

    mean: Params
    sd: Params
    weighted_mean: Params
    weighted_sd: Params
    gaussian: Gaussian
    khat: float
    sweeps: int

    @property
    def verdict(self) -> str:
        """Say in words how far the Gaussian can be trusted."""
        mean, sd, better_mean, better_sd = (np.asarray(column, float) for column in self._columns())
        off, wide = np.abs(better_mean - mean) / better_sd, better_sd / sd
        j, k = int(np.argmax(off)), int(np.argmax(np.abs(np.log(wide))))
        names = leaf_names(self.mean)
        if not self.khat < 0.7:
            words = "the Gaussian misses part of the posterior; use fsgld.sample"
        elif off[j] < 0.1 and abs(wide[k] - 1) < 0.05:
            words = "the Gaussian is close to the posterior; means and intervals can be used"
        else:
            words = (
                f"the posterior is not quite Gaussian (the mean of {names[j]} is {off[j]:.2f} sds away, the sd of"
                f" {names[k]} is {wide[k]:.2f} times as large); use the weighted columns, or fsgld.sample"
            )
        return f"Pareto k-hat is {self.khat:.2f}: {words}"

    def _columns(self) -> list[Array]:
        return [ravel(tree) for tree in (self.mean, self.sd, self.weighted_mean, self.weighted_sd)]

    def __str__(self) -> str:
        names = leaf_names(self.mean)
        width = max(map(len, names))
        lines = [" " * width + "".join(f"{name:>15}" for name in ("mean", "sd", "weighted mean", "weighted sd"))]
        for name, *cells in zip(names, *self._columns(), strict=True):
            lines.append(name.ljust(width) + "".join(f"{float(cell):>15.4g}" for cell in cells))
        return "\n".join([*lines, f"{self.sweeps} Newton sweeps. {self.verdict}"])


def approximate(
    model: Model, shards: list[Data] | dict[str, Data], *, draws: int = 2000, seed: int = 0
) -> Approximation:
    """Find the posterior's mode by federated Newton sweeps, and the Gaussian prior × q there (Laplace).

    Parameters
    ----------
    model, shards
        As for `fsgld.sample`.
    draws
        At so many draws of the Gaussian every client evaluates its log-likelihood, for k̂.
    seed
        Of these draws.
    """
    check_kind("model", model)
    check_whole(least=100, draws=draws)
    table, theta = gather(shards, borrow=True), ravel(model.start())
    flat = check_model(model, theta, table)
    check_finite_at(flat, theta, table, "the model's start (init)")
    check_auto(len(theta))
    mode = newton.find_mode(flat, theta, table)
    q = prior_taylor(flat, mode.theta) + mode.surrogates.total()
    covariance = q.covariance_float64()
    z = np.asarray(jax.random.normal(root_key(seed), (int(draws), len(theta))), float)
    moves = z @ np.linalg.cholesky(covariance).T
    log_ratio = _log_rises(flat, mode.theta, put(moves, theta.dtype), table) + 0.5 * (z**2).sum(1)
    w = np.exp(log_ratio - log_ratio.max())
    w = np.minimum(w, np.sqrt(len(w)) * w.mean())
    w /= w.sum()
    shift = w @ moves
    columns = (
        np.sqrt(np.diag(covariance)), np.asarray(mode.theta, float) + shift, np.sqrt(w @ (moves - shift) ** 2),
    )  # fmt: skip
    sd, mean, better_sd = (flat.unravel(put(column, theta.dtype)) for column in columns)
    return Approximation(flat.unravel(mode.theta), sd, mean, better_sd, q, pareto_k(log_ratio), mode.sweeps)


def _log_rises(flat: FlatModel, mode: Theta, moves: Float[Array, "n d"], table: Shards) -> np.ndarray:
    """Evaluate log p(mode + move | x) − log p(mode | x); differences are formed row by row, to keep digits."""
    places: Any = (table.rows, put(table.starts), put(table.sizes))
    by_client = np.asarray(_client_rises(flat, mode, moves, *places), float)
    prior = jax.vmap(flat.log_prior)(mode[None] + moves) - flat.log_prior(mode)
    return by_client.sum(0) + np.asarray(prior, float)


@partial(jax.jit, static_argnums=0)
def _client_rises(
    flat: FlatModel, mode: Theta, moves: Float[Array, "n d"], rows: Row, starts: Array, sizes: Array
) -> Float[Array, "S n"]:
    """Let every client evaluate log p(x_s | mode + move) − log p(x_s | mode) for all moves."""

    def client(place: tuple[Array, Array]) -> Array:
        def block(rows: Row, w: Array) -> Array:
            at_mode = flat.log_likelihood(mode, rows)
            rise = lambda move: w.astype(mode.dtype) @ (flat.log_likelihood(mode + move, rows) - at_mode)  # noqa: E731
            return jax.lax.map(rise, moves)

        return sum_over_rows(block, Shard(rows, *place))

    return jax.lax.map(client, (starts, sizes))
