"""Diagnostics: agreement with ArviZ, behaviour at the edges, and one closed form."""

import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import norm

from fsgld.diagnostics import ess_bulk, ess_tail, interval, mcse_mean, mcse_sd, rhat

with warnings.catch_warnings():  # ArviZ 0.23 announces its refactoring when imported
    warnings.simplefilter("ignore")
    import arviz as az

FALSE_ALARM_RATE = 2e-5
OURS = {
    "rhat": rhat,
    "ess_bulk": ess_bulk,
    "ess_tail": ess_tail,
    "mcse_mean": mcse_mean,
    "mcse_sd": mcse_sd,
}
ARVIZ = {
    "rhat": az.rhat,
    "ess_bulk": lambda x: az.ess(x, method="bulk"),
    "ess_tail": lambda x: az.ess(x, method="tail"),
    "mcse_mean": lambda x: az.mcse(x, method="mean"),
    "mcse_sd": lambda x: az.mcse(x, method="sd"),
}
# Not 20 k + 1 draws in all: see test_tail_quantile_is_a_draw
SHAPES = [(1, 4), (1, 10), (1, 333), (2, 5), (2, 13), (3, 27), (4, 4), (4, 7), (4, 250), (4, 501)]


def ar1(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> np.ndarray:
    """Draw stationary AR(1) chains of unit variance along axis 1."""
    noise = rng.normal(size=shape)
    noise[:, 1:] *= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=1)


LAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "independent": lambda rng, shape: rng.normal(size=shape),
    "sticky": lambda rng, shape: ar1(rng, shape, 0.98),
    "antithetic": lambda rng, shape: ar1(rng, shape, -0.8),
    "heavy tails": lambda rng, shape: rng.standard_cauchy(size=shape),
    "ties": lambda rng, shape: np.floor(3 * ar1(rng, shape, 0.3)),
    "two values": lambda rng, shape: rng.permuted(np.indices(shape)[1] % 2.0, axis=1),
    "one event": lambda rng, shape: (np.indices(shape)[1] == 1).astype(float),
    "chains apart": lambda rng, shape: ar1(rng, shape, 0.5) + np.indices(shape)[0],
    "unequal scales": lambda rng, shape: rng.normal(size=shape) * (1 + np.indices(shape)[0]),
    "constant halves": lambda rng, shape: 1.0 * (np.indices(shape)[1] < shape[1] // 2),
    "far from zero": lambda rng, shape: 1e6 + rng.normal(size=shape),
}


def by_arviz(name: str, draws: np.ndarray) -> np.ndarray:
    """Evaluate ArviZ parameter by parameter, with its warnings silenced."""
    columns = [np.ascontiguousarray(draws[..., j]) for j in range(draws.shape[2])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.array([ARVIZ[name](column) for column in columns])


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_agrees_with_arviz(name: str, law: str, shape: tuple[int, int]) -> None:
    """Equal ArviZ for every parameter that moves, infinities and NaNs included."""
    draws = LAWS[law](np.random.default_rng(2021), (*shape, 5))
    result = OURS[name](draws)
    assert result.shape == (5,)
    np.testing.assert_allclose(result, by_arviz(name, draws), rtol=1e-8, atol=0)


@pytest.mark.parametrize("name", OURS)
def test_parameters_do_not_mix(name: str) -> None:
    """Give each of 40 parameters (more than one block) the value it has alone."""
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(2, 60, 40)) * np.arange(1, 41) + ar1(rng, (2, 60, 40), 0.9)
    alone = [OURS[name](draws[..., [j]])[0] for j in range(40)]
    np.testing.assert_allclose(OURS[name](draws), alone, rtol=1e-12)


@pytest.mark.parametrize("draws_per_chain", [41, 101, 601])
def test_tail_quantile_is_a_draw(draws_per_chain: int) -> None:
    """Count the draw that *is* the 95 % quantile as below it.

    With N = 20 k + 1 draws q_0.95 is the (19 k + 1)-th smallest draw exactly. ArviZ 0.23
    interpolates by scipy's mquantiles, which rounds below that draw at these N and loses it; so we
    ask ArviZ for the ESS of the exact indicators instead.
    """
    draws = np.random.default_rng(2).normal(size=(1, draws_per_chain, 4))
    k, ordered = draws_per_chain // 20, np.sort(draws, axis=1)
    expected = []
    for j in range(4):
        below = [draws[..., j] <= ordered[0, i, j] for i in (k, 19 * k)]
        expected.append(min(az.ess(b.astype(float), method="mean") for b in below))
    np.testing.assert_allclose(ess_tail(draws), expected, rtol=1e-8)


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("still", [0.0, 0.1, -1e300], ids=str)
def test_constant_parameter_is_nan(name: str, still: float) -> None:
    """Return NaN for a parameter that never moves and leave its neighbours alone.

    ArviZ agrees on R-hat and the error of the sd; it calls the ESS of a constant N and the
    error of its mean 0, which would pass a stuck sampler as a perfect one.
    """
    draws = np.random.default_rng(3).normal(size=(4, 51, 3))
    draws[..., 1] = still
    result = OURS[name](draws)
    assert np.isnan(result[1])
    np.testing.assert_array_equal(result[[0, 2]], OURS[name](draws[..., [0, 2]]))
    if name in ("rhat", "mcse_sd") and still == 0:
        assert np.isnan(by_arviz(name, draws)[1])


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_non_finite_parameter_is_nan(name: str, bad: float) -> None:
    """Return NaN for a parameter with one diverged draw, and only for that one."""
    draws = np.random.default_rng(4).normal(size=(2, 20, 3))
    draws[1, 7, 2] = bad
    np.testing.assert_array_equal(np.isnan(OURS[name](draws)), [False, False, True])
    for end in interval(draws):
        np.testing.assert_array_equal(np.isnan(end), [False, False, True])


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("shape", [(1, 0, 2), (1, 1, 2), (4, 3, 2), (0, 9, 2), (0, 0, 2), (2, 9, 0)])
def test_too_few_draws_are_nan(name: str, shape: tuple[int, int, int]) -> None:
    """Return one NaN per parameter below 4 draws per chain, also with no chain at all."""
    draws = np.random.default_rng(5).normal(size=shape)
    for result in (OURS[name](draws), *interval(draws)):
        np.testing.assert_array_equal(result, np.full(shape[2], np.nan))


def test_rhat_of_one_chain_is_nan() -> None:
    """Return NaN for one chain, as ArviZ does, while ESS and errors exist."""
    draws = np.random.default_rng(6).normal(size=(1, 100, 2))
    assert np.isnan(rhat(draws)).all()
    assert all(np.isfinite(OURS[name](draws)).all() for name in OURS if name != "rhat")


def test_rhat_sees_location_and_scale() -> None:
    """Exceed 1.2 where one chain of four lies elsewhere or is wider, and not otherwise."""
    draws = np.random.default_rng(7).normal(size=(4, 500, 3))
    draws[0, :, 1] += 5
    draws[0, :, 2] *= 20
    np.testing.assert_array_equal(rhat(draws) > 1.2, [False, True, True])


def test_ranks_are_all_that_counts() -> None:
    """Keep bulk ESS under an increasing map; scale the errors with the draws."""
    draws = ar1(np.random.default_rng(8), (4, 100, 3), 0.6)
    np.testing.assert_array_equal(ess_bulk(draws), ess_bulk(np.exp(draws)))
    for error in (mcse_mean, mcse_sd):  # a power of two scales exactly, also far below 1e-15
        np.testing.assert_array_equal(error(draws * 2.0**-80), error(draws) * 2.0**-80)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_other_dtypes_are_converted(dtype: type) -> None:
    """Compute in double precision whatever the type of the draws."""
    draws = np.random.default_rng(9).normal(scale=3, size=(2, 40, 2)).astype(dtype)
    for function in OURS.values():
        assert function(draws).dtype == np.float64
        np.testing.assert_array_equal(function(draws), function(draws.astype(float)))


def test_interval_by_hand() -> None:
    """Cut (1 - prob) / 2 off either end of 0, 1, ..., 100, in any order and over chains."""
    draws = np.random.default_rng(10).permutation(101)[None, :, None]
    for prob, ends in {0.94: (3, 97), 0.9: (5, 95), 0.5: (25, 75)}.items():
        np.testing.assert_allclose(np.ravel(interval(draws, prob)), ends, rtol=1e-12)
    chains = draws[:, :100].reshape(4, 25, 1)
    np.testing.assert_array_equal(interval(chains), interval(draws[:, :100]))


def test_interval_agrees_with_arviz() -> None:
    """Equal the equal-tailed interval of ArviZ's summary, whose default is 94 % too."""
    draws = np.random.default_rng(11).standard_cauchy(size=(4, 51, 3))
    table = az.summary({"x": draws}, stat_focus="median", kind="stats", round_to="none")
    np.testing.assert_allclose(interval(draws), table[["eti_3%", "eti_97%"]].to_numpy().T)


def test_interval_of_a_constant() -> None:
    """Give the point itself: the quantiles of a constant are defined."""
    np.testing.assert_array_equal(interval(np.full((2, 10, 1), 0.1)), [[0.1], [0.1]])


@pytest.mark.parametrize("prob", [0.0, 1.0, -0.1, 94.0, np.nan])
def test_interval_rejects_prob(prob: float) -> None:
    """Say what is wrong with a probability outside (0, 1)."""
    with pytest.raises(ValueError, match=f"between 0 and 1; got {prob}"):
        interval(np.zeros((2, 10, 1)), prob)


@pytest.mark.parametrize("name", OURS)
def test_rejects_other_dimensions(name: str) -> None:
    """Say which shape is expected and which was given."""
    with pytest.raises(ValueError, match=r"\(chains, draws, d\); got \(2, 10\)"):
        OURS[name](np.zeros((2, 10)))


@pytest.mark.parametrize("rho", [-0.5, 0.5, 0.9])
def test_ess_of_ar1_has_closed_form(rho: float) -> None:
    """ESS / N = (1 - rho) / (1 + rho) and mcse = sqrt((1 + rho) / (1 - rho) / N) for AR(1).

    With a window of M lags the relative variance of tau is about 2 (2 M + 1) / N (Madras and Sokal
    1988). Taking for M the lag where |rho|^M = 1 / N, plus one pair, is generous: Geyer's window
    ends nearer to |rho|^M = 1 / sqrt(N). The mean over d parameters then lies within
    z sqrt(2 (2 M + 1) / (N d)), where z leaves FALSE_ALARM_RATE = 2e-5 outside, relative. The
    excess of M (sqrt 2 in the tolerance) covers the bias of the stopping rule, below 0.7 % here.
    """
    chains, n, d = 4, 20_000, 25
    draws = ar1(np.random.default_rng(12), (chains, n, d), rho)
    total, tau = chains * n, (1 + rho) / (1 - rho)
    window = np.log(total) / -np.log(abs(rho)) + 2
    tolerance = norm.isf(FALSE_ALARM_RATE / 2) * np.sqrt(2 * (2 * window + 1) / (total * d))
    assert tolerance < 0.07
    assert abs(ess_bulk(draws).mean() * tau / total - 1) < tolerance
    assert abs(mcse_mean(draws).mean() / np.sqrt(tau / total) - 1) < tolerance


def test_thousand_parameters_are_fast() -> None:
    """Take less than 3 s of processor time per diagnostic for d = 1000, 4 chains, 2000 draws."""
    draws = np.random.default_rng(13).normal(size=(4, 2000, 1000))
    for name, function in OURS.items():
        start = time.process_time()
        assert np.isfinite(function(draws)).all()
        assert time.process_time() - start < 3, name
