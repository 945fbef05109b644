"""Predictions for new rows from a saved result, and how well they are calibrated where the outcome is known."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fsgld.errors import InputError, brief, is_number
from fsgld.glm.agree import complete
from fsgld.glm.design import Design
from fsgld.results import Result

MOST_DRAWS = 1000
BLOCK = 4096  # rows at once


class Predictions(NamedTuple):
    """A table with one row a row of the new data, and scores where outcomes are known."""

    table: pd.DataFrame
    scores: dict[str, float]
    left_out: int  # rows with missing predictors: their predictions are missing too


def design_of(result: Result) -> Design:
    """Find the design in a result."""
    about = result.settings.get("glm")
    if not about:
        raise InputError("this result is not of a formula; make one with fsgld glm, or use Result.predict")
    return Design.from_json(about["design"])


def predict(
    result: Result, table: pd.DataFrame, *, site: str | None = None, interval: float = 0.94, seed: int = 0
) -> Predictions:
    """Predict the outcome of new rows.

    Parameters
    ----------
    result
        Of `fsgld.glm(...).sample()` or `fsgld glm`, as it was saved.
    table
        New rows, as `fsgld.glm.sites.as_table` gives them, with the formula's columns; the outcome may be missing.
    site
        Whose intercept to use. By default, with hierarchical effects, that of a new site: u ~ N(0, tau²).
    interval
        The probability of the intervals.
    seed
        Of simulated outcomes.

    Returns
    -------
    Predictions
        `mean`, `sd`, `low`, `high` are of the expected outcome (a probability, for bernoulli and binomial);
        `outcome_low`, `outcome_high` of the outcome itself.
    """
    if not is_number(interval) or not 0 < interval < 1:
        raise InputError(f"interval must lie strictly between 0 and 1; got {brief(interval)}")
    design = design_of(result)
    name = str(table.attrs.get("file", "the new table"))
    whole = complete(table, design.parsed.predictors, name)
    _check_levels(design, whole, name)
    draws, rng = _draws(result), np.random.default_rng(seed)
    base = _intercepts(design, draws, site, rng)
    beta = np.stack([draws[c] for c in design.columns], 1) if design.columns else np.zeros((len(base), 0))
    x = design.matrix(whole, name)[list(design.columns)].to_numpy() if len(whole) else np.zeros((0, beta.shape[1]))
    more = design.evaluate(design.parsed.offset, whole, name) if design.parsed.offset and len(whole) else None
    trials = _trials(design, table, whole)
    blocks = [slice(i, i + BLOCK) for i in range(0, len(whole), BLOCK)]
    eta: Any = lambda at: base[:, None] + beta @ x[at].T + (0 if more is None else more[at])  # noqa: E731
    columns = [
        _summarise(design, draws, eta(at), None if trials is None else trials[at], interval, rng) for at in blocks
    ]
    found = pd.concat(columns) if columns else pd.DataFrame(columns=["mean", "sd", "low", "high"], dtype=float)
    found.index = whole.index
    return Predictions(
        found.reindex(table.index), _scores(design, table, found, name, interval), len(table) - len(whole)
    )


def calibration(p: np.ndarray, y: np.ndarray, bins: int = 10) -> dict[str, float]:
    """Give the expected calibration error over equal bins of the predicted probability, and the Brier score.

    ECE = Σ_b n_b/n |mean p − mean y|, Brier = mean (p − y)².
    """
    which = np.minimum((p * bins).astype(int), bins - 1)
    gaps = [abs(p[which == b].mean() - y[which == b].mean()) * (which == b).mean() for b in np.unique(which)]
    return {"ece": float(sum(gaps)), "brier": float(((p - y) ** 2).mean())}


def _draws(result: Result) -> dict[str, np.ndarray]:
    """Take evenly spaced draws of the chains that ran to the end."""
    alive = [not status.diverged for status in result.status]
    merged = {name: np.asarray(leaf)[alive].reshape(-1).astype(float) for name, leaf in result.draws.items()}
    count = len(next(iter(merged.values())))
    if not count:
        raise InputError("no chain ran to the end, so there is nothing to predict from")
    chosen = np.linspace(0, count - 1, min(MOST_DRAWS, count)).astype(int)
    return {name: leaf[chosen] for name, leaf in merged.items()}


def _intercepts(design: Design, draws: dict[str, np.ndarray], site: str | None, rng: Any) -> np.ndarray:
    """Give each draw's intercept at a site, known or new."""
    if site is not None and (site not in design.sites or design.site_effects == "none"):
        known = ", ".join(design.sites) if design.site_effects != "none" else "none, as the model has no site effects"
        raise InputError(f"there is no site {brief(site)} with an intercept of its own; there are {known}")
    if design.site_effects == "separate":
        if site is None:
            raise InputError(f"intercepts are separate, so say whose to use (--site): {', '.join(design.sites)}")
        return draws[f"Intercept[{site}]"]
    if design.site_effects == "none":
        return draws["Intercept"] if "Intercept" in draws else np.zeros(len(next(iter(draws.values()))))
    u = draws[f"site[{site}]"] if site is not None else draws["tau"] * rng.standard_normal(len(draws["tau"]))
    return np.asarray(draws["Intercept"] + u)


def _trials(design: Design, table: pd.DataFrame, whole: pd.DataFrame) -> np.ndarray | None:
    """Give the number of trials where it is known for all rows."""
    if not design.trials or design.trials not in table:
        return None
    trials = table.loc[whole.index, design.trials]
    return trials.to_numpy(float) if trials.dtype.kind == "f" and (trials >= 0).all() else None


def _summarise(
    design: Design, draws: dict[str, np.ndarray], eta: np.ndarray, trials: np.ndarray | None, interval: float, rng: Any
) -> pd.DataFrame:
    """Summarise the expected outcome and simulated outcomes over draws; η is (draws, rows)."""
    tails = [(1 - interval) / 2, (1 + interval) / 2]
    with np.errstate(over="ignore"):
        link = design.distribution.link
        mean = eta if link == "identity" else np.exp(eta) if link == "log" else 1 / (1 + np.exp(-eta))
    low, high = np.quantile(mean, tails, axis=0)
    columns = {"mean": mean.mean(0), "sd": mean.std(0), "low": low, "high": high}
    if design.family == "gaussian":
        made = mean + draws["sigma"][:, None] * rng.standard_normal(mean.shape)
    elif design.distribution.counts:
        phi = draws["phi"][:, None] if "phi" in draws else None
        rate = mean if phi is None else mean * rng.gamma(np.broadcast_to(phi, mean.shape)) / phi
        made = rng.poisson(np.minimum(rate, 1e15))
    elif trials is not None:
        made = rng.binomial(np.broadcast_to(trials, mean.shape).astype(int), mean)
    else:
        return pd.DataFrame(columns)
    low, high = np.quantile(made, tails, axis=0)
    return pd.DataFrame(columns | {"outcome_low": low, "outcome_high": high})


def _scores(design: Design, table: pd.DataFrame, found: pd.DataFrame, name: str, interval: float) -> dict[str, float]:
    """Score predictions where the outcome is known."""
    p = design.parsed
    if not all(v in table for v in p.variables):
        return {}
    known = table.loc[found.index, list(p.variables)].dropna()
    if not len(known):
        return {}
    if design.success is not None and not known[p.outcome].isin(design.success).all():
        raise InputError(f"{name}: the outcome {p.outcome} must be one of {', '.join(design.success)}")
    y, mean = design.observed(known, name), found.loc[known.index]
    scores: dict[str, float] = {"rows": float(len(y))}
    if design.distribution.link == "logit":
        n = design.evaluate(design.trials, known, name) if design.trials else np.ones(len(y))
        return scores | calibration(mean["mean"].to_numpy(), y / n)
    inside = (y >= mean["outcome_low"]) & (y <= mean["outcome_high"])
    error = mean["mean"].to_numpy() - y
    return scores | {"rmse": float(np.sqrt((error**2).mean())), f"coverage_{100 * interval:g}": float(inside.mean())}


def _check_levels(design: Design, table: pd.DataFrame, name: str) -> None:
    """Refuse levels that no site had, and columns of another kind."""
    for variable in design.parsed.predictors:
        text = bool(len(table)) and table[variable].dtype.kind not in "fiub"
        levels = (design.levels or {}).get(variable)
        if levels is None and text:
            raise InputError(f"{name}: column {variable} is text, but it was numbers when the model was made")
        if levels is not None and len(table):
            bad = ~table[variable].isin(levels).to_numpy()
            if bad.any():
                i = int(np.argmax(bad))
                raise InputError(
                    f"{name}: row {int(table.index[i]) + 1} has {variable} = {brief(table[variable].iloc[i])}, a level"
                    f" that no site had; there are {', '.join(map(str, levels[:20]))}"
                )
