"""Families: the outcome's distribution given η = intercept + x·β + offset, its range, and simulated outcomes.

gaussian            y ~ N(η, σ²)
bernoulli           y ∈ {0, 1},            logit P(y = 1) = η
binomial            y out of n,            logit p = η
poisson             y = 0, 1, 2, …         log E y = η
negative_binomial   y = 0, 1, 2, …         log E y = η,  Var y = μ + μ²/φ
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array

from fsgld.errors import InputError, brief

Row = dict[str, Array]


class Family(NamedTuple):
    """One family; `log_aux` is log σ or log φ."""

    name: str
    aux: str | None  # the name of the further parameter
    link: str
    log_likelihood: Callable[[Row, Array, Array], Array]  # (row, η, log_aux)
    mean: Callable[[Row, Array], Array]  # E y / trials
    simulate: Callable[[Array, Row, Array, Array], Array]  # (key, row, η, log_aux)
    counts: bool = False

    @property
    def has_unit(self) -> bool:
        """Whether the outcome has a unit, so that it is standardised inside."""
        return self.name == "gaussian"


def get(name: str) -> Family:
    """Find a family by its name."""
    if name not in FAMILIES:
        raise InputError(f"family must be one of {', '.join(FAMILIES)}; got {brief(name)}")
    return FAMILIES[name]


def wrong_rows(family: Family, y: np.ndarray, trials: np.ndarray | None) -> tuple[np.ndarray, str]:
    """Find rows whose outcome the family cannot have; say what it should be."""
    if family.name == "bernoulli":
        return ~np.isin(y, (0, 1)), "0 or 1"
    if family.name == "binomial":
        assert trials is not None
        whole = (y == np.floor(y)) & (trials == np.floor(trials))
        return ~(whole & (y >= 0) & (trials >= 1) & (y <= trials)), "a whole number from 0 to the trials, which are ≥ 1"
    if family.counts:
        return ~((y >= 0) & (y == np.floor(y)) & (y < 2**24)), "a whole number of at least 0 (below 2^24)"
    return ~np.isfinite(y), "a finite number"


def _gaussian(row: Row, eta: Array, log_aux: Array) -> Array:
    return -0.5 * ((row["y"] - eta) * jnp.exp(-log_aux)) ** 2 - log_aux


def _bernoulli(row: Row, eta: Array, log_aux: Array) -> Array:
    return row["y"] * eta - jax.nn.softplus(eta)


def _binomial(row: Row, eta: Array, log_aux: Array) -> Array:
    return row["y"] * eta - row["trials"] * jax.nn.softplus(eta)


def _poisson(row: Row, eta: Array, log_aux: Array) -> Array:
    return row["y"] * eta - jnp.exp(eta)


def _negative_binomial(row: Row, eta: Array, log_aux: Array) -> Array:
    y, phi = row["y"], jnp.exp(log_aux)
    growth = gammaln(y + phi) - gammaln(phi)
    return growth + y * (eta - jnp.logaddexp(eta, log_aux)) - phi * jax.nn.softplus(eta - log_aux)


def _logistic(row: Row, eta: Array) -> Array:
    return jax.nn.sigmoid(eta)


def _exp(row: Row, eta: Array) -> Array:
    return jnp.exp(eta)


def _simulate_counts(key: Array, row: Row, eta: Array, log_aux: Array) -> Array:
    a, b = jax.random.split(key)
    phi = jnp.exp(log_aux)
    rate = jnp.exp(eta) * jax.random.gamma(a, phi, eta.shape) / phi
    return jax.random.poisson(b, rate).astype(eta.dtype)


def _simulate(draw: Callable[..., Any]) -> Callable[[Array, Row, Array, Array], Array]:
    return lambda key, row, eta, log_aux: jnp.asarray(draw(key, row, eta, log_aux), eta.dtype)


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "gaussian", "sigma", "identity", _gaussian, lambda row, eta: eta,
            _simulate(lambda k, row, eta, s: eta + jnp.exp(s) * jax.random.normal(k, eta.shape, eta.dtype)),
        ),
        Family(
            "bernoulli", None, "logit", _bernoulli, _logistic,
            _simulate(lambda k, row, eta, s: jax.random.bernoulli(k, jax.nn.sigmoid(eta))),
        ),
        Family(
            "binomial", None, "logit", _binomial, _logistic,
            _simulate(lambda k, row, eta, s: jax.random.binomial(k, row["trials"], jax.nn.sigmoid(eta))),
        ),
        Family(
            "poisson", None, "log", _poisson, _exp,
            _simulate(lambda k, row, eta, s: jax.random.poisson(k, jnp.exp(eta))), counts=True,
        ),
        Family("negative_binomial", "phi", "log", _negative_binomial, _exp, _simulate_counts, counts=True),
    )
}  # fmt: skip
