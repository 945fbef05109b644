"""The data and the model of `regression`: scaling, splits, the exact posterior, and the error on test rows."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import fsgld
from fsgld import data

TARGETS = {  # data set: its target; the features are all other columns
    "concrete": "compressive_strength",
    "airfoil": "scaled_sound_pressure_level",
    "superconductivity": "critical_temp",
}
Rows = dict[str, np.ndarray]  # x of shape (N, d) and y of shape (N,)


class Problem(NamedTuple):
    """A data set that was scaled and cut into training and test rows, and its model."""

    name: str
    train: Rows
    test: Rows
    model: fsgld.Model
    prior_precision: float

    def shards(self, split: str, clients: int, seed: int) -> list[Rows]:
        """Deal the training rows at random ("IID"), or sorted by target."""
        if split == "IID":
            return list(fsgld.shards.iid(self.train, clients, seed))
        return list(fsgld.shards.by_column(self.train, self.train["y"], clients))

    def test_error(self, draws: np.ndarray) -> np.ndarray:
        """Give the mean squared error on test rows of every draw β (…, d), in variances of the training target.

        ‖y − Xβ‖² = ‖y − Xb‖² + ‖X(β − b)‖², b the best fit on the test rows.
        """
        x, y = self.test["x"], self.test["y"]
        best = np.linalg.lstsq(x, y)[0]
        least = np.mean((y - x @ best) ** 2)
        with np.errstate(over="ignore", invalid="ignore"):
            from_best = (draws - best) @ np.linalg.qr(x)[1].T
            return np.asarray((least + np.sum(from_best**2, axis=-1) / len(y)) / self.train["y"].var())

    def exact_error(self) -> float:
        """Give the test error of the exact posterior N(b, P⁻¹), averaged over its draws: that of b and a trace."""
        x, y, test = self.train["x"], self.train["y"], self.test["x"]
        P = x.T @ x + self.prior_precision * np.eye(x.shape[1])
        spread = np.einsum("ij,ij->", test, np.linalg.solve(P, test.T).T) / len(test)
        return float(self.test_error(np.linalg.solve(P, x.T @ y)) + spread / y.var())

    def largest_step(self) -> float:
        """Give 4/λ_max of the posterior's precision: no larger step is stable, whatever the noise."""
        return float(4 / (np.linalg.eigvalsh(self.train["x"].T @ self.train["x"])[-1] + self.prior_precision))


def make_problem(name: str, scaling: str, test_share: float, prior_precision: float, seed: int) -> Problem:
    """Load, scale and cut a data set.

    Parameters
    ----------
    name
        One of `TARGETS`.
    scaling
        "standard" (mean 0, sd 1) or "unit" (least 0, largest 1), for features and target.
    test_share
        Share of the rows to hold out.
    prior_precision
        The letter λ: β ~ N(0, I/λ). The noise has variance 1.
    seed
        Of the random cut.
    """
    columns = data.load(name)
    target = columns.pop(TARGETS[name])
    table = np.column_stack([*columns.values(), target]).astype(float)
    low, width = (table.mean(0), table.std(0)) if scaling == "standard" else (table.min(0), np.ptp(table, axis=0))
    table = np.random.default_rng(seed).permutation((table - low) / width)
    held_out = round(test_share * len(table))
    test, train = ({"x": rows[:, :-1], "y": rows[:, -1]} for rows in (table[:held_out], table[held_out:]))
    model = fsgld.Model(
        log_prior=lambda beta: -0.5 * prior_precision * jnp.sum(beta**2),
        log_likelihood=lambda beta, row: -0.5 * (row["y"] - row["x"] @ beta) ** 2,
        init=np.zeros(table.shape[1] - 1),
    )
    return Problem(name, train, test, model, prior_precision)


def make_surrogates(problem: Problem, shards: list[Rows], kind: str) -> list[fsgld.Gaussian]:
    """Make q_s = N(μ_s, Σ_s) with Σ_s = (X_sᵀX_s)⁻¹ and μ_s = Σ_s X_sᵀy_s; as printed, μ_s = Σ_s⁻¹ X_sᵀy_s."""
    if kind == "exact":
        return fsgld.fit(problem.model, shards, fsgld.analytic)
    made = []
    for rows in shards:
        precision = rows["x"].T @ rows["x"]
        mean = precision @ (rows["x"].T @ rows["y"])
        made.append(fsgld.Gaussian.from_precision(jnp.asarray(mean), jnp.asarray(precision)))
    return made
