"""Every surrogate, fit, dynamics and likelihood slot runs through the same checks. A new part enters a table."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from problems import regression

DYNAMICS = {
    "langevin": fsgld.langevin(1e-3),
    "langevin, polynomial": fsgld.langevin(fsgld.schedules.polynomial(1e-3)),
    "langevin, cosine": fsgld.langevin(fsgld.schedules.cosine(1e-3, 100, 1e-4)),
    "langevin, cyclical": fsgld.langevin(fsgld.schedules.cyclical(1e-3, 50)),
    "whitened": fsgld.whitened(0.1),
    "sghmc": fsgld.sghmc(1e-3),
    "psgld": fsgld.psgld(1e-3),
}
LIKELIHOODS = {"plain": fsgld.plain, "control_variate": fsgld.control_variate}
FITS = {
    "analytic": (fsgld.analytic, {}),
    "from_draws": (fsgld.from_draws, {"draws": 500, "thin": 5}),
    "from_draws, diagonal": (fsgld.from_draws, {"draws": 500, "thin": 5, "diagonal": True}),
    "laplace": (fsgld.laplace, {}),
    "laplace, diagonal": (fsgld.laplace, {"diagonal": True}),
    "anchored": (fsgld.anchored, {}),
    "anchored, diagonal": (fsgld.anchored, {"diagonal": True}),
    "anchored, linear": (fsgld.anchored, {"order": 1}),
}
SETTINGS = {"batch_size": 8, "local_steps": 4, "rounds": 40, "chains": 2}


@pytest.fixture(scope="module")
def problem():
    return regression(sizes=(30, 25, 40))


@pytest.fixture
def compilations():
    """Count programs that XLA compiles."""
    counts = []
    listener = lambda event, seconds, **_: counts.append(event) if "backend_compile" in event else None  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    yield counts
    jax.monitoring.clear_event_listeners()


@pytest.mark.parametrize("method", FITS)
def test_fits(problem, method):
    """A fit gives one finite surrogate a client, of the model's size, the same when run again."""
    model, shards = problem
    function, options = FITS[method]
    first, second = (fsgld.fit(model, shards, function, **options) for _ in range(2))
    assert len(first) == 3
    for q, again in zip(first, second, strict=True):
        assert q.shift.shape == (3,)
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(q))
        jax.tree.map(np.testing.assert_array_equal, q, again)


@pytest.mark.filterwarnings("ignore:variances may be")  # the pre-flight is right about plain batches of 4
@pytest.mark.parametrize(("dynamics", "slot"), list(itertools.product(DYNAMICS, LIKELIHOODS)))
def test_parts_run_and_do_not_compile_twice(problem, compilations, dynamics, slot):
    """A combination gives finite draws of the right shape; the second call, with another seed, compiles nothing."""
    model, shards = problem
    surrogates = fsgld.fit(model, shards, fsgld.analytic)
    run = lambda seed: fsgld.sample(  # noqa: E731
        model, shards, surrogates, dynamics=DYNAMICS[dynamics], likelihood=LIKELIHOODS[slot], seed=seed, **SETTINGS
    )
    first, again = run(0), run(0)
    np.testing.assert_array_equal(first.draws, again.draws)
    compilations.clear()
    other = run(1)
    assert compilations == []
    assert other.draws.shape == (2, 36, 3)
    assert np.isfinite(other.draws).all()
    assert (other.draws != first.draws).all()


@pytest.mark.parametrize("method", FITS)
def test_surrogates_of_every_kind_carry_a_chain(problem, method):
    """Any of them is allowed: FSGLD is unbiased for all, so that the mean of a stable chain is near the posterior's."""
    model, shards = problem
    function, options = FITS[method]
    surrogates = fsgld.fit(model, shards, function, **options)
    result = fsgld.sample(model, shards, surrogates, dynamics=fsgld.langevin(1e-4), **SETTINGS)
    assert np.isfinite(result.draws).all()
    assert result.settings["surrogates"] == f"given, {surrogates[0].kind}"


def test_another_step_size_or_surrogate_does_not_compile_again(problem, compilations):
    model, shards = problem
    surrogates = fsgld.fit(model, shards, fsgld.analytic)
    run = lambda h, q: fsgld.sample(model, shards, q, dynamics=fsgld.langevin(h), **SETTINGS)  # noqa: E731
    run(1e-3, surrogates)
    compilations.clear()
    run(2e-3, [q * 0.5 for q in surrogates])
    assert len(compilations) <= 2  # q * 0.5 itself, not the engine


def test_float32_is_kept_when_x64_is_off(problem):
    """Inside, everything has one dtype: the parameters'."""
    model, shards = problem
    single = fsgld.Model(model.log_prior, model.log_likelihood, np.zeros(3, np.float32))
    shards = [(X.astype(np.float32), y.astype(np.float32)) for X, y in shards]
    result = fsgld.sample(single, shards, **SETTINGS)
    assert result.draws.dtype == np.float32
    assert result.settings["dtype"] == "float32"


def test_a_function_that_reads_a_changed_variable_is_another_function():
    """Everyday notebook use: run, change a global, run again. A program compiled before must not be found."""
    scale = {"sd": 1.0}
    model = fsgld.Model(
        lambda p: -0.5 * jnp.sum(p**2) / 100,
        lambda p, x: -0.5 * jnp.sum((x - p) ** 2) / scale["sd"] ** 2,
        jnp.zeros(1),
    )
    shards = [np.zeros((20, 1)), np.ones((20, 1))]
    narrow = fsgld.sample(model, shards).draws.std()
    scale["sd"] = 5.0
    wide = fsgld.sample(model, shards).draws.std()
    assert wide / narrow == pytest.approx(5.0, rel=0.2)


def test_linear_surrogates_get_no_coordinates_and_no_anchor_from_nowhere(problem):
    """Λ = 0 says nothing about curvature: the step size must be given, and the default slot is plain."""
    model, shards = problem
    linear = fsgld.fit(model, shards, fsgld.anchored, order=1)
    with pytest.raises(fsgld.InputError, match="step size"):
        fsgld.sample(model, shards, linear, **SETTINGS)
    result = fsgld.sample(model, shards, linear, dynamics=fsgld.langevin(1e-4), **SETTINGS)
    assert result.settings["likelihood"] == "plain"


def test_large_models_take_diagonal_surrogates_without_a_matrix():
    """1200 parameters: `whitened` and the anchor come from diagonals; the posterior is N(Σx/(N+1), 1/(N+1))."""
    rng = np.random.default_rng(0)
    shards = [rng.normal(s, 1, (n, 1200)) for s, n in enumerate((20, 30))]
    model = fsgld.Model(lambda p: -0.5 * jnp.sum(p**2), lambda p, x: -0.5 * jnp.sum((x - p) ** 2), jnp.zeros(1200))
    surrogates = fsgld.fit(model, shards, fsgld.anchored, diagonal=True)
    result = fsgld.sample(model, shards, surrogates, dynamics=fsgld.whitened(1.0), batch_size=2, rounds=60, chains=2)
    z = (result.draws - np.concatenate(shards).sum(0) / 51) * np.sqrt(51)
    assert abs(z.mean()) < 4 / np.sqrt(z.size)  # draws are 20 steps of h = 1 apart: independent
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / z.size)
