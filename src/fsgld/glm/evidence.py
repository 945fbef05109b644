"""What a report shows beside the posterior: predictive checks, each site alone, each site's pull. All are sums or fits.

What a site would send: histograms and means of its outcome and of replicated ones, its own fit, its gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fsgld import newton
from fsgld.derivatives import all_clients, prior_taylor
from fsgld.errors import InputError
from fsgld.glm.build import Builder, build
from fsgld.glm.design import Design
from fsgld.glm.families import Family
from fsgld.model import Model
from fsgld.shards import Shards, gather

DRAWS, ROWS, BINS = 200, 2000, 20


def gather_evidence(design: Design, shards: Any, draws: Any, seed: int = 0) -> dict[str, Any]:
    """Collect all of it as plain data, from draws of the model in inner units."""
    builder, table = build(design), gather(shards)
    w = builder.inner(draws)[0].reshape(-1, builder.size)
    w = w[np.isfinite(w).all(1)]
    if not len(w):
        return {}
    return {
        "check": predictive_check(builder, table, w, seed), "alone": each_alone(design, table),
        "pull": pulls(builder, table, w),
    }  # fmt: skip


def predictive_check(builder: Builder, table: Shards, w: np.ndarray, seed: int) -> dict[str, Any]:
    """Simulate outcomes for some draws; give histograms, and each site's mean and sd, observed and replicated."""
    shift, unit = builder.design.unit
    family, rng = builder.design.distribution, np.random.default_rng(seed)
    chosen = jnp.asarray(w[np.linspace(0, len(w) - 1, min(DRAWS, len(w))).astype(int)])

    @jax.jit
    def replicate(key: Any, rows: Any) -> Any:
        one: Any = lambda k, v: family.simulate(k, rows, jax.vmap(builder.eta, (None, 0))(v, rows), v[-1])  # noqa: E731
        return jax.lax.map(lambda pair: one(*pair), (jax.random.split(key, len(chosen)), chosen))

    seen, made = [], []
    for s in range(len(table)):
        rows, n = table.shard(s), int(table.sizes[s])
        picked = np.sort(rng.choice(n, ROWS, replace=False)) if n > ROWS else np.arange(n)
        rows = jax.tree.map(lambda leaf, i=picked: leaf[i], rows)
        seen.append(np.asarray(rows["y"], float) * unit + shift)
        made.append(np.asarray(replicate(jax.random.fold_in(jax.random.key(seed), s), rows), float) * unit + shift)
    edges = _edges(np.concatenate(seen), family)
    counts = np.array([np.histogram(np.clip(y, edges[0], edges[-1]), edges)[0] for y in np.concatenate(made, 1)])
    span = (3, 50, 97)
    return {
        "edges": edges.tolist(), "observed": np.histogram(np.concatenate(seen), edges)[0].tolist(),
        "replicated": np.percentile(counts, span, axis=0).tolist(),
        "sites": [
            {
                "site": name, "mean": float(y.mean()), "sd": float(y.std()),
                "replicated_mean": np.percentile(each.mean(1), span).tolist(),
                "replicated_sd": np.percentile(each.std(1), span).tolist(),
            }
            for name, y, each in zip(table.names, seen, made, strict=True)
        ],
    }  # fmt: skip


def each_alone(design: Design, table: Shards) -> dict[str, Any]:
    """Fit each site alone with the same priors: mean and sd of the coefficients, of the Gaussian at the mode."""
    builder = build(replace(design, site_effects="none", pilot=None))
    flat, found = builder.model().flatten(), {}
    k, unit = builder.intercepts, design.unit[1]
    scale = unit / np.array(design.scale)
    for s, name in enumerate(table.names):  # the same rows, so that one program serves all sites
        mine = Shards(table.rows, table.starts[s : s + 1], table.sizes[s : s + 1], (name,))
        try:
            mode = newton.find_mode(flat, jnp.asarray(builder.start(), jnp.result_type(float)), mine)
            covariance = (prior_taylor(flat, mode.theta) + mode.surrogates.total()).covariance_float64()
        except InputError:
            continue
        inside = slice(k, k + len(design.columns))
        mean, sd = np.asarray(mode.theta, float)[inside] * scale, np.sqrt(np.diag(covariance))[inside] * scale
        found[name] = {c: [float(m), float(v)] for c, m, v in zip(design.columns, mean, sd, strict=True)}
    return found


def pulls(builder: Builder, table: Shards, w: np.ndarray) -> dict[str, Any]:
    """Say by how many posterior sds each site's rows pull each coefficient: (Cov G_s)_j/sd_j at the posterior mean.

    Over all sites and the prior they add up to about 0; large ones of opposite sign say that sites disagree.
    """
    model = Model(
        lambda p: builder.log_prior(p["w"]), lambda p, row: builder.log_likelihood(p["w"], row), {"w": builder.start()}
    )
    mean, covariance = w.mean(0), np.atleast_2d(np.cov(w.T))
    G = np.asarray(all_clients(model.flatten(), jnp.asarray(mean, jnp.result_type(float)), table)[1], float)
    seen = G @ covariance / np.sqrt(np.diag(covariance))
    k, columns = builder.intercepts, builder.design.columns
    return {name: {c: float(seen[s, k + j]) for j, c in enumerate(columns)} for s, name in enumerate(table.names)}


def _edges(y: np.ndarray, family: Family) -> np.ndarray:
    """Choose the histogram's bins: one a number for small counts, else equal ones; the last takes all beyond."""
    low, high = float(y.min()), float(y.max())
    if family.name != "gaussian" and high - low < BINS:
        return np.arange(low - 0.5, high + (2.5 if family.counts else 1.5))
    return np.linspace(low, high if high > low else low + 1, BINS + 1)
