"""A model: a prior and the likelihood of one row, and their gradients on a flat vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from fsgld.errors import InputError, brief, first_line
from fsgld.programs import put
from fsgld.rewrite import rewrite

Params = Any
Row = Any
Theta = Float[Array, " d"]


@dataclass(frozen=True)
class Model:
    """A Bayesian model for rows that are independent given the parameters.

    Parameters
    ----------
    log_prior
        `log_prior(params)`, the log density of the prior up to a constant.
    log_likelihood
        `log_likelihood(params, row)`, the log density of ONE row; the library sums. A row has
        the structure of the data without its first axis: an array, a tuple, a dict of columns.
    init
        Where chains start: a pytree of arrays, or a function of a JAX key that returns one (then
        every chain has its own start). It also fixes the structure of the parameters. With
        surrogates="auto" it is where the search for the mode starts.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> normal_mean = Model(
    ...     log_prior=lambda p: -0.5 * jnp.sum(p["mu"] ** 2),
    ...     log_likelihood=lambda p, x: -0.5 * jnp.sum((x - p["mu"]) ** 2),
    ...     init={"mu": jnp.zeros(2)},
    ... )
    """

    log_prior: Callable[[Params], Array]
    log_likelihood: Callable[[Params, Row], Array]
    init: Params | Callable[[Array], Params]

    def start(self, key: Array | None = None) -> Params:
        """Give the start of one chain as a pytree of floating-point arrays."""
        params = self.init
        if callable(params):
            try:
                params = params(jax.random.key(0) if key is None else key)
            except Exception as error:
                raise InputError(
                    f"init fails: {first_line(error)}; give arrays, or a function of a JAX key that returns them"
                ) from error
        try:
            leaves = jax.tree.leaves(params)
        except ValueError as error:
            raise InputError(f"init cannot be read: {first_line(error)}; give all keys of a dict as text") from error
        if not sum(map(np.size, leaves)):
            raise InputError(f"init holds no parameter; got {brief(params)}, give an array or a pytree of arrays")
        return jax.tree_util.tree_map_with_path(_as_float, params)

    def flatten(self) -> FlatModel:
        """See the model as a function of the flat vector θ."""
        kept: list[Any] = []  # from within a trace, so that no program is compiled
        jax.eval_shape(lambda params: kept.append(ravel_pytree(params)[1]), self.start())
        return FlatModel(self.log_prior, self.log_likelihood, *kept)


class FlatModel(NamedTuple):
    """The model on the flat vector θ. Hashable, so compiled programs are found again.

    The fingerprint says what the functions compute now: a function that reads a variable outside of itself is
    another function when that variable has changed.
    """

    prior: Callable[[Params], Array]
    likelihood: Callable[[Params, Row], Array]
    unravel: Callable[[Theta], Params]
    fingerprint: str = ""
    rewritten: bool = False  # whether gradients are rewritten for XLA's CPU compiler

    def log_prior(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log p(θ)."""
        return self.prior(self.unravel(theta))

    def log_likelihood(self, theta: Theta, rows: Row) -> Float[Array, " m"]:
        """Evaluate log p(x_i | θ) for every row of a batch."""
        return jax.vmap(self.likelihood, in_axes=(None, 0))(self.unravel(theta), rows)

    def grad_log_prior(self, theta: Theta) -> Theta:
        """Evaluate ∇log p(θ)."""
        return jax.grad(self.log_prior)(theta)

    def grad_log_likelihood(self, theta: Theta, rows: Row, weights: Float[Array, " m"] | None = None) -> Theta:
        """Evaluate Σ_i w_i ∇log p(x_i | θ) over the rows of a batch; weights are 1 by default."""
        add = jnp.sum if weights is None else partial(jnp.dot, weights)
        gradient = jax.grad(lambda t: add(self.log_likelihood(t, rows)))
        return (rewrite(gradient) if self.rewritten else gradient)(theta)


def as_theta(model: Model, params: Params, what: str) -> Theta:
    """Flatten parameters that look like the model's init; a flat vector θ is taken as it is."""
    start = model.start()
    theta = ravel(start)
    looks: Any = lambda tree: (jax.tree.structure(tree), [np.shape(leaf) for leaf in jax.tree.leaves(tree)])  # noqa: E731
    if looks(params) != looks(start) and looks(params) != looks(theta):
        raise InputError(
            f"the {what} must look like the model's init ({theta.size} parameters: {_shapes(start)});"
            f" got {_shapes(params)}"
        )
    return ravel(jax.tree_util.tree_map_with_path(_as_float, params))


def ravel(params: Params) -> Theta:
    """Put parameters into a flat vector, on the host."""
    return put(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]))


def leaf_names(params: Params) -> list[str]:
    """Name every scalar parameter by its path, "w[0]"; a single array is "theta"."""
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        stem = jax.tree_util.keystr(path, simple=True, separator=".") or "theta"
        names += [stem + (str(list(i)) if np.shape(leaf) else "") for i in np.ndindex(*np.shape(leaf))]
    return names


def describe(tree: Any) -> str:
    """Say in one line what arrays a function is given: types and shapes."""
    return brief(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree), 120)


def _shapes(params: Params) -> str:
    """Describe parameters in one line: shapes of arrays, and what is no array."""
    shape: Any = lambda leaf: f"array{list(leaf.shape)}" if hasattr(leaf, "shape") else leaf  # noqa: E731
    return brief(jax.tree.map(shape, params), 100)


def _as_float(path: Any, leaf: Any) -> Array:
    """Turn a parameter into a floating-point array, or say why it cannot be one."""
    try:
        if isinstance(leaf, int | float | np.number | np.ndarray) and not np.ma.isMaskedArray(leaf):
            array: Any = np.asarray(leaf, float if isinstance(leaf, int) else None)  # on the host: nothing is compiled
        else:
            array = jnp.asarray(leaf)
        kind: Any = float if array.dtype.kind in "biu" else jnp.promote_types(array.dtype, jnp.float32)
        array = array.astype(kind)
        array = put(array) if isinstance(array, np.ndarray) else array
    except (TypeError, ValueError, OverflowError):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "it"
        raise InputError(f"init must hold numbers, but {name} is {brief(leaf)}") from None
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise InputError(f"parameters must be real; init holds an array of dtype {array.dtype}")
    return array
