"""What `sample` was given, checked: one clear sentence each, naming the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fsgld.derivatives import all_clients
from fsgld.dynamics import Dynamics
from fsgld.errors import InputError
from fsgld.likelihood import Likelihood
from fsgld.model import FlatModel, Model, Theta
from fsgld.run import ENGINES
from fsgld.shards import Shards
from fsgld.surrogates import Gaussian


def check_settings(given: dict[str, Any]) -> None:
    """Check the plain arguments of `sample`."""
    for name in ("batch_size", "local_steps", "rounds", "chains", "thin"):
        value = given[name]
        if name == "thin" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1; got {value!r}")
    if given["engine"] not in ENGINES:
        raise InputError(f"engine must be one of {sorted(ENGINES)}; got {given['engine']!r}")
    if isinstance(given["surrogates"], str) and given["surrogates"] != "auto":
        raise InputError(f'surrogates must be "auto", None or a list of fsgld.Gaussian; got {given["surrogates"]!r}')
    for name, kind in (("model", Model), ("dynamics", Dynamics), ("likelihood", Likelihood)):
        if given[name] is not None and not isinstance(given[name], kind):
            hints = {
                "model": "build it with fsgld.Model(log_prior, log_likelihood, init)",
                "dynamics": "give fsgld.langevin(step_size), whitened, sghmc or psgld",
                "likelihood": "give fsgld.plain or fsgld.control_variate",
            }
            raise InputError(f"{name} is {given[name]!r:.60}; {hints[name]}")
    if not np.ndim(given["alpha"]) == 0 or not np.isfinite(given["alpha"]) or given["alpha"] < 0:
        raise InputError(f"alpha must be a number of at least 0; got {given['alpha']!r}")


def check_probs(probs: Any, clients: int) -> np.ndarray:
    """Check the selection probabilities f_s."""
    if probs is None:
        return np.full(clients, 1 / clients)
    f = np.asarray(probs, float)
    if f.shape != (clients,):
        raise InputError(f"probs must hold one number for each of {clients} clients; got {f.shape}")
    if not (f > 0).all() or abs(f.sum() - 1) > 1e-6:
        worst = f" and {f.min():g} at client {f.argmin()}" if not (f > 0).all() else ""
        raise InputError(f"probs must be positive and sum to 1; got sum {f.sum():.6g} over {clients} clients{worst}")
    return f / f.sum()


def check_model(model: Model, flat: FlatModel, theta: Theta, table: Shards) -> None:
    """Check that prior and likelihood give scalars for one row."""
    row = jax.tree.map(lambda leaf: leaf[0], table.rows)
    shapes = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", row)
    calls: list[tuple[str, Callable[..., Any], tuple]] = [
        ("log_prior", model.log_prior, ()),
        (f"log_likelihood (of one row, {shapes})", model.log_likelihood, (row,)),
    ]
    for name, function, arguments in calls:
        try:
            out = jax.eval_shape(function, flat.unravel(theta), *arguments)
        except Exception as error:
            raise InputError(f"{name} fails at init: {type(error).__name__}: {error}") from error
        if getattr(out, "shape", None) != ():
            raise InputError(
                f"{name} must return one number (a scalar); it returns"
                f" {getattr(out, 'shape', type(out).__name__)}. Sum inside the function"
            )


def check_finite_at(flat: FlatModel, theta: Theta, table: Shards, where: str) -> None:
    """Check that log densities and gradients are finite at θ; name the client and the row."""
    prior = flat.log_prior(theta), flat.grad_log_prior(theta)
    if not all(bool(jnp.isfinite(x).all()) for x in prior):
        raise InputError(
            f"the log prior or its gradient is not finite at {where} (value {prior[0]:.4g});"
            " give an init inside the prior's support"
        )
    values, G, _ = all_clients(flat, theta, table)
    bad = ~(np.isfinite(values) & np.isfinite(G).all(1))
    if bad.any():
        s = int(np.argmax(bad))
        rows = np.asarray(flat.log_likelihood(theta, table.shard(s)))
        which = f"row {int(np.argmax(~np.isfinite(rows)))}" if not np.isfinite(rows).all() else ("its gradient")
        raise InputError(
            f"{table.names[s]}: the log-likelihood is not finite at {where} ({which}); give another"
            " init, or a likelihood that is finite there"
        )


def check_surrogate(q: Gaussian, name: str, d: int) -> None:
    """Check one client's surrogate: size, symmetry of form, finiteness."""
    precision = None if q.precision is None else q.precision.shape
    if q.shift.shape != (d,) or precision not in (None, (d,), (d, d)):
        raise InputError(
            f"{name}: the surrogate has shift of shape {q.shift.shape} and precision of shape"
            f" {precision}; the model has {d} parameters, so ({d},) and ({d}, {d}) or ({d},) are needed"
        )
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(q)):
        raise InputError(f"{name}: the surrogate holds NaN or infinite numbers; fit it again")
