"""How a gradient moves the chain: langevin, whitened, sghmc, psgld.

One convention, the paper's (Eq. 1): drift h/2, noise variance h. A dynamics sees a gradient
estimate v of the whole log posterior (the library has scaled it), never a mean loss. Everything
that a chain needs to go on elsewhere is in its `State`: θ, the memory of the dynamics (momentum,
second moments) and the step counter t. All of it travels with the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fsgld.errors import InputError, brief, is_number
from fsgld.model import Theta
from fsgld.programs import put
from fsgld.schedules import Constants, Schedule, as_schedule

Memory = Any


class State(NamedTuple):
    """What travels with a chain."""

    theta: Theta
    memory: Memory
    t: Int[Array, ""]


Rule = Callable[[Constants, Array, Theta, Memory, Theta, Theta], tuple[Theta, Memory]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Dynamics:
    """A transition θ_t → θ_{t+1}: a rule (code), a schedule and constants (data).

    Its numbers are arrays, so that another step size does not compile another program.
    """

    name: str = field(metadata={"static": True})
    rule: Rule = field(metadata={"static": True}, repr=False)
    memory: Callable[[Theta], Memory] = field(metadata={"static": True}, repr=False)
    schedule: Schedule
    constants: Constants = field(default_factory=dict)

    def init(self, theta: Theta) -> State:
        """Begin a chain at θ."""
        return State(theta, self.memory(theta), jnp.zeros((), jnp.int32))

    def first_step(self) -> float:
        """Give h of the first step."""
        return float(self.schedule(put(0, np.int32)))

    def step(self, state: State, v: Theta, xi: Theta) -> State:
        """Move by the gradient estimate v and the standard normal vector ξ."""
        h = self.schedule(state.t).astype(xi.dtype)
        theta, memory = self.rule(self.constants, h, state.theta, state.memory, v, xi)
        return State(theta, memory, state.t + 1)

    @property
    def needs_precision(self) -> bool:
        """Whether the precision of prior × q is still to be given."""
        return self.name == "whitened" and "factor" not in self.constants

    def with_precision(self, precision: Any) -> Dynamics:
        """Whiten with M = precision⁻¹; a matrix (d, d), or a vector for a diagonal one."""
        return replace(self, constants={"factor": put(_inverse_root(precision))})

    def with_factor(self, other: Dynamics) -> Dynamics:
        """Take the coordinates of another `whitened`."""
        return replace(self, constants=other.constants)

    def tamed(self, mean: Any, limit: float) -> Dynamics:
        """Bound the residual of `whitened` (see there) by a norm of `limit`; the memory counts steps that met it."""
        L = np.asarray(self.constants["factor"], float)
        more = {"inverse": 1 / L if L.ndim == 1 else np.linalg.inv(L), "mean": np.asarray(mean, float), "limit": limit}
        constants = self.constants | {name: put(value) for name, value in more.items()}
        return replace(self, rule=_tamed, memory=_no_steps, constants=constants)


def langevin(step_size: float | Schedule) -> Dynamics:
    """Langevin dynamics, Eqs. (1) and (5) of the paper: θ' = θ + (h/2) v + √h ξ.

    Parameters
    ----------
    step_size
        h > 0, or a schedule from `fsgld.schedules`.
    """
    return Dynamics("langevin", _langevin, _nothing, as_schedule(step_size))


def whitened(step_size: float | Schedule = 0.1, precision: Array | None = None) -> Dynamics:
    """Exact Ornstein–Uhlenbeck steps in the coordinates of prior × q.

    With M = (Λ₀ + Λ)⁻¹ = L Lᵀ and ρ = exp(−h/2),

        θ' = θ + (1 − ρ) M v + √(1 − ρ²) L ξ.

    In z = L⁻¹(θ − μ) this is z' = ρ z + (1 − ρ) r + √(1 − ρ²) ξ, where r is what v has beyond the
    Gaussian part. Without a residual it leaves N(μ, M) exactly invariant, for any h. M is
    fixed, so no correction term is missing; h has no unit.

    Where `sample` chooses the step size it also tames r: r min(1, c/‖r‖) takes its place, with c several times
    what the pre-flight saw. As z ↦ ρz contracts and r is bounded, such a chain cannot run away, whatever h. The
    law is changed only where ‖r‖ > c; the result says in which share of the steps that was.

    Parameters
    ----------
    step_size
        h > 0, or a schedule. About 0.05 to 0.3 is typical.
    precision
        Λ₀ + Λ, a matrix or a vector; by default `sample` takes it from the prior and surrogates.
    """
    dynamics = Dynamics("whitened", _whitened, _nothing, as_schedule(step_size))
    return dynamics if precision is None else dynamics.with_precision(precision)


def sghmc(step_size: float | Schedule, friction: float = 0.1) -> Dynamics:
    """Stochastic gradient HMC (Chen, Fox and Guestrin, 2014, Eq. 15) with friction a:

        p' = (1 − a) p + (h/2) v + √(a h) ξ,     θ' = θ + p'.

    With a = 1 it is `langevin`. The momentum p travels with the chain.

    Parameters
    ----------
    step_size
        h > 0, or a schedule; h/2 is Chen's η.
    friction
        0 < a ≤ 1, the share of momentum lost a step.
    """  # noqa: D400
    if not is_number(friction) or not 0 < friction <= 1:
        raise InputError(f"friction must be in (0, 1]; got {brief(friction)}")
    constants = {"friction": jnp.asarray(float(friction))}
    return Dynamics("sghmc", _sghmc, jnp.zeros_like, as_schedule(step_size), constants)


def psgld(step_size: float | Schedule, decay: float = 0.99, floor: float = 1e-5) -> Dynamics:
    """Preconditioned SGLD (Li et al., 2016): RMSprop's diagonal as a preconditioner,

        V' = β V + (1 − β) v²,   G = 1/(λ + √V'),   θ' = θ + (h/2) G v + √(h G) ξ.

    As is usual the term Γ(θ) is left out, so the stationary law is biased even as h → 0 (by an
    amount that shrinks as β → 1). V starts at v² of the first step and travels with the chain.

    Parameters
    ----------
    step_size
        h > 0, or a schedule; in units of the preconditioned coordinates.
    decay
        0 < β < 1.
    floor
        λ > 0.
    """  # noqa: D400
    if not is_number(decay) or not 0 < decay < 1:
        raise InputError(f"decay must be between 0 and 1; got {brief(decay)}")
    if not is_number(floor) or not floor > 0:
        raise InputError(f"floor must be positive and finite; got {brief(floor)}")
    constants = {"decay": jnp.asarray(float(decay)), "floor": jnp.asarray(float(floor))}
    return Dynamics("psgld", _psgld, _unset, as_schedule(step_size), constants)


def _langevin(c: Constants, h: Array, theta: Theta, memory: Memory, v: Theta, xi: Theta) -> Any:
    return theta + h / 2 * v + jnp.sqrt(h) * xi, memory


def _whitened(c: Constants, h: Array, theta: Theta, memory: Memory, v: Theta, xi: Theta) -> Any:
    L = c["factor"].astype(xi.dtype)
    drift, noise = -jnp.expm1(-h / 2), jnp.sqrt(-jnp.expm1(-h))  # 1 − ρ and √(1 − ρ²)
    if L.ndim == 1:
        return theta + L * (drift * L * v + noise * xi), memory
    return theta + L @ (drift * (v @ L) + noise * xi), memory


def _tamed(c: Constants, h: Array, theta: Theta, met: Memory, v: Theta, xi: Theta) -> Any:
    L, inverse, mean, limit = (c[name].astype(xi.dtype) for name in ("factor", "inverse", "mean", "limit"))
    drift, noise = -jnp.expm1(-h / 2), jnp.sqrt(-jnp.expm1(-h))
    z = inverse * (theta - mean) if L.ndim == 1 else inverse @ (theta - mean)
    r = (L * v if L.ndim == 1 else v @ L) + z
    size = jnp.linalg.norm(r)
    bounded = jnp.where(size < limit, r, jnp.nan_to_num(r * (limit / size)))  # r may be infinite, or not a number
    move = drift * (bounded - z) + noise * xi
    return theta + (L * move if L.ndim == 1 else L @ move), met + ~(size < limit)


def _sghmc(c: Constants, h: Array, theta: Theta, p: Memory, v: Theta, xi: Theta) -> Any:
    a = c["friction"].astype(xi.dtype)
    p = (1 - a) * p + h / 2 * v + jnp.sqrt(a * h) * xi
    return theta + p, p


def _psgld(c: Constants, h: Array, theta: Theta, V: Memory, v: Theta, xi: Theta) -> Any:
    beta, floor = c["decay"].astype(xi.dtype), c["floor"].astype(xi.dtype)
    V = jnp.where(V < 0, v**2, beta * V + (1 - beta) * v**2)  # V < 0: the first step
    G = 1 / (floor + jnp.sqrt(V))
    return theta + h / 2 * G * v + jnp.sqrt(h * G) * xi, V


def _nothing(theta: Theta) -> Memory:
    """Keep no memory."""
    return ()


def _no_steps(theta: Theta) -> Memory:
    """Count from nought."""
    return jnp.zeros((), jnp.int32)


def _unset(theta: Theta) -> Memory:
    """Mark second moments that no gradient has set yet."""
    return -jnp.ones_like(theta)


def _inverse_root(precision: Any) -> Float[np.ndarray, ...]:
    """Find L with L Lᵀ = precision⁻¹, in double precision on the host."""
    try:
        P = np.asarray(precision, float)
    except (TypeError, ValueError):
        P = np.zeros(())
    if P.ndim not in (1, 2) or P.shape != P.shape[:1] * P.ndim:
        given = brief(precision) if P.ndim else f"{brief(precision)} of shape ()"
        raise InputError(f"the precision of whitened must be a square matrix or a vector; got {given}")
    if P.ndim == 2 and (np.abs(P - P.T) > 1e-3 * np.abs(P).max()).any():  # False for NaN
        raise InputError("the precision of whitened must be symmetric; a factor of it is not enough")
    try:
        lowest = np.linalg.eigvalsh(P).min() if P.ndim == 2 and np.isfinite(P).all() else P.min()
        if not lowest > 0:
            raise np.linalg.LinAlgError
        return P**-0.5 if P.ndim == 1 else np.linalg.inv(np.linalg.cholesky(P)).T
    except np.linalg.LinAlgError:
        raise InputError(
            "whitened needs prior × q to be a density (a positive definite precision), but the smallest eigenvalue"
            f" of its precision is {lowest:.3g}; refit the surrogates (fsgld.anchored) or use fsgld.langevin"
        ) from None
