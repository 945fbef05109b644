"""`until=fsgld.Converged(...)`: a run that ends when its draws are enough, and says so when they never are."""

import shutil
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from fsgld import diagnostics

MOST, T = 1000, 5
SETTINGS = {
    "dynamics": fsgld.langevin(0.02), "likelihood": fsgld.plain, "batch_size": 4, "local_steps": T, "chains": 4,
    "seed": 2,
}  # fmt: skip
WANTED = fsgld.Converged(rhat=1.02, ess=600)


@cache
def problem():
    """Two clients that agree; made once, as are compiled programs. DSGLD needs no pre-flight."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = fsgld.Model(
        log_prior=lambda p: -0.5 * jnp.sum(p**2),
        log_likelihood=lambda p, x: -0.5 * jnp.sum((x - p) ** 2),
        init=jnp.zeros(2),
    )
    return model, [x[:20], x[20:]]


def run(**more):
    return fsgld.sample(*problem(), None, **SETTINGS | more)


@cache
def longest():
    """All rounds that the runs below may make, with no burn-in dropped."""
    return run(rounds=MOST, burn_in=0)


@cache
def stopped():
    return run(until=WANTED, max_rounds=MOST)


def first_rounds(rounds, share):
    """Cut a shorter run's draws out of the longest."""
    kept = (longest().draw_rounds < rounds) & (longest().draw_rounds + 1 > share * rounds)
    return longest().draws[:, kept]


def holds(draws, rhat, ess):
    """Say whether R-hat and both effective sample sizes are good enough, from the diagnostics themselves."""
    sizes = np.concatenate([diagnostics.ess_bulk(draws), diagnostics.ess_tail(draws)])
    return bool(diagnostics.rhat(draws).max() <= rhat and sizes.min() >= ess)


def test_a_run_ends_when_its_draws_are_enough():
    """Not before it holds, and not much later: looks are a quarter of the run apart, calls 32 rounds."""
    result = stopped()
    done = result.visited.shape[1]
    assert done < MOST
    assert result.settings["rounds"] == done
    assert result.settings["converged"] is True
    assert holds(result.draws, *WANTED)
    assert not [line for line in result.problems() if "converged" in line]
    first = next(r for r in range(1, MOST + 1) if holds(first_rounds(r, 0.1), *WANTED))
    assert done <= 1.25 * first + 64


def test_the_draws_are_the_first_of_a_longer_run():
    """With the same seed; and a share of burn-in is one of the rounds that were made."""
    result = stopped()
    done = result.visited.shape[1]
    np.testing.assert_array_equal(result.draws, first_rounds(done, 0.1))
    np.testing.assert_array_equal(result.visited, longest().visited[:, :done])
    assert result.draw_rounds.tolist() == [r for r in range(done) if (r + 1) * T > int(0.1 * done * T)]


def test_burn_in_in_steps_is_dropped_as_it_is():
    result = run(until=WANTED, max_rounds=MOST, burn_in=30 * T)
    done = result.visited.shape[1]
    assert result.draw_rounds.tolist() == list(range(30, done))
    np.testing.assert_array_equal(result.draws, longest().draws[:, 30:done])


def test_a_run_that_never_converges_says_so():
    with pytest.warns(UserWarning, match="not converged after 150 rounds; give more max_rounds"):
        result = run(until=fsgld.Converged(rhat=1.01, ess=1e6), max_rounds=150)
    assert result.visited.shape == (4, 150)
    assert result.settings["converged"] is False
    assert "not converged after 150 rounds; give more max_rounds" in result.summary().notes
    np.testing.assert_array_equal(result.draws, first_rounds(150, 0.1))


def test_without_until_nothing_is_said():
    assert longest().settings["converged"] is None
    assert longest().settings["until"] is None
    assert longest().problems() == []


def test_rounds_are_the_most_rounds_if_given_alone():
    with pytest.warns(UserWarning, match="not converged after 1000 rounds"):
        result = run(until=fsgld.Converged(ess=1e6), rounds=MOST)
    assert result.visited.shape[1] == MOST


@pytest.mark.parametrize("left", [1, 3, -1])
def test_a_resumed_run_ends_where_the_uncut_does(tmp_path, left):
    whole = run(until=WANTED, max_rounds=MOST, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(whole.draws, stopped().draws)
    calls = sorted((tmp_path / "run" / "calls").glob("*.npz"))
    assert len(calls) > 4
    for call in calls[left:]:
        call.unlink()
    again = run(until=WANTED, max_rounds=MOST, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(again.draws, whole.draws)
    assert again.settings == whole.settings
    assert len(list((tmp_path / "run" / "calls").glob("*.npz"))) == len(calls)


def test_a_finished_run_is_read_back_and_another_aim_is_another_run(tmp_path):
    whole = run(until=WANTED, max_rounds=MOST, checkpoint=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    again = run(until=WANTED, max_rounds=MOST, checkpoint=tmp_path / "copy")
    np.testing.assert_array_equal(again.draws, whole.draws)
    with pytest.raises(fsgld.CheckpointError, match="its until is"):
        run(until=WANTED._replace(ess=601), max_rounds=MOST, checkpoint=tmp_path / "run")


def test_converged_looks_at_the_chains_that_are_left():
    """Independent draws: R-hat is near 1 and the effective size near their number, 4 × 500."""
    x = np.random.default_rng(0).normal(size=(4, 500, 2))
    assert fsgld.Converged(1.01, 400)(x)
    assert not fsgld.Converged(1.01, 4000)(x)
    assert not fsgld.Converged(diagnostics.rhat(x).max() - 1e-6, 400)(x)
    assert not fsgld.Converged()(x + np.array([0, 0, 0, 3.0])[:, None, None])
    assert not fsgld.Converged()(x[:, :49])  # too few to tell
    lost = x.copy()
    lost[1, 100:] = np.nan
    assert fsgld.Converged(1.02, 400)(lost)
    lost[[0, 2], 100:] = np.nan
    assert not fsgld.Converged(1.02, 400)(lost)  # one chain says nothing about R-hat
    stuck = np.concatenate([x, np.ones((4, 500, 1))], axis=2)
    assert not fsgld.Converged()(stuck)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_rounds": 100}, r"max_rounds goes with until=fsgld.Converged\(...\)"),
        ({"until": WANTED, "max_rounds": 100, "rounds": 50}, "give rounds alone, or until and max_rounds"),
        ({"rounds": 50, "max_rounds": 100}, "max_rounds goes with until"),
        ({"until": "x", "max_rounds": 100}, r"until must be fsgld.Converged\(rhat, ess\); got 'x'"),
        ({"until": fsgld.Converged}, r"until must be fsgld.Converged\(rhat, ess\); got <class"),
        ({"until": (1.01, 400)}, r"until must be fsgld.Converged\(rhat, ess\); got \(1.01, 400\)"),
        ({"until": fsgld.Converged(ess="many")}, "rhat and ess of Converged must be positive numbers"),
        ({"until": fsgld.Converged(rhat=-1)}, "rhat and ess of Converged must be positive numbers"),
        ({"until": WANTED, "max_rounds": 0}, "max_rounds must be a whole number of at least 1; got 0"),
        ({"until": WANTED, "max_rounds": 1e4}, "max_rounds must be a whole number of at least 1; got 10000.0"),
    ],
)  # fmt: skip
def test_an_aim_that_cannot_be_used_is_refused_in_words(given, words):
    with pytest.raises(fsgld.InputError, match=words):
        run(**given)
