"""Convergence diagnostics of draws, one number per parameter, in plain NumPy.

Every function takes draws of shape (chains, draws, d) and returns arrays of shape (d,). A value
that is not defined is NaN, without a warning: fewer than 4 draws per chain, a non-finite draw, or
a parameter that never moves (a constant and a stuck chain look alike).

References
----------
Vehtari et al. (2021), "Rank-normalization, folding, and localization", Bayesian Analysis 16(2).
Geyer (1992), "Practical Markov chain Monte Carlo", Statistical Science 7(4).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.fft import next_fast_len  # type: ignore[import-untyped,unused-ignore]
from scipy.special import ndtri  # type: ignore[import-untyped,unused-ignore]

Array = npt.NDArray[np.float64]
Statistic = Callable[[Array], Array]  # from (d, chains, draws) to (d,)


class Converged(NamedTuple):
    """When to stop: all R-hat at most `rhat`, all bulk and tail effective sample sizes at least `ess`.

    For `fsgld.sample(..., until=fsgld.Converged(rhat=1.01, ess=400), max_rounds=...)`.
    """

    rhat: float = 1.01
    ess: float = 400

    def __call__(self, draws: npt.ArrayLike) -> bool:
        """Say whether draws (chains, n, d) are enough; fewer than 50 a chain, or two chains, never are."""
        x = np.asarray(draws)
        x = x[np.isfinite(x).all((1, 2))]
        if len(x) < 2 or x.shape[1] < 50:
            return False
        enough = np.minimum(ess_bulk(x), ess_tail(x)).min() >= self.ess
        return bool(enough and rhat(x).max() <= self.rhat)


def rhat(draws: npt.ArrayLike) -> Array:
    """Rank-normalised split R-hat, the larger of its bulk and folded versions.

    R = sqrt((B / W + n - 1) / n), B and W the variances between and within half-chains of n normal
    scores, of x or of |x - median|. NaN for a single chain. Vehtari et al. (2021).
    """

    def larger(x: Array) -> Array:
        halves = _split(x)
        folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
        # fmax: two-valued draws may fold to a constant, whose R-hat is 0/0
        return np.fmax(_rhat(_normal_scores(halves)), _rhat(_normal_scores(folded)))

    return _per_parameter(larger, draws, min_chains=2)


def ess_bulk(draws: npt.ArrayLike) -> Array:
    """Bulk effective sample size: that of the mean of the normal scores.

    N / tau with tau = 1 + 2 sum_t rho_t over half-chains of z = Phi^-1((rank - 3/8) / (N + 1/4)).
    Vehtari et al. (2021), Section 3.2; the sum is cut by Geyer's initial monotone sequence.
    """
    return _per_parameter(lambda x: _ess(_normal_scores(_split(x))), draws)


def ess_tail(draws: npt.ArrayLike) -> Array:
    """Tail effective sample size: the smaller of those of the 5 % and 95 % quantiles.

    min over p in {0.05, 0.95} of N / tau of the indicators 1{x <= q_p}. Vehtari et al. (2021).
    """

    def smaller(x: Array) -> Array:
        low, high = np.quantile(x, (0.05, 0.95), axis=(1, 2), keepdims=True)
        return np.minimum(_ess(_split(x <= low)), _ess(_split(x <= high)))

    return _per_parameter(smaller, draws)


def mcse_mean(draws: npt.ArrayLike) -> Array:
    """Monte Carlo standard error of the posterior mean.

    sd(x) / sqrt(ESS(x)), with the ESS of the draws themselves. Vehtari et al. (2021).
    """
    return _per_parameter(lambda x: np.sqrt(x.var(axis=(1, 2), ddof=1) / _ess(_split(x))), draws)


def mcse_sd(draws: npt.ArrayLike) -> Array:
    """Monte Carlo standard error of the posterior standard deviation, by the delta method.

    With c = (x - mean x)^2: sqrt(var(c) / ESS(c) / mean c) / 2. Vehtari et al. (2021).
    """

    def standard_error(x: Array) -> Array:
        c = (x - x.mean(axis=(1, 2), keepdims=True)) ** 2
        return np.asarray(np.sqrt(c.var((1, 2)) / _ess(_split(c)) / c.mean((1, 2))) / 2)

    return _per_parameter(standard_error, draws)


def interval(draws: npt.ArrayLike, prob: float = 0.94) -> tuple[Array, Array]:
    """Equal-tailed posterior interval, as (lower, upper).

    The (1 - prob) / 2 and (1 + prob) / 2 quantiles of all draws, interpolated linearly (R type 7).
    A parameter that never moves has the interval [c, c].
    """
    if not 0 < prob < 1:
        raise ValueError(f"prob must lie strictly between 0 and 1; got {prob}")

    def quantile(p: float) -> Array:
        return _per_parameter(lambda x: np.quantile(x, p, axis=(1, 2)), draws, constants=True)

    return quantile((1 - prob) / 2), quantile((1 + prob) / 2)


def _per_parameter(statistic: Statistic, draws: npt.ArrayLike, min_chains: int = 1, constants: bool = False) -> Array:
    """Apply a statistic where it is defined; NaN elsewhere."""
    x = np.asarray(draws, dtype=np.float64)
    if x.ndim != 3:
        raise ValueError(f"draws must have shape (chains, draws, d); got {x.shape}")
    x = np.ascontiguousarray(np.moveaxis(x, 2, 0))
    out = np.full(len(x), np.nan)
    if x.shape[1] >= min_chains and x.shape[2] >= 4:
        rows = np.flatnonzero(np.isfinite(x).all(axis=(1, 2)) & (constants | ~_constant(x)))
        with np.errstate(all="ignore"):
            for block in (rows[i : i + 16] for i in range(0, len(rows), 16)):  # fits the cache
                out[block] = statistic(x[block])
    return out


def _constant(x: Array) -> npt.NDArray[np.bool_]:
    """Whether all draws of a parameter are equal."""
    return np.asarray((x == x[:, :1, :1]).all(axis=(1, 2)))


def _split(x: npt.NDArray[np.generic]) -> Array:
    """Halve every chain, dropping the middle one of an odd number of draws."""
    half = x.shape[2] // 2
    return np.concatenate([x[..., :half], x[..., -half:]], axis=1, dtype=np.float64)


def _normal_scores(x: Array) -> Array:
    """Blom's normal scores of the pooled ranks; ties share their mean rank."""
    flat = x.reshape(len(x), -1)
    order, n = np.argsort(flat, axis=1), flat.shape[1]
    ordered = np.take_along_axis(flat, order, axis=1)
    new = np.insert(ordered[:, 1:] != ordered[:, :-1], 0, True, axis=1)
    start = np.flatnonzero(new)  # of each run of ties, row after row
    length = np.diff(start, append=new.size)
    scores = ndtri((start % n + (length + 1) / 2 - 3 / 8) / (n + 1 / 4))
    np.put_along_axis(ordered, order, np.repeat(scores, length).reshape(flat.shape), axis=1)
    return ordered.reshape(x.shape)


def _rhat(x: Array) -> Array:
    """Potential scale reduction sqrt((B / W + n - 1) / n)."""
    n = x.shape[2]
    between = n * x.mean(axis=2).var(axis=1, ddof=1)
    within = x.var(axis=2, ddof=1).mean(axis=1)
    return np.asarray(np.sqrt((between / within + n - 1) / n))


def _ess(x: Array) -> Array:
    """N / tau with Geyer's initial monotone sequence, tau >= 1 / log10 N; N if x is constant."""
    rho, n, total = _autocorrelation(x), x.shape[2], x[0].size
    stop = 2 * max((n - 3) // 2, 0) + 2
    even, odd = rho[:, 0:stop:2], rho[:, 1:stop:2]
    # the running minimum is monotone, and falls to <= 0 just where the positive sequence ends
    monotone = np.minimum.accumulate(even + odd, axis=1)[:, :-1]
    k = (np.arange(len(x)), (monotone > 0).sum(axis=1))
    last = np.where(even[k] + odd[k] >= 0, even[k], np.maximum(even[k], 0))
    tau = 2 * np.maximum(monotone, 0).sum(axis=1) - 1 + last
    return np.asarray(np.where(_constant(x), total, total / tau.clip(1 / np.log10(total))))


def _autocorrelation(x: Array) -> Array:
    """Multi-chain autocorrelations rho_t = 1 - (W - mean_c acov_ct) / var_plus, shape (d, n)."""
    n, chain_mean = x.shape[2], x.mean(axis=2, keepdims=True)
    size = next_fast_len(2 * n, real=True)
    spectrum = np.fft.rfft(x - chain_mean, size)
    power = np.mean(spectrum.real**2 + spectrum.imag**2, axis=1)
    acov = np.fft.irfft(power, size)[:, :n] / n
    var_plus = acov[:, :1] + chain_mean.var(axis=1, ddof=1)
    rho: Array = 1 - (acov[:, :1] * n / (n - 1) - acov) / var_plus
    rho[:, 0] = 1
    return rho


def pareto_k(log_weights: npt.ArrayLike) -> float:
    """Tail index k of importance weights w, from a generalised Pareto fit to the M = min(n/5, 3 sqrt(n)) largest.

    The density is (1 + k x / s)^(-1 - 1/k) / s; moments of w up to order 1/k exist. The fit is Zhang and Stephens'
    (2009), drawn towards 1/2 with the weight of ten observations, as in PSIS (Vehtari et al., 2024). -inf if all
    weights are equal, inf if one is not a number.
    """
    x = np.asarray(log_weights, float)
    if not np.isfinite(x).all():
        return float("inf")
    x = np.sort(x - x.max())
    M = int(np.ceil(min(0.2 * len(x), 3 * np.sqrt(len(x)))))
    tail = np.exp(x[-M:]) - np.exp(x[-M - 1])
    if not tail[-1] > 0:
        return float("-inf")
    tail = np.maximum(tail, np.finfo(float).tiny)
    m = 30 + int(np.sqrt(M))
    theta = (1 - np.sqrt(m / (np.arange(1, m + 1) - 0.5))) / (3 * tail[int(M / 4 + 0.5) - 1]) + 1 / tail[-1]
    k = np.log1p(-theta[:, None] * tail[None]).mean(1)
    profile = M * (np.log(-theta / k) - k - 1)
    weights = 1 / np.exp(profile[None] - profile[:, None]).sum(1)
    best = float((theta * weights / weights.sum()).sum())
    shape = float(np.log1p(-best * tail).mean())
    return (M * shape + 5) / (M + 10)
