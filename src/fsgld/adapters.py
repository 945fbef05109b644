"""Models from where people already have them: NumPyro programs, and networks such as Equinox modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from fsgld.errors import InputError, brief, first_line, is_number
from fsgld.model import Model, Params
from fsgld.results import Result
from fsgld.rows import Data


@dataclass(frozen=True)
class Adapted:
    """A model from elsewhere.

    Attributes
    ----------
    model
        For `fsgld.sample(adapted.model, shards)`; parameters are unconstrained.
    constrain
        From the model's parameters to what the original program calls them.
    """

    model: Model
    constrain: Callable[[Params], Any]

    def sample(self, shards: Any, *arguments: Any, **options: Any) -> Result:
        """Sample with `fsgld.sample`; draws come back in the constrained space."""
        from fsgld.sample import sample

        return self.constrained(sample(self.model, shards, *arguments, **options))

    def constrained(self, result: Result) -> Result:
        """Turn the draws of `fsgld.sample(adapted.model, …)` into those of the original parameters."""
        each = jax.jit(jax.vmap(lambda params: self.constrain(params)))
        merged = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(-1, *leaf.shape[2:]), result.draws)
        shape = jax.tree.leaves(result.draws)[0].shape[:2]
        draws = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(*shape, *leaf.shape[1:]), each(merged))
        return replace(result, draws=draws)


def from_numpyro(model: Callable[..., Any], rows: Data) -> Adapted:
    """Take a NumPyro program as it is.

    The program is called with the columns of one site, `model(**columns)` for a dict and `model(array)` else. Its
    observed statements must be independent given the latent ones, which must not be one a row: latents are shared by
    all sites. Constraints are NumPyro's: sampling is in its unconstrained space, draws come back constrained.

    Parameters
    ----------
    model
        The program; plates over rows must take their size from the data (`numpyro.plate("rows", len(y))`).
    rows
        Some rows with the structure of a site's data (two at least); they are looked at once and not kept.

    Examples
    --------
    >>> import numpyro, numpy as np
    >>> from numpyro import distributions as dist
    >>> def program(y):
    ...     sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    ...     with numpyro.plate("rows", len(y)):
    ...         numpyro.sample("y", dist.Normal(0.0, sigma), obs=y)
    >>> from_numpyro(program, {"y": np.ones(3)}).model.start()
    {'sigma': Array(0., dtype=...)}
    """
    try:
        from numpyro import handlers, validation_enabled
        from numpyro.distributions import biject_to
    except ImportError:
        raise ImportError("from_numpyro needs NumPyro: pip install numpyro") from None

    def follow(u: Params, data: Data) -> tuple[dict[str, Array], Array, Array]:
        """Run the program with unconstrained values: constrained ones, log prior with Jacobian, log-likelihood."""
        values: dict[str, Array] = {}
        log_jacobian = jnp.zeros(())

        def fill(site: Any) -> Any:
            nonlocal log_jacobian
            if site["type"] != "sample" or site["is_observed"] or site["name"] not in u:
                return None
            transform, x = biject_to(site["fn"].support), u[site["name"]]
            value = transform(x)
            log_jacobian = log_jacobian + jnp.sum(transform.log_abs_det_jacobian(x, value))
            values[site["name"]] = value
            return value

        program = handlers.trace(handlers.substitute(handlers.seed(model, jax.random.key(0)), substitute_fn=fill))
        with validation_enabled(False):  # what overflows is not finite, and the sampler copes with that
            sites = _call(program.get_trace, data).values()
            terms = [(site["is_observed"], _log_prob(site)) for site in sites if site["type"] == "sample"]
        prior = sum((term for seen, term in terms if not seen), log_jacobian)
        return values, prior, sum((term for seen, term in terms if seen), jnp.zeros(()))

    init, blank = _latents(model, rows, handlers, biject_to)
    one: Any = lambda row: jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], row)  # noqa: E731
    adapted = Model(lambda u: follow(u, blank)[1], lambda u, row: follow(u, one(row))[2], init)
    _check_rows_add_up(adapted, lambda u, data: follow(u, data)[2], rows)
    return Adapted(adapted, lambda u: follow(u, blank)[0])


def from_network(module: Any, log_likelihood: Callable[[Any, Any], Array], prior_scale: float = 1.0) -> Adapted:
    """Take a network whose weights are the floating-point arrays of a pytree, such as an Equinox module.

    All weights have the prior N(0, prior_scale²); chains start at the module's own weights.

    Parameters
    ----------
    module
        The network; anything else in it (activations, whole numbers) stays as it is.
    log_likelihood
        `log_likelihood(module, row)` of ONE row, as -optax.softmax_cross_entropy(module(x), y).
    prior_scale
        The prior's sd.
    """
    if not is_number(prior_scale) or not prior_scale > 0:
        raise InputError(f"prior_scale must be a positive number; got {brief(prior_scale)}")
    leaves, structure = jax.tree_util.tree_flatten_with_path(module)
    name: Any = lambda path: jax.tree_util.keystr(path, simple=True, separator=".") or "weights"  # noqa: E731
    weights = {name(path): leaf for path, leaf in leaves if _is_weight(leaf)}
    if not weights:
        raise InputError(f"the module holds no floating-point array, so nothing to learn; got {brief(module, 60)}")

    def rebuild(params: Params) -> Any:
        kept = [params[name(path)] if _is_weight(leaf) else leaf for path, leaf in leaves]
        return jax.tree_util.tree_unflatten(structure, kept)

    def log_prior(params: Params) -> Array:
        return -0.5 / prior_scale**2 * sum((jnp.sum(params[key] ** 2) for key in weights), jnp.zeros(()))

    model = Model(log_prior, lambda params, row: log_likelihood(rebuild(params), row), weights)
    return Adapted(model, lambda params: params)


def _is_weight(leaf: Any) -> bool:
    """Whether a leaf of a network is learnt."""
    return isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.floating)


def _call(function: Callable[..., Any], data: Data) -> Any:
    """Call a program with a site's columns."""
    return function(**data) if isinstance(data, dict) else function(data)


def _log_prob(site: Any) -> Array:
    """Sum a statement's log density, scaled as its handlers say."""
    term = jnp.sum(site["fn"].log_prob(site["value"]))
    return term if site["scale"] is None else term * site["scale"]


def _latents(model: Callable[..., Any], rows: Data, handlers: Any, biject_to: Any) -> tuple[dict[str, Array], Data]:
    """Find the latent statements and where to start; give the blank row with which the prior is evaluated."""

    def shapes(data: Data) -> dict[str, Any]:
        sites = _call(handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace, data)
        return {name: site for name, site in sites.items() if site["type"] == "sample" and not site["is_observed"]}

    blank = jax.tree.map(lambda leaf: jnp.zeros_like(jnp.asarray(leaf)[:1]), rows)
    two = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), blank)
    try:
        latent, again = shapes(blank), shapes(two)
    except Exception as error:
        raise InputError(
            f"the NumPyro program fails on rows of zeros: {first_line(error)}; it is called with the columns of a site"
        ) from error
    if not latent:
        raise InputError("the NumPyro program has no latent statement, so there is nothing to sample")
    for name, site in latent.items():
        if jnp.shape(site["value"]) != jnp.shape(again[name]["value"]):
            raise InputError(
                f"the latent {name!r} has one value a row; only latents that all sites share can be sampled"
            )
        if not jnp.issubdtype(jnp.result_type(site["value"]), jnp.floating):
            raise InputError(f"the latent {name!r} is discrete; sum it out of the program")
    starts = {name: biject_to(site["fn"].support).inv(site["value"]) for name, site in latent.items()}
    return {name: jnp.zeros(jnp.shape(start), jnp.result_type(float)) for name, start in starts.items()}, blank


def _check_rows_add_up(model: Model, whole: Callable[[Params, Data], Array], rows: Data) -> None:
    """Check that the log-likelihood of some rows is the sum of that of each."""
    some = jax.tree.map(lambda leaf: jnp.asarray(leaf)[:8], rows)
    start = model.start()
    together = float(whole(start, some))
    apart = float(jnp.sum(jax.vmap(model.log_likelihood, (None, 0))(start, some)))
    if np.isfinite(together) and not abs(together - apart) <= 1e-3 * (1 + abs(together)):
        raise InputError(
            f"the rows' log-likelihoods add up to {apart:.6g}, but together they have {together:.6g}; rows must be"
            " independent given the latents, and plates take their size from the data"
        )
