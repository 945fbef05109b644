r"""Gaussian surrogates in natural parameters, with arithmetic.

A surrogate q_s stands for a client's likelihood p(x_s | θ):

    log q_s(θ) = ⟨shift_s, θ⟩ − ½ θᵀ Λ_s θ + const.

Products of densities are sums of natural parameters and powers are multiples, so the conducive
gradient of the paper is the gradient of one value: `(q - q_s / f_s).grad_log(theta)`. Surrogates
may be improper or indefinite; only prior × q has to be a density.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fsgld.errors import InputError
from fsgld.programs import put


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Gaussian:
    """A Gaussian factor log q(θ) = ⟨shift, θ⟩ − ½ θᵀ precision θ, up to a constant.

    Parameters
    ----------
    shift
        The linear natural parameter, shape (d,); with a leading axis, one row a client.
    precision
        A matrix (d, d) for a *dense* surrogate, a vector (d,) for a *diagonal* one, None for a
        *linear* one (Λ = 0). Need not be positive definite.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> q1 = Gaussian.from_precision(jnp.array([1.0, 0.0]), jnp.array([2.0, 2.0]))
    >>> q2 = Gaussian.from_precision(jnp.array([0.0, 3.0]), jnp.array([2.0, 4.0]))
    >>> (q1 + q2).mean.round(6).tolist()
    [0.5, 2.0]
    """

    shift: Float[Array, "*s d"]
    precision: Float[Array, "*s d d"] | Float[Array, "*s d"] | None = None

    @staticmethod
    def from_precision(mean: Array, precision: Array) -> Gaussian:
        """Build from a mean and a precision (a matrix, or a vector for a diagonal one)."""
        mean, precision = _floats(mean), _floats(precision)
        _check_shapes("precision", mean, precision)
        return Gaussian(_apply(precision, mean), precision)

    @staticmethod
    def from_moments(mean: Array, covariance: Array | np.ndarray) -> Gaussian:
        """Build from a mean and a positive definite covariance (a matrix, or variances)."""
        mean, covariance = _floats(mean), np.asarray(covariance, float)
        _check_shapes("covariance", mean, covariance)
        if covariance.ndim == 1:
            if not np.all(covariance > 0):
                raise InputError(f"variances must be positive; the smallest given is {covariance.min():g}")
            return Gaussian.from_precision(mean, jnp.asarray(1.0 / covariance))
        precision = _inverse(covariance, "the covariance given to Gaussian.from_moments")
        return Gaussian.from_precision(mean, jnp.asarray(precision, mean.dtype))

    @staticmethod
    def flat(d: int) -> Gaussian:
        """Give the surrogate that says nothing, q ≡ 1; with it FSGLD is DSGLD."""
        return Gaussian(jnp.zeros(d))

    @staticmethod
    def stack(surrogates: Sequence[Gaussian]) -> Gaussian:
        """Put surrogates, one a client, into one value with a leading client axis."""
        if not surrogates:
            raise InputError("there is no surrogate to stack; give one a client")
        kind = max((q.kind for q in surrogates), key=_KINDS.index)
        alike = [q.to(kind) for q in surrogates]
        for q in alike:
            _check_size(alike[0], q)
        return jax.tree.map(_stack, *alike)

    @property
    def kind(self) -> str:
        """Name the form of the precision: "linear", "diagonal" or "dense"."""
        if self.precision is None:
            return "linear"
        return "dense" if self.precision.ndim > self.shift.ndim else "diagonal"

    def to(self, kind: str) -> Gaussian:
        """Write the same surrogate in a form at least as rich: linear ⊂ diagonal ⊂ dense."""
        if kind not in _KINDS:
            raise InputError(f"the form of a surrogate is one of {', '.join(_KINDS)}; got {kind!r}")
        have, want = _KINDS.index(self.kind), _KINDS.index(kind)
        if want < have:
            raise InputError(f"a {self.kind} surrogate cannot be written as a {kind} one")
        precision = jnp.zeros_like(self.shift) if self.precision is None and want > 0 else self.precision
        if have < 2 and want == 2 and precision is not None:
            precision = precision[..., None] * jnp.eye(self.shift.shape[-1], dtype=precision.dtype)
        return Gaussian(self.shift, precision)

    @property
    def mean(self) -> Float[Array, " d"]:
        """The mean Λ⁻¹ shift; an error in words if Λ is not positive definite."""
        shift = np.asarray(self.shift, float)
        diagonal = np.asarray(self.precision, float) if self.kind == "diagonal" else np.zeros(1)
        if shift.ndim == 1 and (diagonal > 0).all():  # no matrix is needed
            return jnp.asarray(shift / diagonal, _floats(self.shift).dtype)
        return jnp.asarray(self.covariance_float64() @ shift, _floats(self.shift).dtype)

    @property
    def covariance(self) -> Float[Array, "d d"]:
        """The covariance Λ⁻¹ as a matrix; an error in words if Λ is not positive definite."""
        return jnp.asarray(self.covariance_float64()).astype(_floats(self.shift).dtype)

    def covariance_float64(self) -> np.ndarray:
        """Invert the precision on the host in double precision."""
        if self.shift.ndim != 1:
            raise InputError(f"this is a stack of {len(self.shift)} clients; take one out with q[s], or q.total()")
        dense = np.asarray(self.to("dense").precision, float)
        return _inverse(dense, "the precision of this surrogate")

    def log(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """Evaluate log q(θ) up to its constant."""
        self._check_one(theta)
        return self.shift @ theta - 0.5 * theta @ _apply(self.precision, theta)

    def grad_log(self, theta: Float[Array, " d"]) -> Float[Array, " d"]:
        """Evaluate ∇log q(θ) = shift − Λθ."""
        self._check_one(theta)
        if self.precision is None:
            return self.shift
        return self.shift - _apply(self.precision, theta)

    def _check_one(self, theta: Array) -> None:
        """Check the shapes, which are known when a program is traced: one surrogate, one θ."""
        if self.shift.ndim != 1 or theta.shape != self.shift.shape:
            raise InputError(
                f"a surrogate of shape {self.shift.shape} was given θ of shape {theta.shape}; take one client out of a"
                " stack with q[s], and use jax.vmap for many θ"
            )

    def total(self) -> Gaussian:
        """Multiply the surrogates of a stack: q = Π_s q_s."""
        if self.shift.ndim == 1:
            raise InputError("this surrogate is one client's; total() is for a stack (Gaussian.stack)")
        return jax.tree.map(lambda leaf: leaf.sum(0), self)

    def __len__(self) -> int:
        """Count the clients of a stack."""
        return len(self.shift) if self.shift.ndim > 1 else 1

    def __getitem__(self, s: int | Array) -> Gaussian:
        """Take client s out of a stack."""
        if self.shift.ndim == 1:
            raise InputError("this surrogate is one client's; only a stack (Gaussian.stack) can be indexed")
        if isinstance(s, int) and not -len(self) <= s < len(self):
            raise IndexError(f"client {s} of a stack of {len(self)}")
        return jax.tree.map(lambda leaf: leaf[s], self)

    def __add__(self, other: Gaussian) -> Gaussian:
        if not isinstance(other, Gaussian):
            return NotImplemented
        _check_size(self, other)
        kind = max(self.kind, other.kind, key=_KINDS.index)
        return jax.tree.map(jnp.add, self.to(kind), other.to(kind))

    def __mul__(self, power: float | Array) -> Gaussian:
        return jax.tree.map(lambda leaf: leaf * _one_number(power), self)

    __rmul__ = __mul__

    def __truediv__(self, power: float | Array) -> Gaussian:
        return jax.tree.map(lambda leaf: leaf / _one_number(power), self)

    def __neg__(self) -> Gaussian:
        return self * -1.0

    def __sub__(self, other: Gaussian) -> Gaussian:
        return self + (-other)


_KINDS = ("linear", "diagonal", "dense")


def _floats(numbers: Any) -> Array:
    """Make an array of floating-point numbers; whole ones would be cut off later."""
    array = jnp.asarray(numbers)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def _stack(*leaves: Any) -> Array:
    """Put arrays into one on the host; inside of a program, where they have no values yet, as JAX does it."""
    try:
        return put(np.stack([np.asarray(leaf) for leaf in leaves]))
    except jax.errors.TracerArrayConversionError:
        return jnp.stack(leaves)


def _check_size(one: Gaussian, other: Gaussian) -> None:
    """Check that two surrogates are of the same parameters and, if both are stacks, of the same clients."""
    shapes = one.shift.shape, other.shift.shape
    alike = shapes[0] == shapes[1] if len(shapes[0]) == len(shapes[1]) else shapes[0][-1:] == shapes[1][-1:]
    if not alike:
        raise InputError(f"surrogates of shapes {shapes[0]} and {shapes[1]} do not go together")


def _one_number(power: Any) -> Any:
    """Check a power: one number, of a single client, or of a program that is being mapped over clients."""
    if isinstance(power, Gaussian) or np.ndim(power) != 0:
        given = "a surrogate" if isinstance(power, Gaussian) else f"{np.ndim(power)} axes"
        raise InputError(f"a surrogate is multiplied or divided by one number; got {given}. Use jax.vmap for a stack")
    return power


def _apply(precision: Array | None, theta: Array) -> Array:
    """Evaluate Λθ for any form of Λ."""
    if precision is None:
        return jnp.zeros_like(theta)
    return precision @ theta if precision.ndim > theta.ndim else precision * theta


def _check_shapes(what: str, mean: Any, matrix: Any) -> None:
    """Check that a mean and a precision or covariance (a matrix, or a vector) are of one size."""
    shape, d = np.shape(mean), np.shape(mean)[-1:]
    if np.shape(matrix) not in (shape, shape + d):
        raise InputError(
            f"mean and {what} must be of one size; got a mean of shape {shape} and a {what} of shape {np.shape(matrix)}"
        )


def _inverse(matrix: np.ndarray, what: str) -> np.ndarray:
    """Invert a symmetric positive definite matrix, or say in words that it is not one."""
    matrix = np.asarray(matrix, float)
    if (np.abs(matrix - matrix.T) > 1e-3 * np.abs(matrix).max()).any():  # False for NaN
        raise InputError(f"{what} is not symmetric; give the matrix itself, not a factor of it")
    try:
        if not np.isfinite(matrix).all():
            raise np.linalg.LinAlgError
        root = np.linalg.inv(np.linalg.cholesky(matrix))
    except np.linalg.LinAlgError:
        lowest = np.linalg.eigvalsh(matrix).min() if np.isfinite(matrix).all() else np.nan
        raise InputError(
            f"{what} is not positive definite (smallest eigenvalue {lowest:.3g}), so it has no"
            " inverse as a Gaussian; add the prior's precision first, or keep natural parameters"
        ) from None
    return root.T @ root
