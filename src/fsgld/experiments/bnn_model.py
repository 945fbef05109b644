"""The network of Table 1, its data, and scores of its predictions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

import fsgld
from fsgld import data
from fsgld.errors import InputError
from fsgld.experiments.cases_build import Rows

Layers = list[dict[str, Array]]


def network(features: int, hidden: tuple[int, ...] = (18, 18, 8)) -> fsgld.Model:
    """Build a perceptron with ReLU and two outputs, weights N(0, 1) a priori; chains start at He's random weights."""
    return fsgld.Model(_log_prior, log_likelihood, partial(_init, (features, *hidden, 2)))


def _init(sizes: tuple[int, ...], key: Array) -> Layers:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (a, b), jnp.float32) * np.float32(np.sqrt(2 / a)), "b": jnp.zeros(b, jnp.float32)}
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def _log_prior(layers: Layers) -> Array:
    return -0.5 * jnp.sum(ravel_pytree(layers)[0] ** 2)


def logit(layers: Layers, x: Array) -> Array:
    """Evaluate the log odds of y = 1 for one row: the difference of the two outputs, as softmax needs no more."""
    for layer in layers[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    out = x @ layers[-1]["w"] + layers[-1]["b"]
    return out[1] - out[0]


_logits = jax.vmap(logit, in_axes=(None, 0))


def log_likelihood(layers: Layers, row: dict[str, Array]) -> Array:
    """Evaluate log p(y | x) of one row; y is 0 or 1."""
    return -jax.nn.softplus((1 - 2 * row["y"]) * logit(layers, row["x"]))


class Split(NamedTuple):
    """Rows at clients, and a balanced part that nobody learns from."""

    shards: list[Rows]
    test: Rows

    @property
    def train(self) -> Rows:
        """All clients' rows."""
        return {name: np.concatenate([shard[name] for shard in self.shards]) for name in self.test}


def split(rows: Rows, a: float, clients: int, size: int, test: int, seed: int) -> Split:
    """Hold out balanced rows; deal the others to clients whose shares of y = 1 are Beta(a, a)."""
    rng, y = np.random.default_rng(seed), rows["y"]
    held = np.concatenate([rng.choice(np.flatnonzero(y == k), test // 2, replace=False) for k in (0, 1)])
    rest = np.setdiff1d(np.arange(len(y)), held)
    free = {name: column[rest] for name, column in rows.items()}
    parts = fsgld.shards.beta(free, free["y"], clients, a, a, size=size, seed=seed)
    return Split(parts, {name: column[held] for name, column in rows.items()})


def validation(parts: Split, every: int = 10) -> Split:
    """Hold one in so many of each client's rows out in place of the test rows, which nobody sees then."""
    held = [{name: column[::every] for name, column in shard.items()} for shard in parts.shards]
    kept = [{name: np.delete(column, np.s_[::every], 0) for name, column in shard.items()} for shard in parts.shards]
    return Split(kept, Split(held, parts.test).train)


def susy() -> Rows:
    """Read SUSY, columns of mean 0 and sd 1: signal or background, 18 features; the whole file or a part of it."""
    columns = data.load("susy")
    features = [name for name in columns if name not in ("label", "source")]
    return _standardised([columns[name] for name in features], columns["label"], len(features))


def covertype() -> Rows:
    """Read Covertype: lodgepole pine (class 2) or not, 54 features of which the first ten are no indicators."""
    columns = data.load("covertype")
    features = [name for name in columns if name != "Cover_Type"]
    return _standardised([columns[name] for name in features], columns["Cover_Type"] == 2, 10)


def generated(rows: int, seed: int = 0) -> Rows:
    """Draw rows of SUSY's shape: 18 normal features, labels from a network of the same kind."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 18), np.float32)
    teacher = _init((18, 18, 18, 8, 2), jax.random.key(seed))
    blocks = range(0, rows, 100_000)
    z = np.concatenate([np.asarray(_logits(teacher, jnp.asarray(x[b : b + 100_000]))) for b in blocks])
    z = 3 * (z - np.median(z)) / z.std()
    return {"x": x, "y": (rng.uniform(size=rows) < 1 / (1 + np.exp(-z))).astype(np.float32)}


DATASETS: dict[str, Callable[[], Rows]] = {"susy": susy, "covertype": covertype}


def load(name: str, rows: int) -> Rows:
    """Read a data set, or generate so many rows."""
    if name == "generated":
        return generated(rows)
    if name not in DATASETS:
        raise InputError(f"bnn has no data set {name!r}; choose one of {', '.join(DATASETS)}, generated")
    return DATASETS[name]()


def _standardised(columns: list[np.ndarray], label: np.ndarray, real: int) -> Rows:
    x = np.stack([np.asarray(column, np.float32) for column in columns], 1)
    x[:, :real] = (x[:, :real] - x[:, :real].mean(0)) / x[:, :real].std(0)
    return {"x": x, "y": np.asarray(label, np.float32)}


class Scores(NamedTuple):
    """How well one chain predicts: single draws, and the average of their probabilities."""

    test: np.ndarray  # (draws,): average log-likelihood on test rows
    train: float  # of some draws on training rows, averaged
    average: float  # log-likelihood of the averaged probabilities on test rows, as the next three
    accuracy: float
    ece: float  # expected calibration error, 15 bins of equal width
    brier: float


def score(draws: Layers, test: Rows, train: Rows, most: int = 20_000, every: int = 10) -> list[Scores]:
    """Score every chain of a run; training rows are thinned to `most`, draws for them to one in `every`."""
    some = {name: column[:: max(1, len(column) // most)] for name, column in train.items()}
    return [_score(jax.tree.map(lambda leaf, c=c: jnp.asarray(leaf[c]), draws), test, some, every)
            for c in range(len(draws[0]["b"]))]  # fmt: skip


def _score(draws: Layers, test: Rows, train: Rows, every: int) -> Scores:
    log_likelihoods, p = _predict(draws, test)
    fitted, _ = _predict(jax.tree.map(lambda leaf: leaf[::every], draws), train)
    p, y = np.asarray(p, float), test["y"]
    likelihood = np.where(y == 1, p, 1 - p)
    return Scores(
        np.asarray(log_likelihoods, float), float(fitted.mean()), float(np.log(np.maximum(likelihood, 1e-30)).mean()),
        float(np.mean((p > 0.5) == y)), calibration_error(p, y), float(np.mean((p - y) ** 2)),
    )  # fmt: skip


def calibration_error(p: np.ndarray, y: np.ndarray, bins: int = 15) -> float:
    """Average |share of y = 1 − mean probability| over bins of the probability, weighted by their rows."""
    which = np.minimum((p * bins).astype(int), bins - 1)
    gaps = np.bincount(which, y - p, bins)
    return float(np.abs(gaps).sum() / len(p))


@jax.jit
def _predict(draws: Any, rows: Any) -> tuple[Array, Array]:
    """Evaluate each draw's average log-likelihood, and the average over draws of p(y = 1 | x)."""

    def one(total: Array, layers: Layers) -> tuple[Array, Array]:
        z = _logits(layers, rows["x"])
        return total + jax.nn.sigmoid(z), -jnp.mean(jax.nn.softplus((1 - 2 * rows["y"]) * z))

    total, values = jax.lax.scan(one, jnp.zeros_like(rows["y"]), draws)
    return values, total / len(values)
