"""From an agreed design to a `fsgld.Model`, and from its draws to coefficients in the user's units.

Inside, w = (intercepts, β, log σ or log φ): none, one or S intercepts, β for columns shifted and scaled by the design.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fsgld.errors import InputError, brief
from fsgld.glm.design import Design
from fsgld.glm.hierarchy import Quadratic, Transport, draw_mean, make_transport, taylor
from fsgld.glm.priors import Prior, log_positive, log_real, parse_prior
from fsgld.model import Model


@dataclass(frozen=True)
class Builder:
    """A design's model in pieces: the places in w, and the priors in inner units."""

    design: Design
    intercepts: int
    coefficients: list[Prior]
    intercept: Prior
    aux: Prior | None
    tau: Prior

    @property
    def size(self) -> int:
        """The length of w."""
        return self.intercepts + len(self.coefficients) + (self.aux is not None)

    def eta(self, w: Array, row: dict[str, Array]) -> Array:
        """Evaluate η = intercept + x·β + offset."""
        k, p = self.intercepts, len(self.coefficients)
        eta = row["x"] @ w[k : k + p] if p else jnp.zeros((), w.dtype)
        if k:
            eta = eta + (w[row["site"]] if self.design.site_effects != "none" else w[0])
        return eta + row["offset"] if "offset" in row else eta

    def log_likelihood(self, w: Array, row: dict[str, Array]) -> Array:
        """Evaluate the log-likelihood of one row."""
        return self.design.distribution.log_likelihood(row, self.eta(w, row), w[-1])

    def log_prior(self, w: Array, sites: bool = True) -> Array:
        """Evaluate the log prior of w; without that of the intercepts if `sites` is False."""
        k, p = self.intercepts, len(self.coefficients)
        value = log_real(self.coefficients, w[k : k + p])
        if self.aux:
            value = value + log_positive(self.aux, w[-1])
        return value + log_real([self.intercept] * k, w[:k]) if sites else value

    def pilot(self) -> Model:
        """Build the model with τ at its prior's scale: a first fit that gives the hierarchy its coordinates."""
        (m, s), v, S = self.intercept.arguments, self.tau.typical() ** 2, self.intercepts

        def log_prior(p: Any) -> Array:
            a = p["w"][:S] - m
            gap = a - jnp.mean(a)
            return self.log_prior(p["w"], sites=False) - 0.5 * (
                jnp.sum(gap**2) / v + S * jnp.mean(a) ** 2 / (v + S * s**2)
            )

        return Model(log_prior, lambda p, row: self.log_likelihood(p["w"], row), {"w": self.start()})

    def start(self) -> np.ndarray:
        """Start with intercepts where their prior is centred, no effects, and the unit for σ or φ."""
        return np.r_[np.full(self.intercepts, self.intercept.arguments[-2]), np.zeros(self.size - self.intercepts)]

    def transport(self) -> Transport:
        """Make the hierarchy's coordinates from the design's pilot."""
        pilot = self.design.pilot
        if pilot is None:
            raise InputError("this design has hierarchical site effects but no pilot fit yet; use Design.with_pilot")
        w0, g, P = (np.asarray(pilot[key], float) for key in ("theta", "gradient", "precision"))
        more_g, more_P = taylor(lambda w: self.log_prior(w, sites=False), w0)
        return make_transport(Quadratic(w0, g + more_g, P + more_P), self.intercepts, self.intercept, self.tau)

    def model(self) -> Model:
        """Build the model that is sampled."""
        if self.design.site_effects != "hierarchical":
            likelihood = lambda p, row: self.log_likelihood(p["w"], row)  # noqa: E731
            return Model(lambda p: self.log_prior(p["w"]), likelihood, {"w": self.start()})
        transport = self.transport()

        def missed(p: Any, log_density: Callable[[Array], Array]) -> Array:
            return transport.remainder(log_density, transport.to_w(p["xi"], p["t"]))

        def log_prior(p: Any) -> Array:
            rest = missed(p, lambda w: self.log_prior(w, sites=False))
            return rest - 0.5 * (jnp.sum(p["xi"] ** 2) + p["t"] ** 2)

        start = {"t": np.zeros(()), "xi": np.zeros(self.size)}
        return Model(log_prior, lambda p, row: missed(p, lambda w: self.log_likelihood(w, row)), start)

    def inner(self, draws: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Give w, and τ where there is one, for draws of the model."""
        if "w" in draws:
            return np.asarray(draws["w"], float), None
        transport = self.transport()
        flat = jax.jit(jax.vmap(jax.vmap(transport.to_w)))
        w = np.asarray(flat(jnp.asarray(draws["xi"]), jnp.asarray(draws["t"])), float) + transport.quadratic.w0
        return w, np.exp(transport.log_tau(np.asarray(draws["t"], float)))

    def named(self, draws: Any, seed: int = 0) -> OrderedDict[str, np.ndarray]:
        """Turn draws of the model, leaves (chains, draws, …), into parameters in the user's units, by name."""
        d, named = self.design, OrderedDict[str, np.ndarray]()
        (shift, unit), k, p = d.unit, self.intercepts, len(self.coefficients)
        w, tau = self.inner(draws)
        beta = w[..., k : k + p] * unit / np.array(d.scale)
        inner, at_zero = w[..., :k], shift - beta @ np.array(d.centre)
        if tau is not None:
            mean = draw_mean(inner, tau, self.intercept, seed)
            named["Intercept"] = at_zero + unit * mean
            named |= {name: beta[..., j] for j, name in enumerate(d.columns)}
            named |= {f"site[{s}]": unit * (inner[..., i] - mean) for i, s in enumerate(d.sites)}
            named["tau"] = unit * tau
        else:
            names = [f"Intercept[{s}]" for s in d.sites] if d.site_effects == "separate" else ["Intercept"]
            named |= {name: at_zero + unit * inner[..., i] for i, name in enumerate(names[:k])}
            named |= {name: beta[..., j] for j, name in enumerate(d.columns)}
        if self.aux and d.distribution.aux:
            named[d.distribution.aux] = np.exp(w[..., -1]) * unit
        return OrderedDict((name, column.astype(np.float32)) for name, column in named.items())


def default_priors(design: Design) -> dict[str, Prior]:
    """Give every parameter its default prior, in the user's units."""
    family, (_, unit) = design.distribution, design.unit
    mean = design.outcome[0] if family.has_unit else 0.0
    if family.counts:
        mean = float(np.log(max(design.outcome[0], 1e-6)))
    priors = {"Intercept": Prior("normal", (mean, 2.5 * unit))} if design.parsed.intercept else {}
    priors |= {c: Prior("normal", (0.0, 2.5 * unit / s)) for c, s in zip(design.columns, design.scale, strict=True)}
    if family.aux:
        priors[family.aux] = Prior("exponential", (1 / unit,))
    if design.site_effects == "hierarchical":
        priors["tau"] = Prior("half_normal", (unit,))
    return priors


def choose_priors(design: Design, given: dict[str, Any] | None) -> dict[str, str]:
    """Put the user's priors in place of defaults; "coefficients" stands for all columns."""
    priors, given = default_priors(design), dict(given or {})
    for_all = given.pop("coefficients", None)
    wanted = (dict.fromkeys(design.columns, for_all) if for_all is not None else {}) | given
    for name, text in wanted.items():
        if name not in priors:
            raise InputError(f"there is no parameter {brief(name)} to give a prior; there are {', '.join(priors)}")
        priors[name] = parse_prior(str(text), name in ("sigma", "phi", "tau") and name not in design.columns, name)
    if "Intercept" in priors and priors["Intercept"].name != "normal":
        raise InputError("the Intercept takes a normal prior; got " + str(priors["Intercept"]))
    return {name: f"{prior.name}({', '.join(map(repr, prior.arguments))})" for name, prior in priors.items()}


def build(design: Design) -> Builder:
    """Collect the pieces of a design's model; priors go into inner units."""
    given, (shift, unit) = dict(design.priors or {}), design.unit

    def inner(name: str, positive: bool, move: float, by: float) -> Prior:
        return parse_prior(given[name], positive, name).in_units(move, by)

    coefficients = [inner(c, False, 0.0, unit / s) for c, s in zip(design.columns, design.scale, strict=True)]
    intercepts = 0 if not design.parsed.intercept else 1 if design.site_effects == "none" else len(design.sites)
    aux = design.distribution.aux
    return Builder(
        design, intercepts, coefficients,
        inner("Intercept", False, shift, unit) if intercepts else Prior("normal", (0.0, 1.0)),
        inner(aux, True, 0.0, unit) if aux else None,
        inner("tau", True, 0.0, unit) if design.site_effects == "hierarchical" else Prior("half_normal", (1.0,)),
    )  # fmt: skip
