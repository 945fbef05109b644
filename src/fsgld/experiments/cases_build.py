"""The gold cases: models, rows and splits on which `fsgld.sample` must be right without tuning.

`CASES[name]()` builds one. Real data come from `fsgld.data.load`; generated rows have fixed seeds. Rows are dicts of
columns; x holds a leading 1 for the intercept. All regressions have their coefficients in one vector, beta.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fsgld
from fsgld import data
from fsgld.shards import by_column

Rows = dict[str, np.ndarray]
NUMERIC = ("age", "trestbps", "chol", "thalach", "oldpeak")
BINARY = ("sex", "fbs", "exang")
LEVELS = ("cp", "restecg")  # one dummy a level, but for the lowest
TARGETS = {"concrete": "compressive_strength", "airfoil": "scaled_sound_pressure_level"}


class Case(NamedTuple):
    """A model, the clients' rows, and how they were split; `test` holds rows that no client has."""

    name: str
    split: str
    model: fsgld.Model
    shards: dict[str, Rows] | list[Rows]
    probs: np.ndarray | None = None
    note: str = ""
    test: Rows | None = None
    away: dict[str, tuple[float, float]] | None = None  # from and to which share of the run a client is away


def logistic(scales: np.ndarray) -> fsgld.Model:
    """Model y in {0, 1} by logit p = x·β, with β_j ~ N(0, scales_j²)."""

    def log_likelihood(p: Any, row: Any) -> jax.Array:
        logit = row["x"] @ p["beta"]
        return row["y"] * logit - jax.nn.softplus(logit)

    return fsgld.Model(partial(_normal_prior, scales), log_likelihood, {"beta": np.zeros(len(scales))})


def linear(d: int) -> fsgld.Model:
    """Model y ~ N(x·β, σ²), with β_j ~ N(0, 10²) and log σ ~ N(0, 1)."""

    def log_prior(p: Any) -> jax.Array:
        return -0.5 * (jnp.sum((p["beta"] / 10) ** 2) + p["log_sigma"] ** 2)

    def log_likelihood(p: Any, row: Any) -> jax.Array:
        z = (row["y"] - row["x"] @ p["beta"]) * jnp.exp(-p["log_sigma"])
        return -0.5 * z**2 - p["log_sigma"]

    return fsgld.Model(log_prior, log_likelihood, {"beta": np.zeros(d), "log_sigma": 0.0})


def poisson(scales: np.ndarray) -> fsgld.Model:
    """Model counts y ~ Poisson(exposure · exp(x·β)), with β_j ~ N(0, scales_j²)."""

    def log_likelihood(p: Any, row: Any) -> jax.Array:
        log_rate = row["offset"] + row["x"] @ p["beta"]
        return row["y"] * log_rate - jnp.exp(log_rate)

    return fsgld.Model(partial(_normal_prior, scales), log_likelihood, {"beta": np.zeros(len(scales))})


def metric(K: int) -> fsgld.Model:
    """Model pairs that are alike (y = 1) or not (−1): p(y) = 1/(1 + exp(y (γ·z − μ))), Section 5.2 of the paper.

    z_k is the squared distance of the pair along the k-th eigenvector, so γ·z is the squared distance in the metric.
    """

    def log_prior(p: Any) -> jax.Array:
        return -0.5 * (jnp.sum((p["gamma"] / 100) ** 2) + (p["mu"] / 10) ** 2)

    def log_likelihood(p: Any, row: Any) -> jax.Array:
        return -jax.nn.softplus(row["y"] * (row["z"] @ p["gamma"] - p["mu"]))

    return fsgld.Model(log_prior, log_likelihood, {"gamma": np.zeros(K), "mu": 0.0})


def _normal_prior(scales: np.ndarray, p: Any) -> jax.Array:
    """Evaluate the log density of independent normal coefficients."""
    return -0.5 * jnp.sum((p["beta"] / scales) ** 2)


def heart(one_class: bool = False) -> Case:
    """Predict heart disease at four hospitals; the Swiss one has 46 patients, of whom one is healthy."""
    columns = data.load("heart_disease")
    given = np.all([np.isfinite(columns[c]) for c in (*NUMERIC, *BINARY, *LEVELS)], 0)
    ill = columns["num"] > 0
    keep = given & (ill | (columns["site"] != "switzerland")) if one_class else given
    mean = {c: columns[c][given].mean() for c in NUMERIC}
    sd = {c: columns[c][given].std() for c in NUMERIC}
    predictors = [(columns[c] - mean[c]) / sd[c] for c in NUMERIC] + [columns[c] for c in BINARY]
    predictors += [columns[c] == k for c in LEVELS for k in np.unique(columns[c][given])[1:]]
    rows = {"x": _design(predictors)[keep], "y": ill[keep] * 1.0}
    site = columns["site"][keep]
    shards = {str(name): _take(rows, site == name) for name in np.unique(site)}
    split = "by hospital, the smallest with one class only" if one_class else "by hospital"
    return Case("heart-one-class" if one_class else "heart", split, logistic(_wide_intercept(rows)), shards)


def regression(name: str, key: str) -> Case:
    """Regress Concrete's or Airfoil's target on all columns, both standardised; split by the target or a column."""
    columns = data.load(name)
    y = _standardise(columns[TARGETS[name]])
    features = [column for column in columns if column != TARGETS[name]]
    rows = {"x": _design([_standardise(columns[c]) for c in features]), "y": y}
    strongest = int(np.abs(np.linalg.lstsq(rows["x"], y)[0][1:]).argmax())
    values, by = (y, "the target") if key == "target" else (rows["x"][:, 1 + strongest], features[strongest])
    return Case(f"{name}-{key}", f"sorted by {by}, 10 shards", linear(len(features) + 1), by_column(rows, values, 10))


def small_regression(by_target: bool = False) -> Case:
    """Regress 60 rows at eight clients of 3 to 15 rows, whose predictors have other means."""
    rng, sizes = np.random.default_rng(1), (3, 4, 5, 6, 7, 9, 11, 15)
    x = rng.normal(size=(60, 3)) + np.repeat(rng.normal(size=(8, 3)), sizes, 0)
    y = 0.5 + x @ [1.0, -0.5, 0.0] + 0.7 * rng.normal(size=60)
    order = np.argsort(y) if by_target else np.arange(60)
    shards = _cut(_take({"x": _design([*x.T]), "y": y}, order), sizes)
    split = "sorted by the target, 8 shards of 3 to 15 rows" if by_target else "8 shards of 3 to 15 rows"
    return Case("small-regression-target" if by_target else "small-regression", split, linear(4), shards)


def small_poisson(by_predictor: bool = False) -> Case:
    """Regress 50 counts with unequal exposures, ten at each of five clients."""
    rng = np.random.default_rng(2)
    x, exposure = rng.normal(size=(50, 3)), rng.lognormal(0.0, 1.0, 50)
    y = rng.poisson(exposure * np.exp(0.5 + x @ [0.6, -0.4, 0.2]))
    rows = {"x": _design([*x.T]), "y": y * 1.0, "offset": np.log(exposure)}
    order = np.argsort(x[:, 0]) if by_predictor else np.arange(50)
    split = "sorted by a predictor, 5 shards" if by_predictor else "as drawn, 5 shards"
    name = "poisson-column" if by_predictor else "poisson"
    return Case(name, split, poisson(_wide_intercept(rows)), _cut(_take(rows, order), [10] * 5))


def unscaled() -> Case:
    """Classify 2000 rows by columns of scales 1e-3 to 1e4, the first and the last correlated by 0.99."""
    rng, scales = np.random.default_rng(3), np.array([1e-3, 1e-1, 1.0, 1e2, 1e4])
    z = rng.normal(size=(2000, 5))
    z[:, 4] = 0.99 * z[:, 0] + np.sqrt(1 - 0.99**2) * z[:, 4]
    y = rng.uniform(size=2000) < 1 / (1 + np.exp(0.5 - z @ [1.0, -0.5, 0.3, 0.0, -0.5]))
    x = z * scales
    rows = {"x": _design([*x.T]), "y": y * 1.0}
    model = logistic(np.concatenate([[10.0], 2.5 / x.std(0)]))
    return Case("unscaled", "sorted by the last column, 5 shards", model, by_column(rows, x[:, 4], 5))


def covertype() -> Case:
    """Tell lodgepole pine (class 2) from the other cover types; 581,012 rows, 54 features, in float32."""
    columns = data.load("covertype")
    features = [c for c in columns if c != "Cover_Type"]
    x = np.ones((len(columns["Cover_Type"]), 1 + len(features)), np.float32)
    for j, c in enumerate(features):
        x[:, j + 1] = _standardise(columns[c]) if j < 10 else columns[c]
    areas = [c for c in features if c.startswith("Wilderness_Area")]
    area = np.argmax([columns[c] for c in areas], 0)
    order = np.argsort(area, kind="stable")
    rows = {"x": x[order], "y": (columns["Cover_Type"] == 2)[order].astype(np.float32)}
    shards = dict(zip(areas, _cut(rows, np.bincount(area)), strict=True))
    return Case("covertype", "by wilderness area", logistic(_wide_intercept(rows)), shards)


def isolet_metric(K: int = 10, clients: int = 10, pairs: int = 500, unit_norm: bool = True) -> Case:
    """Learn a metric on spoken letters, from pairs of rows (Section 5.2); each client has two or three letters.

    A client has 500 pairs of each kind from parts 1-4, other letters than the others'. The 1000 test pairs are
    from the speakers of part 5. Rows have unit norm, unless they are to stay as they are; the K eigenvectors are those
    of the uncentred rows of parts 1-4.
    """
    columns, rng = data.load("isolet"), np.random.default_rng(4)
    columns = _take(columns, np.lexsort(columns["X"].T))  # files differ in the order of rows
    x, letter, seen = columns["X"].astype(float), columns["y"], columns["part"] < 5
    if unit_norm:
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    v = np.linalg.eigh(x[seen].T @ x[seen])[1][:, ::-1][:, :K]

    def draw(letters: np.ndarray, pool: np.ndarray) -> Rows:
        i, j, alike = _draw_pairs(letter, np.flatnonzero(np.isin(letter, letters) & pool), pairs, rng)
        return {"z": ((x[i] - x[j]) @ v) ** 2, "y": np.where(alike, 1.0, -1.0)}

    letters = rng.permutation(np.unique(letter))
    shards = [draw(part, seen) for part in np.array_split(letters, clients)]
    return Case("metric", "10 shards with letters of their own", metric(K), shards, test=draw(letters, ~seen))


def many() -> Case:
    """Classify the rows of 200 clients of 5 to 500 rows, who differ in predictors' means and outcome's rate."""
    rng, d = np.random.default_rng(5), 7
    beta, shards = rng.normal(size=d) / 2, []
    sizes = np.concatenate([[5, 500], np.rint(np.exp(rng.uniform(np.log(5), np.log(500), 198)))]).astype(int)
    for n in sizes:
        x = rng.normal(size=(n, d)) + rng.normal(size=d)
        y = rng.uniform(size=n) < 1 / (1 + np.exp(-x @ beta - rng.normal()))
        shards.append({"x": _design([*x.T]), "y": y * 1.0})
    scales = _wide_intercept(shards[0])
    return Case("many", "200 clients of 5 to 500 rows", logistic(scales), shards, sizes / sizes.sum(), "f_s ∝ N_s")


def _draw_pairs(
    label: np.ndarray, pool: np.ndarray, pairs: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw pairs of different rows from a pool, as many of one label as of two; no pair twice."""
    i, j = np.triu_indices(len(pool), 1)
    i, j = pool[i], pool[j]
    alike = label[i] == label[j]
    chosen = np.concatenate([rng.choice(np.flatnonzero(kind), pairs, replace=False) for kind in (alike, ~alike)])
    return i[chosen], j[chosen], alike[chosen]


def _design(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Put a column of ones before the predictors."""
    return np.stack([np.ones(len(columns[0])), *columns], 1)


def _standardise(column: np.ndarray) -> np.ndarray:
    """Shift and scale a column to mean 0 and sd 1."""
    return (column - column.mean()) / column.std()


def _wide_intercept(rows: Rows) -> np.ndarray:
    """Give the prior scales: 10 for the intercept, 2.5 for other coefficients."""
    return np.array([10.0] + [2.5] * (rows["x"].shape[1] - 1))


def _take(rows: Rows, index: np.ndarray | slice) -> Rows:
    """Take some rows of all columns."""
    return {name: column[index] for name, column in rows.items()}


def _cut(rows: Rows, sizes: Sequence[int] | np.ndarray) -> list[Rows]:
    """Cut rows into parts of given sizes, in order."""
    ends = np.cumsum(sizes)
    return [_take(rows, slice(end - n, end)) for n, end in zip(sizes, ends, strict=True)]


def heart_away(client: str, begin: float, end: float) -> Case:
    """Let a hospital be away for a part of the run."""
    name, when = ("heart-leaves", "from the first round on") if begin == 0 else ("heart-away", "for the middle third")
    note = f"{client} away {when}"
    return heart()._replace(name=name, note=note, away={client: (begin, end)})


CASES: dict[str, Callable[[], Case]] = {
    "heart": heart,
    "heart-one-class": partial(heart, one_class=True),
    "heart-away": partial(heart_away, "cleveland", 1 / 3, 2 / 3),
    "heart-leaves": partial(heart_away, "va", 0.0, 1.0),
    "concrete-target": partial(regression, "concrete", "target"),
    "concrete-column": partial(regression, "concrete", "column"),
    "airfoil-target": partial(regression, "airfoil", "target"),
    "airfoil-column": partial(regression, "airfoil", "column"),
    "small-regression": small_regression,
    "small-regression-target": partial(small_regression, by_target=True),
    "poisson": small_poisson,
    "poisson-column": partial(small_poisson, by_predictor=True),
    "unscaled": unscaled,
    "covertype": covertype,
    "metric": isolet_metric,
    "many": many,
}
SAME_POSTERIOR = {"heart-away": "heart", "heart-leaves": "heart"}
