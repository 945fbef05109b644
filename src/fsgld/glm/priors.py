"""Priors: how they are written, their log densities, and the defaults that follow the data's scale.

Defaults are those of rstanarm and bambi in kind: with centred predictors, and s_x, s_y the sds of a column and of the
outcome (1 where the outcome has no unit: logits and log rates),

    coefficient ~ normal(0, 2.5 s_y/s_x)      Intercept ~ normal(m, 2.5 s_y)      sigma ~ exponential(1/s_y)
    tau ~ half_normal(s_y)                    phi ~ exponential(1)

m is the outcome's mean (gaussian), the log of its mean rate (counts), or 0 (logits).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fsgld.errors import InputError, brief

REAL = {"normal": ("location", "scale"), "student_t": ("df", "location", "scale")}
POSITIVE = {"half_normal": ("scale",), "half_t": ("df", "scale"), "exponential": ("rate",)}
SCALES = {"normal": 1, "student_t": 2, "half_normal": 0, "half_t": 1, "exponential": 0}  # which argument has the unit
LOCATIONS = {"normal": 0, "student_t": 1}


class Prior(NamedTuple):
    """A prior of one parameter, as normal(0, 2.5)."""

    name: str
    arguments: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{value:.4g}' for value in self.arguments)})"

    def in_units(self, shift: float, unit: float) -> Prior:
        """Give the prior of (parameter − shift)/unit."""
        values, k = list(self.arguments), SCALES[self.name]
        values[k] = values[k] * unit if self.name == "exponential" else values[k] / unit
        if self.name in LOCATIONS:
            values[LOCATIONS[self.name]] = (values[LOCATIONS[self.name]] - shift) / unit
        return Prior(self.name, tuple(values))

    def typical(self) -> float:
        """Give a value that a positive prior finds typical: its scale."""
        value = self.arguments[SCALES[self.name]]
        return 1 / value if self.name == "exponential" else value


def parse_prior(text: str, positive: bool | None, what: str) -> Prior:
    """Read "normal(0, 2.5)"; for positive parameters half_normal, half_t or exponential; any of them for None."""
    kinds = REAL | POSITIVE if positive is None else POSITIVE if positive else REAL
    found = re.fullmatch(r"\s*([a-z_]+)\s*\(([^()]*)\)\s*", str(text))
    name = found.group(1) if found else ""
    choices = ", ".join(f"{kind}({', '.join(arguments)})" for kind, arguments in kinds.items())
    try:
        values = tuple(float(part) for part in found.group(2).split(",")) if found else ()
    except ValueError:
        values = ()
    if name not in kinds or len(values) != len(kinds[name]) or not np.isfinite(values).all():
        raise InputError(f"the prior of {what} must be one of {choices}, with numbers; got {brief(text)}")
    k = LOCATIONS.get(name)
    if any(value <= 0 for i, value in enumerate(values) if i != k):
        raise InputError(f"the prior of {what}: all but the location must be positive; got {brief(text)}")
    return Prior(name, values)


def log_real(priors: list[Prior], x: Array) -> Array:
    """Evaluate the sum of log densities of real parameters, each with its own prior."""
    if not priors:
        return jnp.zeros(())
    is_t = np.array([prior.name == "student_t" for prior in priors])
    df, location, scale = np.array([(1.0, *p.arguments) if p.name == "normal" else p.arguments for p in priors]).T
    as_x: Any = lambda values: jnp.asarray(values, x.dtype)  # noqa: E731
    z = (x - as_x(location)) / as_x(scale)
    if not is_t.any():
        return -0.5 * jnp.sum(z**2)
    heavy = -(as_x(df) + 1) / 2 * jnp.log1p(z**2 / as_x(df))
    return jnp.sum(jnp.where(is_t, heavy, -0.5 * z**2))


def log_positive(prior: Prior, log_x: Array) -> Array:
    """Evaluate the log density of log x for a positive parameter x: that of x, plus the Jacobian log x."""
    x = jnp.exp(log_x)
    if prior.name == "exponential":
        return log_x - prior.arguments[0] * x
    if prior.name == "half_normal":
        return log_x - 0.5 * (x / prior.arguments[0]) ** 2
    df, scale = prior.arguments
    return log_x - (df + 1) / 2 * jnp.log1p((x / scale) ** 2 / df)
