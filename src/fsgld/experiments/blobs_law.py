"""The long-run law of `blobs` in closed form: what each method must give, wrong or right."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np


class Law(NamedTuple):
    """One step at client s: θ' = c_s + a_s (θ − c_s) + noise of variance v_s, in each coordinate."""

    decay: np.ndarray  # a_s, shape (S, 1)
    centre: np.ndarray  # c_s, shape (S, d)
    noise: np.ndarray  # v_s, shape (S, d)
    probs: np.ndarray  # f_s, shape (S,)


def posterior(shards: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """Give the exact posterior's mean Σx/(N+1), and its variance 1/(N+1) in each coordinate."""
    rows = np.concatenate(shards)
    return rows.sum(0) / (len(rows) + 1), 1 / (len(rows) + 1)


def client_law(
    shards: list[np.ndarray], step_size: float, batch_size: int, *, surrogate: str | None,
    control_variate: bool = False, probs: np.ndarray | None = None,
) -> Law:  # fmt: skip
    """Write the step of Algorithm 1 on this model as one linear map a client.

    With n_s = N_s/f_s and q_s = N(x̄_s, I/P_s), client s pulls with strength A_s = 1 + n_s + Σ_r P_r − P_s/f_s to
    c_s = (n_s x̄_s + Σ_r P_r x̄_r − P_s x̄_s/f_s)/A_s, so a_s = 1 − (h/2) A_s. DSGLD has P = 0: each client pulls to
    its own rows. Exact surrogates have P_s = N_s: all pull to the posterior's mean, with A = N + 1. The paper prints
    P_s = N: with equal clients A = N + 1 again, but each pushes away from its own rows, S − 1 times as far as in DSGLD.
    Mini-batches add (h²/4) n_s² σ_s²/m to the noise variance h, σ_s² the variance of the client's rows; the control
    variate takes that away, as here all rows have one curvature.

    Parameters
    ----------
    shards
        Each client's rows.
    step_size, batch_size
        The letters h and m.
    surrogate
        None (DSGLD), "exact" (P_s = N_s) or "printed" (P_s = N).
    control_variate
        Whether the in-client control variate is on.
    probs
        Selection probabilities f_s; equal by default.
    """
    h, f = step_size, np.full(len(shards), 1 / len(shards)) if probs is None else probs
    N, means = np.array([[len(x)] for x in shards]), np.array([x.mean(0) for x in shards])
    n, P = N / f[:, None], precisions(N, surrogate)
    strength = 1 + n + P.sum() - P / f[:, None]
    centre = (n * means + (P * means).sum(0) - P * means / f[:, None]) / strength
    minibatch = n**2 * np.array([x.var(0) for x in shards]) / batch_size
    noise = h + h**2 / 4 * minibatch * (not control_variate)
    return Law(1 - h / 2 * strength, centre, noise, f)


def precisions(sizes: np.ndarray, surrogate: str | None) -> np.ndarray:
    """Give P_s of every surrogate: 0 without, N_s if exact, N as printed."""
    return sizes * {None: 0.0, "exact": 1.0}.get(surrogate, sizes.sum() / sizes)


def stationary_variance(law: Law, local_steps: int, thin: int = 1) -> np.ndarray:
    """Compute the long-run variance of every thin-th θ, in each coordinate.

    After j steps at client s, with ρ = a_s^j, θ_j = ρ θ_0 + (1 − ρ) c_s + noise of variance
    v_s (1 − ρ²)/(1 − a_s²). Clients are picked without regard to θ_0, so its first two moments at
    the start of a visit solve linear equations. Every thin-th step meets the positions
    j = g, 2g, …, L of a visit equally often, g = gcd(L, thin). If a_s = a everywhere and draws are
    taken at the end of a visit, then with ρ = a^L the variance is

        Σ_s f_s v_s / (1 − a²) + Var_f(c_s) (1 − ρ)/(1 + ρ);

    for FSGLD (1/A)(1 + h V/4)/(1 − h A/4) at any L: A = N + 1, V = Σ_s (N_s²/f_s) σ_s²/m or 0.

    Parameters
    ----------
    law
        The step at each client.
    local_steps, thin
        Steps a visit, L, and steps from one draw to the next.
    """
    a, c, v, f = law
    first = second = np.zeros(c.shape[1])

    def moments(j: int) -> tuple[np.ndarray, np.ndarray]:
        rho = a**j
        middle = rho * first + (1 - rho) * c
        spread = rho**2 * (second - first**2) + v * (1 - rho**2) / (1 - a**2)
        return f @ middle, f @ (middle**2 + spread)

    # `moments` is affine in (first, second), so each is its value at 0 over 1 − slope
    first = moments(local_steps)[0] / (1 - f @ a**local_steps)
    second = moments(local_steps)[1] / (1 - f @ a ** (2 * local_steps))
    g = gcd(local_steps, thin)
    mean, square = np.mean([moments(j) for j in range(g, local_steps + 1, g)], axis=0)
    return square - mean**2
