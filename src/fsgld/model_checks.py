"""A model, checked before anything runs: it gives scalars, has gradients, and is finite where chains begin."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fsgld.checkpoint import digest
from fsgld.columns import blank_row
from fsgld.derivatives import all_clients
from fsgld.errors import InputError, brief, first_line
from fsgld.model import FlatModel, Model, Theta, as_theta, describe
from fsgld.programs import quick
from fsgld.rows import Shards


def check_model(model: Model, theta: Theta, table: Shards) -> FlatModel:
    """Check that prior and likelihood give real scalars for one row; flatten, with a fingerprint of both."""
    flat = model.flatten()
    row, params = blank_row(table.rows), jax.eval_shape(flat.unravel, theta)
    given = f"params {describe(params)},"
    calls: list[tuple[str, Callable[..., Any], tuple]] = [
        (f"log_prior(params), {given}", model.log_prior, ()),
        (f"log_likelihood(params, row), {given} one row {describe(row)},", model.log_likelihood, (row,)),
    ]
    programs = [_trace(name, function, params, *arguments) for name, function, arguments in calls]
    return flat._replace(fingerprint=digest(programs))


def _trace(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Trace a function of the model, check what it returns, and give its program and the constants in it."""
    try:  # a new function every time, or JAX would remember what it traced before
        program, out = jax.make_jaxpr(lambda *a: function(*a), return_shape=True)(*arguments)
    except Exception as error:
        inside = isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError)  # of values that are not there
        advice = "write it with jax.numpy, without if and loops over values"
        if not inside:
            advice = "mind the order of its arguments, and their names and shapes"
        raise InputError(f"{name} fails at init: {first_line(error)}; {advice}") from error
    if getattr(out, "shape", None) != ():
        raise InputError(
            f"{name} must return one number (a scalar); it returns"
            f" {getattr(out, 'shape', type(out).__name__)}. Sum inside the function"
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise InputError(f"{name} must return a real floating-point number, say 0.0 and not 0; it returns {out.dtype}")
    text = re.sub("0x[0-9a-f]+", "", str(program))  # addresses say nothing about what is computed
    return np.frombuffer(text.encode(), np.uint8), [np.asarray(constant) for constant in program.consts]


def check_finite_at(flat: FlatModel, theta: Theta, table: Shards, where: str) -> None:
    """Check that log densities and gradients are finite at θ; name the client and the row."""
    prior = _differentiated("log_prior", _prior_at, flat, theta)
    if not all(np.isfinite(x).all() for x in prior):
        raise InputError(
            f"the log prior or its gradient is not finite at {where} (value {prior[0]:.4g});"
            " give an init inside the prior's support"
        )
    values, G, _ = _differentiated("log_likelihood", all_clients, flat, theta, table)
    bad = ~(np.isfinite(values) & np.isfinite(G).all(1))
    if bad.any():
        s = int(np.argmax(bad))
        rows = np.asarray(flat.log_likelihood(theta, table.shard(s)))
        which = f"row {int(np.argmax(~np.isfinite(rows)))}" if not np.isfinite(rows).all() else "its gradient"
        raise InputError(
            f"{table.names[s]}: the log-likelihood is not finite at {where} ({which}); give another"
            " init (or anchor), or a likelihood that is finite there"
        )


def _differentiated(name: str, derivatives: Callable[..., Any], *args: Any) -> Any:
    """Evaluate derivatives, or say in words that a function has none."""
    try:
        return derivatives(*args)
    except (NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the gradient of {name} fails: {first_line(error)}; write it with functions that JAX can differentiate and"
            " vectorise (lax.scan or fori_loop of fixed length, no while_loop, no callbacks)"
        ) from error


@partial(quick, static_argnums=0)
def _prior_at(flat: FlatModel, theta: Theta) -> tuple[Float[Array, ""], Theta]:
    """Evaluate the log prior and its gradient."""
    return flat.log_prior(theta), flat.grad_log_prior(theta)


def check_start(
    start: Any, model: Model, flat: FlatModel, table: Shards, chains: int, dtype: Any
) -> Float[Array, "chains d"]:
    """Check where chains are to begin: parameters like the model's init, with an axis of chains before."""
    leaves = [np.shape(leaf) for leaf in jax.tree.leaves(start)]
    if any(shape[:1] != (chains,) for shape in leaves) or not leaves:
        raise InputError(
            f"start must have a leading axis of {chains} chains; got arrays of shapes {brief(leaves)}. Give parameters"
            " as result.draws holds them, one draw a chain"
        )
    each = (jax.tree.map(lambda leaf, c=c: leaf[c], start) for c in range(chains))
    thetas = jnp.stack([as_theta(model, params, "start of a chain") for params in each]).astype(dtype)
    for c, theta in enumerate(thetas):
        check_finite_at(flat, theta, table, f"the start of chain {c}")
    return thetas
