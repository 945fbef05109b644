"""Federated Newton: sweeps of anchored surrogates, to the mode of the whole posterior.

In a sweep every client sends value, gradient G_s and curvature H_s of its log-likelihood at the
shared anchor a; the server adds the prior, solves for the next anchor and halves the move until the log
posterior has grown. No client needs a mode of its own; single H_s may be indefinite.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fsgld.errors import InputError
from fsgld.fit import _curvature, _gradient, _value
from fsgld.model import FlatModel, Theta
from fsgld.shards import Shards
from fsgld.surrogates import Gaussian

MOST_PARAMETERS = 1000  # dense surrogates hold S d² numbers


class Mode(NamedTuple):
    """The federated mode: where it is, the surrogates anchored there, and the sweeps used."""

    theta: Theta
    surrogates: Gaussian  # a stack, one a client
    sweeps: int


def find_mode(flat: FlatModel, theta: Theta, table: Shards, max_sweeps: int = 50) -> Mode:
    """Climb the log posterior by damped Newton sweeps and anchor every client at its mode."""
    if len(theta) > MOST_PARAMETERS:
        raise InputError(
            f'surrogates="auto" keeps a {len(theta)} × {len(theta)} matrix a client, which is meant'
            f" for at most {MOST_PARAMETERS} parameters; give surrogates=fsgld.fit(model, shards,"
            " fsgld.anchored, diagonal=True), or None for DSGLD"
        )
    tolerance = 1e-4 if theta.dtype == jnp.float32 else 1e-8  # in squared posterior sds
    for sweep in range(1, max_sweeps + 1):
        values, G, H = expansions(flat, theta, table)
        prior = prior_taylor(flat, theta)
        gradient = np.asarray(G, float).sum(0) + np.asarray(flat.grad_log_prior(theta), float)
        move = _newton_move(
            np.asarray(H, float).sum(0) + np.asarray(prior.precision, float), gradient
        )
        if gradient @ move < tolerance:
            return Mode(theta, _anchor(theta, G, H), sweep)
        value = float(values.sum() + flat.log_prior(theta))
        theta = _line_search(flat, theta, table, move, value, gradient @ move)
    raise InputError(
        f"the posterior's mode was not found in {max_sweeps} Newton sweeps (still"
        f" {np.sqrt(gradient @ move):.2g} posterior sds away): is the posterior proper? Give another"
        " init, a proper prior, or surrogates of your own"
    )


def prior_taylor(flat: FlatModel, theta: Theta) -> Gaussian:
    """Expand the log prior at θ to second order; exact for a Gaussian prior."""
    H = -jax.hessian(flat.log_prior)(theta)
    return Gaussian.from_precision(theta, H) + Gaussian(flat.grad_log_prior(theta))


def expansions(flat: FlatModel, theta: Theta, table: Shards) -> tuple[Array, Array, Array]:
    """Let every client compute log p(x_s | θ), G_s(θ) and H_s(θ)."""
    return _expansions(flat, theta, table.rows, table.starts, table.sizes, "dense")


def gradients(flat: FlatModel, theta: Theta, table: Shards) -> tuple[Array, Array]:
    """Let every client compute log p(x_s | θ) and G_s(θ)."""
    return _expansions(flat, theta, table.rows, table.starts, table.sizes, None)[:2]


@partial(jax.jit, static_argnums=(0, 5))
def _expansions(flat, theta, rows, starts, sizes, kind):  # type: ignore[no-untyped-def]
    """Map value, gradient and curvature over the clients, one after the other."""

    def client(place: tuple[Array, Array]) -> tuple:
        shard = (rows, *place)
        H = None if kind is None else _curvature(flat, theta, shard, kind)
        return _value(flat, theta, shard), _gradient(flat, theta, shard), H

    return jax.lax.map(client, (starts, sizes))


def _anchor(theta: Theta, G: Array, H: Array) -> Gaussian:
    """Write expansions at θ in natural parameters: Λ_s = H_s, shift_s = G_s + H_s θ."""
    H = (H + H.swapaxes(-1, -2)) / 2
    return Gaussian(G + H @ theta, H)


def _newton_move(P: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Solve P move = gradient in scaled coordinates, with |eigenvalues| bounded from below."""
    if not (np.isfinite(P).all() and np.isfinite(gradient).all()):
        raise InputError(
            "derivatives of the log posterior are not finite on the way to its mode; give another"
            " init, or surrogates of your own"
        )
    scale = np.sqrt(np.maximum(np.abs(np.diag(P)), 1e-300))
    values, vectors = np.linalg.eigh(P / np.outer(scale, scale))
    coordinates = vectors.T @ (gradient / scale)
    return vectors @ (coordinates / np.maximum(np.abs(values), 1e-8)) / scale


def _line_search(
    flat: FlatModel, theta: Theta, table: Shards, move: np.ndarray, value: float, slope: float
) -> Theta:
    """Halve the move until the log posterior grows (Armijo), up to rounding."""
    rounding = 10 * float(jnp.finfo(theta.dtype).eps) * abs(value)
    for halvings in range(30):
        size = 0.5**halvings
        new = theta + jnp.asarray(size * move, theta.dtype)
        grown = float(gradients(flat, new, table)[0].sum() + flat.log_prior(new))
        if grown >= value + 1e-4 * size * slope - rounding:
            return new
    return theta
