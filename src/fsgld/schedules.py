"""Step sizes h_t as functions of the step counter t that travels with each chain.

The convention of the whole library is the paper's: drift h/2, noise variance h (Eq. 1).
A schedule's numbers are data, not code: another step size does not compile another program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fsgld.errors import InputError, brief, is_number
from fsgld.programs import put

Step = Float[Array, ""]
Constants = dict[str, Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Schedule:
    """A step size h_t; call it with the step counter t."""

    name: str = field(metadata={"static": True})
    rule: Callable[[Constants, Array], Array] = field(metadata={"static": True}, repr=False)
    numbers: Constants = field(default_factory=dict)

    def __call__(self, t: Int[Array, ""]) -> Step:
        """Evaluate h_t."""
        return self.rule(self.numbers, t)

    def __str__(self) -> str:
        return f"{self.name}, " + ", ".join(f"{name} {float(value):g}" for name, value in self.numbers.items())


def constant(step_size: float) -> Schedule:
    """Keep h_t = h, as all of the paper's experiments do."""
    return Schedule("constant", _constant, _positive(step_size=step_size))


def polynomial(a: float, b: float = 1.0, gamma: float = 0.55) -> Schedule:
    """Decay as h_t = a (b + t)^(−γ); ½ < γ ≤ 1 gives Σh = ∞, Σh² < ∞ (Welling and Teh, 2011)."""
    return Schedule("polynomial", _polynomial, _positive(a=a, b=b, gamma=gamma))


def cosine(step_size: float, steps: int, final: float) -> Schedule:
    """Fall from h to `final` as h_t = f + ½(h − f)(1 + cos(π min(t/steps, 1))), then stay."""
    return Schedule("cosine", _cosine, _positive(step_size=step_size, steps=steps, final=final))


def cyclical(step_size: float, period: int) -> Schedule:
    """Restart every `period` steps: h_t = (h/2)(1 + cos(π (t mod period)/period)).

    Reference: Zhang et al., Cyclical stochastic gradient MCMC, ICLR 2020, Eq. (1).
    """
    return Schedule("cyclical", _cyclical, _positive(step_size=step_size, period=period))


def as_schedule(step_size: float | Schedule) -> Schedule:
    """Read a number as a constant schedule."""
    return step_size if isinstance(step_size, Schedule) else constant(step_size)


def _constant(n: Constants, t: Array) -> Array:
    """Evaluate h."""
    return n["step_size"]


def _polynomial(n: Constants, t: Array) -> Array:
    """Evaluate a (b + t)^(−γ)."""
    return n["a"] * (n["b"] + t) ** -n["gamma"]


def _cosine(n: Constants, t: Array) -> Array:
    """Evaluate f + ½(h − f)(1 + cos(π min(t/steps, 1)))."""
    phase = jnp.cos(jnp.pi * jnp.minimum(t / n["steps"], 1.0))
    return n["final"] + 0.5 * (n["step_size"] - n["final"]) * (1 + phase)


def _cyclical(n: Constants, t: Array) -> Array:
    """Evaluate (h/2)(1 + cos(π (t mod period)/period))."""
    return 0.5 * n["step_size"] * (1 + jnp.cos(jnp.pi * (t % n["period"]) / n["period"]))


def _positive(**numbers: float) -> Constants:
    """Check that every number of a schedule is positive and make them arrays."""
    for name, value in numbers.items():
        if not is_number(value) or not value > 0:
            raise InputError(f"{name} must be a positive finite number; got {brief(value)}")
    counts = ("period", "steps")  # whole numbers stay exact, and take the type of t
    return {name: jnp.asarray(value) if name in counts else put(value, float) for name, value in numbers.items()}
