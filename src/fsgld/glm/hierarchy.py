"""Hierarchical site intercepts in coordinates in which the posterior is nearly a standard Gaussian.

a_s ~ N(b, τ²), b ~ N(m, s²), τ unknown. Neither (a, log τ) nor the non-centred (z, log τ) is close to a Gaussian: the
first has a funnel and no joint mode, the second a bent ridge where sites have many rows. Here instead a Gaussian
stands for the likelihood first: with g, −P the gradient and Hessian of everything but the sites' prior at w₀, where
w = (a, β, …),

    q(w | τ) ∝ exp(g·(w − w₀) − ½ (w − w₀)ᵀP(w − w₀)) p(a | τ) = N(μ(τ), C(τ)C(τ)ᵀ),      q(τ) ∝ p(τ) ∫ q

are known in closed form (b is integrated out). With t the normal score of τ under q(τ), and w = μ(τ(t)) + C(τ(t)) ξ,
the posterior of (ξ, t) is a standard Gaussian times what the quadratic form misses of the likelihood:

    log p(ξ, t | x) = −½|ξ|² − ½t² + log p(x | w) + log p(rest) − g·(w − w₀) + ½ (w − w₀)ᵀP(w − w₀).

That is exact whatever w₀ is; a better w₀ only makes sampling easier. The last four terms are sums over rows (and
the rest of the prior) of `remainder`s, so each row takes its own part: what is left of a site's likelihood is small,
wherever the map moves its intercept. μ and C are cubic splines in t. b and τ follow
after sampling: τ = τ(t), and b given a and τ is Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.interpolate import CubicSpline, PchipInterpolator
from scipy.special import ndtri

from fsgld.glm.priors import Prior

EDGE, STEP = 5.0, 0.2  # of the spline's knots in t
LOG_TAU = np.arange(-14.0, 7.0, 0.05)  # relative to the prior's scale


class Quadratic(NamedTuple):
    """A log density around w₀: g·v − ½ vᵀPv with v = w − w₀."""

    w0: np.ndarray
    g: np.ndarray
    P: np.ndarray


class Transport(NamedTuple):
    """The map from (ξ, t) to (w, τ)."""

    to_w: Callable[[Array, Array], Array]  # (ξ, t) to w − w₀
    quadratic: Quadratic
    log_tau: Callable[[np.ndarray], np.ndarray]

    def remainder(self, log_density: Callable[[Array], Array], v: Array) -> Array:
        """Evaluate f(w₀ + v) − f(w₀) − f'(w₀)v − ½ f''(w₀)v²: what a second-order expansion misses."""
        w0 = jnp.asarray(self.quadratic.w0, v.dtype)
        slope, bend = jax.jvp(lambda w: jax.jvp(log_density, (w,), (v,))[1], (w0,), (v,))
        return log_density(w0 + v) - log_density(w0) - slope - 0.5 * bend


def make_transport(quadratic: Quadratic, sites: int, intercept: Prior, tau: Prior) -> Transport:
    """Build the map; the first `sites` entries of w are the sites' intercepts."""
    m, s = intercept.arguments
    log_tau = LOG_TAU + np.log(tau.typical())
    given = [_given_tau(quadratic, sites, m, s, np.exp(x)) for x in log_tau]
    log_density = np.array([one[2] for one in given]) + np.array([_log_prior(tau, x) for x in log_tau])
    knots = np.arange(-EDGE, EDGE + STEP / 2, STEP)
    spline = CubicSpline(knots, _quantiles(log_tau, log_density, knots))
    parts = [_given_tau(quadratic, sites, m, s, np.exp(spline(t)))[:2] for t in knots]
    stacked = np.stack([np.column_stack([mean - quadratic.w0, C]) for mean, C in parts])
    pieces = np.moveaxis(CubicSpline(knots, stacked).c, 0, 1)  # (knots − 1, 4, D, 1 + D)

    def to_w(xi: Array, t: Array) -> Array:
        x = jnp.clip(t + EDGE, 0.0, 2 * EDGE - 1e-4)
        i = jnp.floor(x / STEP).astype(jnp.int32)
        f = x - i * STEP
        powers = jnp.stack([f**3, f**2, f, jnp.ones_like(f)])
        both = jnp.tensordot(powers, jnp.asarray(pieces, xi.dtype)[i], 1)
        return both[:, 0] + both[:, 1:] @ xi

    return Transport(to_w, quadratic, lambda t: np.asarray(spline(np.clip(t, -EDGE, EDGE))))


def draw_mean(a: np.ndarray, tau: np.ndarray, intercept: Prior, seed: int) -> np.ndarray:
    """Draw b given a and τ, for every draw of a run."""
    m, s = intercept.arguments
    P = a.shape[-1] / tau**2 + 1 / s**2
    noise = np.random.default_rng([seed, 6]).standard_normal(tau.shape)
    return np.asarray((a.sum(-1) / tau**2 + m / s**2) / P + noise / np.sqrt(P))


def _given_tau(q: Quadratic, S: int, m: float, s: float, tau: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Give μ(τ), C(τ) and log ∫ q(w | τ) dw; a | τ ~ N(m 1, τ² I + s² 11ᵀ)."""
    v = tau**2
    inverse = np.eye(S) / v - s**2 / (v * (v + S * s**2))
    P, shift = q.P.copy(), q.g + q.P @ q.w0
    P[:S, :S] += inverse
    shift[:S] += inverse @ np.full(S, m)
    C = np.linalg.inv(np.linalg.cholesky(P)).T
    mean = C @ (C.T @ shift)
    log_determinants = -(S - 1) * np.log(v) - np.log(v + S * s**2) + 2 * np.log(np.diag(C)).sum()
    return mean, C, 0.5 * float(log_determinants + shift @ mean - m**2 * inverse.sum())


def _log_prior(tau: Prior, log_tau: float) -> float:
    """Evaluate the log prior density of log τ, in double precision."""
    x = np.exp(log_tau)
    if tau.name == "exponential":
        return float(log_tau - tau.arguments[0] * x)
    if tau.name == "half_normal":
        return float(log_tau - 0.5 * (x / tau.arguments[0]) ** 2)
    df, scale = tau.arguments
    return float(log_tau - (df + 1) / 2 * np.log1p((x / scale) ** 2 / df))


def _quantiles(log_tau: np.ndarray, log_density: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Give log τ at normal scores t; below the grid the density of log τ falls like τ."""
    p = np.exp(log_density - log_density.max())
    cells = (p[1:] + p[:-1]) / 2 * np.diff(log_tau)
    below = np.concatenate([[p[0]], p[0] + np.cumsum(cells)])
    above = np.concatenate([np.cumsum(cells[::-1])[::-1], [0.0]])
    total = below[-1]
    score = np.where(below < total / 2, ndtri(below / total), -ndtri(above / total))
    score = np.clip(score, -9, 9)
    kept = (np.abs(score) < 8) & (np.diff(score, prepend=-10) > 1e-9)
    return np.asarray(PchipInterpolator(score[kept], log_tau[kept], extrapolate=True)(t))


def taylor(log_density: Callable[[Array], Array], w0: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give gradient and −Hessian of a log density at w₀."""
    w = jnp.asarray(w0)
    return np.asarray(jax.grad(log_density)(w), float), -np.asarray(jax.hessian(log_density)(w), float)
