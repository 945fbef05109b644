"""Federated Newton: sweeps of anchored surrogates, to the mode of the whole posterior.

In a sweep every client sends value, gradient G_s and curvature H_s of its log-likelihood at the
shared anchor a; the server adds the prior, solves for the next anchor and halves the move until the log
posterior has grown. No client needs a mode of its own; single H_s may be indefinite.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fsgld.derivatives import all_clients, mean_derivatives, prior_taylor
from fsgld.errors import InputError
from fsgld.model import FlatModel, Theta
from fsgld.programs import put
from fsgld.rows import Shards
from fsgld.surrogates import Gaussian


class Mode(NamedTuple):
    """The federated mode: where it is, the surrogates anchored there, and the sweeps used."""

    theta: Theta
    surrogates: Gaussian  # a stack, one a client
    sweeps: int
    how: str = "anchored at the mode"


def find_mode(flat: FlatModel, theta: Theta, table: Shards, max_sweeps: int = 50) -> Mode:
    """Climb the log posterior by damped Newton sweeps and anchor every client at its mode."""
    tolerance = 1e-4 if theta.dtype == jnp.float32 else 1e-8  # in squared posterior sds
    before = np.inf
    for sweep in range(1, max_sweeps + 1):
        values, G, H = all_clients(flat, theta, table, "dense")
        assert H is not None
        P = np.asarray(H, float).sum(0) + np.asarray(prior_taylor(flat, theta).precision, float)
        slope = np.asarray(G, float).sum(0) + np.asarray(flat.grad_log_prior(theta), float)
        move = _newton_move(P, slope)
        squared, value = slope @ move, float(values.sum() + flat.log_prior(theta))
        # Near a mode Newton's distances shrink faster and faster; where they do not, rounding is all that is left
        if squared < tolerance or before / 4 < squared < 0.05:
            _check_curved(P, theta)
            _check_falls(flat, theta, table, move, value, squared)
            return Mode(theta, Gaussian(G + H @ theta, H), sweep)
        theta, before = _line_search(flat, theta, table, move, value, squared), squared
    raise InputError(
        f"no mode was found in {max_sweeps} Newton sweeps (still {np.sqrt(squared):.2g} sds away): is the density"
        " proper, has it one mode (a network's has many), and are columns centred (large offsets lose digits in"
        " float32; JAX_ENABLE_X64=1 keeps them)? Give another init, a proper prior, or surrogates of your own"
    )


def match_moments(flat: FlatModel, mode: Mode, table: Shards, sweeps: int = 4, probes: int = 32) -> Mode | None:
    """Refit surrogates over the region that the posterior covers, instead of at one point.

    With θ_k drawn from N(μ, M), the last sweep's prior × q, every client sends the means of G_s and H_s over k, and

        Λ_s = mean H_s(θ_k),      shift_s = mean G_s(θ_k) + Λ_s μ,

    which for Gaussian averages is the linear function closest to ∇log p(x_s | ·) in mean square (Stein's lemma); its
    fixed point is the best Gaussian in the sense of variational inference. None if a sweep has no positive precision.
    """
    mu, surrogates = np.asarray(mode.theta, float), mode.surrogates
    z = np.random.default_rng(1).standard_normal((probes // 2, len(mu)))
    z = np.concatenate([z, -z])  # the same in all sweeps, so that they converge
    for _ in range(sweeps):
        prior = prior_taylor(flat, put(mu, mode.theta.dtype))
        try:
            L = np.linalg.cholesky((prior + surrogates.total()).covariance_float64())
        except InputError:
            return None
        G, H = mean_derivatives(flat, put(mu + z @ L.T, mode.theta.dtype), table)
        shift, P = G + H @ mu, H.sum(0) + np.asarray(prior.precision, float)
        if not (np.isfinite(P).all() and np.linalg.eigvalsh(P).min() > 0):
            return None
        mu = np.linalg.solve(P, shift.sum(0) + np.asarray(prior.shift, float))
        surrogates = Gaussian(put(shift, mode.theta.dtype), put(H, mode.theta.dtype))
    theta = put(mu, mode.theta.dtype)
    return Mode(theta, surrogates, mode.sweeps + sweeps, "moments matched over prior × q")


def _check_curved(P: np.ndarray, theta: Theta) -> None:
    """Check that the log density curves down in every direction, up to rounding."""
    scale = np.sqrt(np.maximum(np.abs(np.diag(P)), 1e-300))
    lowest = np.linalg.eigvalsh(P / np.outer(scale, scale)).min()
    if not lowest > 5 * np.finfo(theta.dtype).eps:
        raise InputError(
            f"no mode: at the stationary point that was found the smallest curvature is {lowest:.2g} of the largest,"
            " a saddle or a flat direction, as with fewer rows than parameters; give another init, or a proper prior"
        )


def _newton_move(P: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Solve P move = gradient in scaled coordinates, with |eigenvalues| bounded from below."""
    if not (np.isfinite(P).all() and np.isfinite(gradient).all()):
        raise InputError(
            "derivatives of the log posterior are not finite on the way to its mode; give another"
            " init, or surrogates of your own"
        )
    scale = np.sqrt(np.maximum(np.abs(np.diag(P)), 1e-300))
    values, vectors = np.linalg.eigh(P / np.outer(scale, scale))
    with np.errstate(over="ignore", invalid="ignore"):  # a flat direction: the line search copes
        coordinates = vectors.T @ (gradient / scale)
        return vectors @ (coordinates / np.maximum(np.abs(values), 1e-8)) / scale


def _check_falls(flat: FlatModel, theta: Theta, table: Shards, move: np.ndarray, value: float, squared: float) -> None:
    """Check that the log posterior falls (by about ½) one posterior sd beyond θ, where Newton points to."""
    if not squared > 0:
        return
    beyond = theta + put(move / np.sqrt(squared), theta.dtype)
    fall = value - float(all_clients(flat, beyond, table)[0].sum() + flat.log_prior(beyond))
    if fall < 0.05 - 10 * float(np.finfo(theta.dtype).eps) * abs(value):
        raise InputError(
            "no mode: the log density still grows (or stays level) one sd beyond where the mode seemed to be, as with"
            " one class only and a flat prior. Is it proper? Give a proper prior, or surrogates of your own"
        )


def _line_search(flat: FlatModel, theta: Theta, table: Shards, move: np.ndarray, value: float, slope: float) -> Theta:
    """Halve the move until the log posterior grows (Armijo), up to rounding."""
    rounding = 10 * float(np.finfo(theta.dtype).eps) * abs(value)
    for halvings in range(30):
        size = 0.5**halvings
        new = theta + put(size * move, theta.dtype)
        grown = float(all_clients(flat, new, table)[0].sum() + flat.log_prior(new))
        if grown >= value + 1e-4 * size * slope - rounding:
            return new
    return theta
