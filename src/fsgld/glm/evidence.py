"""What a report shows beside the posterior: predictive checks, each site alone, each site's pull.

A site answers three questions about its rows, with sums or fits: `outcomes` (histograms, means and sds of its outcome
and of replicated ones), `alone` (its own fit), `slopes`. `gather_evidence` puts the answers together; who is asked
is a `Witness`: `Here` for rows in this process, `fsgld.glm.remote` for sites elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri

from fsgld import newton
from fsgld.derivatives import all_clients, prior_taylor
from fsgld.errors import InputError
from fsgld.glm.build import Builder, build
from fsgld.glm.design import Design
from fsgld.model import Model
from fsgld.results import Result
from fsgld.rows import Shards, gather

DRAWS, ROWS, BINS = 200, 2000, 20
SPAN = (3, 50, 97)  # per cent


class Outcomes(NamedTuple):
    """What a site says of its outcome, and of one replicated with each of K draws; −1 for a count that it withholds."""

    observed: np.ndarray  # (bins,)
    replicated: np.ndarray  # (K, bins)
    mean: float
    sd: float
    means: np.ndarray  # (K,)
    sds: np.ndarray


class Witness(Protocol):
    """Whoever answers for the sites; those that cannot are left out."""

    def outcomes(self, w: np.ndarray, seed: int) -> dict[str, Outcomes]:
        """Ask for `outcomes`."""

    def alone(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Ask for `alone`."""

    def slopes(self, w: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Ask for `slopes`."""


def add_evidence(result: Result, design: Design, draws: Any, witness: Witness) -> None:
    """Put all of it into a result's settings: beside the design, and each site's share of the information."""
    found = gather_evidence(design, draws, int(result.settings.get("seed", 0)), witness)
    if shares := found.pop("shares", None):
        result.settings["shares"] = shares
    result.settings["glm"] |= found


def gather_evidence(design: Design, draws: Any, seed: int, witness: Witness) -> dict[str, Any]:
    """Collect all of it as plain data, from draws of the model in inner units."""
    builder = build(design)
    w = builder.inner(draws)[0].reshape(-1, builder.size)
    w = w[np.isfinite(w).all(1)]
    if not len(w):
        return {}
    some = w[np.linspace(0, len(w) - 1, min(DRAWS, len(w))).astype(int)]
    found: dict[str, Any] = {
        "check": _merge(choose_edges(design), witness.outcomes(some, seed)),
        "alone": _in_units(design, witness.alone()),
    }
    covariance, slopes = np.atleast_2d(np.cov(w.T)), witness.slopes(w.mean(0))
    found["pull"] = _pulls(builder, covariance, slopes)
    if set(slopes) == set(design.sites):
        found["shares"] = _shares(covariance, [slopes[site][1] for site in design.sites])
    return found


class Questions:
    """A site's answers for one design; programs are compiled once."""

    def __init__(self, design: Design) -> None:
        self.design, self.builder = design, build(design)
        self.flat = _plain(self.builder)
        self.own = build(replace(design, site_effects="none", pilot=None))  # of a site alone
        self.own_flat = _plain(self.own)
        self._replicate = jax.jit(self._simulate)

    def outcomes(self, table: Shards, s: int, place: int, w: np.ndarray, seed: int, least: int = 1) -> Outcomes:
        """Simulate the outcomes of a site's rows, of some if there are many; `place` is the site's in the design."""
        (shift, unit), n, rng = self.design.unit, int(table.sizes[s]), np.random.default_rng([seed, place])
        picked = np.sort(rng.choice(n, ROWS, replace=False)) if n > ROWS else np.arange(n)
        padded = np.resize(picked, 2 ** int(np.ceil(np.log2(len(picked)))))  # so that sites share a program
        rows = jax.tree.map(lambda leaf: leaf[padded], table.shard(s))
        y = np.asarray(rows["y"], float)[: len(picked)] * unit + shift
        key = jax.random.fold_in(jax.random.key(seed), place)
        made = np.asarray(self._replicate(key, rows, jnp.asarray(w)), float)[:, : len(picked)] * unit + shift
        edges = choose_edges(self.design)
        count: Any = lambda x: np.histogram(np.clip(x, edges[0], edges[-1]), edges)[0]  # noqa: E731
        told, each = withhold(count(y), least), np.array([count(one) for one in made])
        return Outcomes(told, each, float(y.mean()), float(y.std()), made.mean(1), made.std(1))

    def alone(self, table: Shards, s: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Fit a site alone, same priors: mean and sd of β inside, of the Gaussian at the mode; None without a mode."""
        flat, k = self.own_flat, self.own.intercepts
        mine = Shards(table.rows, table.starts[s : s + 1], table.sizes[s : s + 1], (table.names[s],))
        try:
            mode = newton.find_mode(flat, jnp.asarray(self.own.start(), jnp.result_type(float)), mine)
            covariance = (prior_taylor(flat, mode.theta) + mode.surrogates.total()).covariance_float64()
        except InputError:
            return None
        inside = slice(k, k + len(self.own.coefficients))
        return np.asarray(mode.theta, float)[inside], np.sqrt(np.diag(covariance))[inside]

    def slopes(self, table: Shards, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give gradient and −Hessian of every site's log-likelihood at w."""
        _, G, H = all_clients(self.flat, jnp.asarray(w, jnp.result_type(float)), table, "dense")
        return np.asarray(G, float), np.asarray(H, float)

    def _simulate(self, key: Any, rows: Any, w: Any) -> Any:
        """Simulate all rows' outcomes, once for each draw."""
        family, eta = self.design.distribution, jax.vmap(self.builder.eta, (None, 0))
        one: Any = lambda pair: family.simulate(pair[0], rows, eta(pair[1], rows), pair[1][-1])  # noqa: E731
        return jax.lax.map(one, (jax.random.split(key, len(w)), w))


class Here:
    """The witness for rows in this process."""

    def __init__(self, design: Design, shards: Any) -> None:
        self.questions, self.all = Questions(design), gather(shards)

    def outcomes(self, w: np.ndarray, seed: int) -> dict[str, Outcomes]:
        """Ask every site."""
        return {name: self.questions.outcomes(self.all, s, s, w, seed) for s, name in enumerate(self.all.names)}

    def alone(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Ask every site; those without a mode of their own have no answer."""
        answers = {name: self.questions.alone(self.all, s) for s, name in enumerate(self.all.names)}
        return {name: answer for name, answer in answers.items() if answer is not None}

    def slopes(self, w: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Ask all sites at once."""
        return dict(zip(self.all.names, zip(*self.questions.slopes(self.all, w), strict=True), strict=True))


def withhold(counts: np.ndarray, least: int) -> np.ndarray:
    """Put −1 for counts from 1 to `least` − 1, and for more of the smallest until their sum does not tell them."""
    hidden = (counts > 0) & (counts < least)
    order = [i for i in np.argsort(counts, kind="stable") if counts[i] >= least]
    while hidden.any() and (counts[hidden].sum() < least or hidden.sum() < 2) and order:
        hidden[order.pop(0)] = True
    return np.where(hidden, -1, counts)


def choose_edges(design: Design) -> np.ndarray:
    """Choose the histogram's bins from rows, mean and sd; the first and the last take all beyond.

    The tails shall hold some six rows of the smallest site: counts of fewer may be withheld.
    """
    if design.family == "bernoulli":
        return np.array([-0.5, 0.5, 1.5])
    mean, sd, fewest = design.average, design.outcome[1], min(design.rows)
    reach = float(np.clip(-ndtri(min(6 / fewest, 0.3)), 0.5, 2.8))
    if design.distribution.has_unit:
        return np.linspace(mean - reach * sd, mean + reach * sd, int(np.clip(fewest // 12, 4, BINS)) + 1)
    high = max(int(np.ceil(mean + reach * sd)), 1)
    return np.arange(-0.5, high + 1, max(int(np.ceil((high + 1) / BINS)), 1))


def _merge(edges: np.ndarray, answers: dict[str, Outcomes]) -> dict[str, Any] | None:
    """Put the sites' outcomes together; a bin that a site withholds has no count."""
    if not answers:
        return None
    observed = np.array([each.observed for each in answers.values()])
    counts = np.sum([each.replicated for each in answers.values()], axis=0)
    return {
        "edges": edges.tolist(),
        "observed": [None if -1 in column else int(column.sum()) for column in observed.T],
        "replicated": np.percentile(counts, SPAN, axis=0).tolist(),
        "sites": [
            {
                "site": name, "mean": float(each.mean), "sd": float(each.sd),
                "replicated_mean": np.percentile(each.means, SPAN).tolist(),
                "replicated_sd": np.percentile(each.sds, SPAN).tolist(),
            }
            for name, each in answers.items()
        ],
    }  # fmt: skip


def _in_units(design: Design, answers: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Give each site's own fit in the user's units."""
    scale = design.unit[1] / np.array(design.scale)
    return {
        name: {c: [float(m), float(v)] for c, m, v in zip(design.columns, mean * scale, sd * scale, strict=True)}
        for name, (mean, sd) in answers.items()
    }


def _shares(covariance: np.ndarray, curvatures: list[np.ndarray]) -> list[float]:
    """Give tr(Cov H_s)/Σ tr(Cov H_s): each site's part in what the data say."""
    traces = np.array([float(np.sum(covariance * H)) for H in curvatures])
    return (traces / traces.sum()).tolist() if traces.sum() > 0 else []


def _pulls(builder: Builder, covariance: np.ndarray, answers: dict[str, Any]) -> dict[str, Any]:
    """Say by how many posterior sds each site's rows pull each coefficient: (Cov G_s)_j/sd_j at the posterior mean.

    Over all sites and the prior they add up to about 0; large ones of opposite sign say that sites disagree.
    """
    k, columns, sd = builder.intercepts, builder.design.columns, np.sqrt(np.diag(covariance))
    pull = {name: G @ covariance / sd for name, (G, _) in answers.items()}
    return {name: {c: float(each[k + j]) for j, c in enumerate(columns)} for name, each in pull.items()}


def _plain(builder: Builder) -> Any:
    """Give the model in w, without a hierarchy's coordinates."""
    return Model(
        lambda p: builder.log_prior(p["w"]), lambda p, row: builder.log_likelihood(p["w"], row), {"w": builder.start()}
    ).flatten()
