"""The pre-flight: measure every client before a run, then choose the step size, batch size and local steps.

In the coordinates of prior × q the chain is nearly an Ornstein–Uhlenbeck process with ρ = e^{−h/2}. Two things widen
its law, in units of each parameter's posterior variance. Mini-batch noise of variance V_m/m a step adds
V_m/m · tanh(h/4). What the clients' residuals disagree by, of variance V_b, lasts for the L steps of a visit and adds
V_b tanh(Lh/4). With r_s the residual of client s, J_s its derivative and v_i what row i adds, as parameter z sees them,

    V_m = Σ_s N_s²/f_s Var_i(v_i),      V_b ≤ Σ_s (r_s² + z J_s r_s)/f_s − (Σ_s r_s)²,

averaged over probes drawn from prior × q. Where residuals do not depend on θ both are exact. Where they grow in the
tails the second holds to first order in the time of a visit, which is kept short (docs/right-by-default.md derives it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsgld.algorithm import Lots
from fsgld.checks import check_given, check_kind, check_mini_batches
from fsgld.dynamics import whitened
from fsgld.errors import check_whole
from fsgld.likelihood import Likelihood
from fsgld.lots import by_leverage
from fsgld.measure import (
    Measured,
    disagreement,
    factor_of,
    measure,
    measure_noise,
    mini_batch_noise,
    takes_differences,
)
from fsgld.model import FlatModel, Model, ravel
from fsgld.model_checks import check_finite_at, check_model
from fsgld.newton import match_moments
from fsgld.parts import Parts, choose_parts, with_mode
from fsgld.programs import put
from fsgld.rows import Data, Shards, gather

NOISE = 0.02  # the variance that mini-batches may add, relative to the posterior's
TRAVEL = 0.04  # and what the clients' disagreement may add
MUCH = 5.0  # disagreement from which better surrogates are worth their cost
LARGEST_STEP = 0.1
MOST_ROWS = 256  # of a mini-batch
LONGEST_VISIT = 2.0  # in time units; the chain forgets with e^{−t/2}
MOST_LOCAL_STEPS = 500
TIME = 15_000.0  # time units over all chains; a draw is worth one in four
MOST_ROUNDS = 2_000_000
MOST_STEPS = 10_000_000  # of a chain
MOST_WORK = 5e9  # and steps × rows of a batch × parameters


@dataclass(frozen=True)
class Preflight:
    """What was measured at each client, what was chosen from it, and what to expect.

    Attributes
    ----------
    clients, rows, probs, shares
        Names, N_s, f_s, and each client's share of the information, tr(MΛ_s) of the sum.
    low, high
        Extreme eigenvalues of the whitened drift matrix B_s = I + L'(H_s − Λ_s)L/f_s over points up to
        two sds out; a negative one lets a chain drift away while it stays.
    noise, disagreement
        The client's part in V_m and V_b, for the parameter that sees most of it (where clients err in the same
        direction a part in V_b may be negative; V_b is more than their sum by two standard errors).
    leverage
        N_s/(f_s m) max_i ‖L'v_i‖: the most that one row can move the drift by.
    step_size, batch_size, local_steps, rounds, mini_batches
        What a run will use; mini-batches are "uniform" or by "leverage" (`fsgld.lots`, kept in `lots`).
    limit
        Residuals longer than this are tamed (see `fsgld.whitened`).
    inflation
        A bound on the share by which the worst parameter's variance is expected to be too large.
    notes
        What is wrong, in words, with the client's name and the remedy.
    """

    clients: tuple[str, ...]
    rows: np.ndarray
    probs: np.ndarray
    shares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    noise: np.ndarray
    disagreement: np.ndarray
    leverage: np.ndarray
    step_size: float
    batch_size: int
    local_steps: int
    rounds: int
    mini_batches: str
    lots: Lots | None
    limit: float
    inflation: float
    notes: tuple[str, ...]

    def __str__(self) -> str:
        columns = {
            "rows": self.rows, "f": self.probs, "share": self.shares, "low B": self.low, "high B": self.high,
            "noise": self.noise, "disagree": self.disagreement, "leverage": self.leverage,
        }  # fmt: skip
        width = max(map(len, self.clients))
        shown = range(len(self.clients)) if len(self.clients) <= 20 else self._worst(20)
        lines = [" " * width + "".join(f"{name:>10}" for name in columns)]
        lines += [self.clients[s].ljust(width) + "".join(f"{column[s]:>10.3g}" for column in columns.values())
                  for s in shown]  # fmt: skip
        if len(shown) < len(self.clients):
            lines.append(f"… the {len(shown)} noisiest of {len(self.clients)} clients")
        lines.append(
            f"step size {self.step_size:.3g}, {self.batch_size} rows a batch ({self.mini_batches}), {self.local_steps}"
            f" local steps, {self.rounds} rounds; variances at most {100 * self.inflation:.1f} % too large"
        )
        return "\n".join([*lines, *self.notes])

    def _worst(self, n: int) -> np.ndarray:
        """Find the clients that add most."""
        return np.sort(np.argsort(-(self.noise / self.batch_size + self.disagreement))[:n])

    def to_json(self) -> dict[str, Any]:
        """Give the numbers that a result keeps."""
        return {"inflation": self.inflation, "limit": self.limit, "notes": list(self.notes)}


def preflight(
    model: Model,
    shards: list[Data] | dict[str, Data],
    surrogates: Any = "auto",
    *,
    likelihood: Likelihood | None = None,
    step_size: float | str = "auto",
    batch_size: int | str = "auto",
    local_steps: int | str = "auto",
    rounds: int | str = "auto",
    chains: int = 4,
    probs: Any = "auto",
    mini_batches: str = "auto",
) -> Preflight:
    """Measure every client and choose step size, batch size and local steps; `sample` does this by itself.

    Arguments are those of `fsgld.sample`; what is not "auto" is respected and checked. Print the result.
    """
    given: dict[str, Any] = {"step_size": step_size, "batch_size": batch_size}
    given |= {"local_steps": local_steps, "rounds": rounds}
    check_given(given)
    check_whole(chains=chains)
    check_kind("model", model)
    if likelihood is not None:
        check_kind("likelihood", likelihood)
    table, theta = gather(shards, borrow=True), ravel(model.start())
    flat = check_model(model, theta, table)
    check_finite_at(flat, theta, table, "the model's start (init)")
    parts = choose_parts(model, flat, theta, table, surrogates, whitened(), likelihood, probs)
    return look(flat, parts, table, chains, **given, mini_batches=check_mini_batches(mini_batches))[0]


def look(
    flat: FlatModel, parts: Parts, table: Shards, chains: int, *, step_size: float | str, batch_size: int | str,
    local_steps: int | str, rounds: int | str, mini_batches: str, chosen: bool = True,
) -> tuple[Preflight, Parts]:  # fmt: skip
    """Measure and choose; surrogates may be refined on the way, if they are "auto"."""
    parts, measured = refine(flat, parts, table) if chosen else (parts, measure(flat, parts, table))
    f = parts.probs
    lots, measured = choose_lots(flat, parts, table, measured, mini_batches)
    V_m, noise = mini_batch_noise(measured, f)
    V_b, apart = disagreement(measured, f)
    low, high = 1 + measured.low / f, 1 + measured.high / f
    longest = _longest_visit(V_b, low, f)

    def settle(local_steps: int | str) -> tuple[float, int, int, int]:
        most = min(LARGEST_STEP, 1 / high.max(), longest / (1 if local_steps == "auto" else int(local_steps)))
        m = _batch_size(V_m, most) if batch_size == "auto" else int(batch_size)
        most = min(most, 4 * np.arctanh(min(NOISE * m / max(V_m, 1e-30), 0.99)))
        h = _round_down(most) if step_size == "auto" else float(step_size)
        L = int(np.clip(longest / h + 1e-6, 1, MOST_LOCAL_STEPS)) if local_steps == "auto" else int(local_steps)
        R = _rounds(h, L, chains, m * len(parts.anchor)) if rounds == "auto" else int(rounds)
        return h, m, L, R

    (h, m, L, R), capped = settle(local_steps), []
    if local_steps != "auto" and rounds == step_size == "auto" and _effective(h * L * R, chains) < TIME / 16:
        s, few = int(np.argmax(apart)), _effective(h * L * R, chains)
        h, m, L, R = settle("auto")
        capped = [
            f"local_steps is capped at {L}, not {local_steps}: the surrogate of {table.names[s]} allows for visits of"
            f" {longest:.2g} time units only, and {local_steps} steps in each would leave about {few:.0f} effective"
            " draws. Give rounds as well to have it as you asked"
        ]
    limit = _limit(measured, f, m)
    inflation = float(V_m / m * np.tanh(h / 4) + V_b * np.tanh(h * L / 4))
    shares, leverage = np.full(len(f), np.nan) if parts.shares is None else parts.shares, measured.leverage / (f * m)
    found = Preflight(
        table.names, np.asarray(table.sizes), f, shares, low, high, noise, apart, leverage,
        h, m, L, R, "uniform" if lots is None else "leverage", lots, limit, inflation, (),
    )  # fmt: skip
    return replace(found, notes=tuple(capped + _notes(found, V_b, rounds == "auto", chains))), parts


def refine(flat: FlatModel, parts: Parts, table: Shards) -> tuple[Parts, Measured]:
    """Measure; where surrogates at the mode disagree much, match moments instead and take what disagrees less."""
    measured = measure(flat, parts, table)
    V_b = disagreement(measured, parts.probs)[0]
    if parts.mode is None or V_b < MUCH:
        return parts, measured
    matched = match_moments(flat, parts.mode, table)
    if matched is None:
        return parts, measured
    other = with_mode(flat, parts, table, matched)
    again = measure(flat, other, table)
    return (other, again) if disagreement(again, other.probs)[0] < V_b else (parts, measured)


def choose_lots(
    flat: FlatModel, parts: Parts, table: Shards, measured: Measured, how: str
) -> tuple[Lots | None, Measured]:
    """Draw rows by leverage if that is asked for, or if even ones are noisy and it more than halves the noise."""
    V_m = mini_batch_noise(measured, parts.probs)[0]
    if how == "uniform" or (how == "auto" and V_m * LARGEST_STEP / (4 * NOISE) <= MOST_ROWS):
        return None, measured
    few = put(measured.points[:4], parts.anchor.dtype)
    lots = by_leverage(flat, takes_differences(parts), few, parts.anchor, factor_of(parts), table)
    noise, leverage = measure_noise(flat, parts, table, measured.points, lots)
    better = measured._replace(noise=noise, leverage=leverage)
    if how == "auto" and mini_batch_noise(better, parts.probs)[0] > V_m / 2:
        return None, measured
    return lots, better


def _longest_visit(V_b: float, low: np.ndarray, f: np.ndarray) -> float:
    """Bound the time of a visit: by the clients' disagreement, and by the drift away where B_s is not positive."""
    by_travel = 4 * np.arctanh(min(TRAVEL / max(V_b, 1e-30), np.tanh(LONGEST_VISIT / 4)))
    return float(min(by_travel, 0.5 * _escape_times(low, f).min()))


def _escape_times(low: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Give the time log(1/f_s)/|λ_min(B_s)| within which other clients still bring a chain back, on average.

    With one client alone B_s is the posterior's own curvature: what is negative there is no drift away.
    """
    return np.where((low < 0) & (f < 1), np.log(1 / f) / np.maximum(-low, 1e-30), np.inf)


def _batch_size(V_m: float, h: float) -> int:
    """Choose the smallest power of two from 32 to 256 with which noise does not ask for a step smaller than h."""
    wanted = V_m * h / (4 * NOISE)
    return int(2 ** np.clip(np.ceil(np.log2(max(wanted, 1.0))), 5, np.log2(MOST_ROWS)))


def _round_down(h: float) -> float:
    """Round down to two digits, for a number that a reader can say."""
    unit = 10.0 ** (np.floor(np.log10(h)) - 1)
    return float(f"{np.floor(h / unit + 1e-9) * unit:.2g}")


def _rounds(h: float, L: int, chains: int, cost: int) -> int:
    """Choose the rounds so that all chains together run for TIME, each for a fiftieth of it at least, within limits.

    A step costs rows × parameters of multiplications, about.
    """
    wanted = np.ceil(max(TIME / chains, TIME / 50) / (h * L))
    most = min(MOST_STEPS, MOST_WORK / cost) // L
    return int(max(min(wanted, MOST_ROUNDS, most), 50))


def _effective(time: float, chains: int) -> float:
    """Count the effective draws of so much time a chain: one in four units."""
    return time * chains / 4


def _limit(measured: Measured, f: np.ndarray, m: int) -> float:
    """Choose the length from which residuals are tamed: four times the longest that was seen, with its noise."""
    residual = np.linalg.norm(measured.residual, axis=-1) / f[:, None]
    noise = np.sqrt(measured.noise.sum(-1) / m) / f[:, None]
    return float(4 * (residual + noise).max() + 4)


def _notes(p: Preflight, V_b: float, chose_rounds: bool, chains: int) -> list[str]:
    """Say what is wrong, name the client, and give the remedy."""
    notes, visit = [], p.step_size * p.local_steps
    escape = _escape_times(p.low, p.probs)
    if visit > escape.min() or V_b * np.tanh(visit / 4) > 2 * TRAVEL:
        s = int(np.argmin(escape)) if visit > escape.min() else int(np.argmax(p.disagreement))
        most = int(_longest_visit(V_b, p.low, p.probs) / p.step_size)
        notes.append(
            f"{p.clients[s]}: a visit of {p.local_steps} × {p.step_size:.2g} (local steps × step size) is too long; its"
            " surrogate is off by more than the other clients can correct. Use "
            + (f"at most {most} local steps, or a smaller step size" if most else "a smaller step size")
        )
    if -np.expm1(-p.step_size / 2) * p.high.max() > 1:  # 2 is the end of stability
        s = int(np.argmax(p.high))
        notes.append(
            f"{p.clients[s]}: its curvature is {p.high[s]:.3g} times what its surrogate and probability allow for, and"
            f" step size {p.step_size:.2g} may be unstable there; use at most {1 / p.high[s]:.2g}"
        )
    if p.inflation > 2 * (NOISE + TRAVEL):
        s = int(np.argmax(p.noise / p.batch_size + p.disagreement))
        notes.append(
            f"variances may be up to {100 * p.inflation:.0f} % too large, most of it from {p.clients[s]}; use a"
            " smaller step size, a larger batch or fewer local steps"
        )
    ess = _effective(p.rounds * visit, chains)
    if chose_rounds and ess < TIME / 8:
        notes.append(
            f"visits of {visit:.2g} time units are short, because surrogates do not fit well; with {p.rounds} rounds"
            f" expect about {ess:.0f} effective draws. Give fewer local steps if you gave many, or more rounds"
        )
    return notes
