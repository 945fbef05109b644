"""compiled ≡ reference ≡ NumPy: the same chain for the same seed, to 1e-10 in double precision."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
import reference
from fsgld import randomness
from fsgld.engines import Plan, compiled, make_plan
from fsgld.fit import anchored, fit
from problems import logistic, regression, regression_posterior

F = np.array([0.2, 0.5, 0.3])
SETTINGS = {
    "probs": F, "batch_size": 4, "local_steps": 6, "rounds": 25, "chains": 2, "thin": 1, "burn_in": 0, "seed": 7,
    "alpha": 0.9,
}  # fmt: skip

DYNAMICS = {
    "langevin": (fsgld.langevin(1e-3), reference.langevin),
    "whitened": (fsgld.whitened(0.2), reference.whitened(regression_posterior(regression()[1])[1])),
    "sghmc": (fsgld.sghmc(1e-3, friction=0.3), reference.sghmc(0.3)),
    "psgld": (fsgld.psgld(1e-2, decay=0.9, floor=1e-3), reference.psgld(0.9, 1e-3)),
}
LIKELIHOODS = {"plain": fsgld.plain, "control_variate": fsgld.control_variate.at(jnp.array([0.5, -0.2, 0.1]))}


def same_numbers(chain, sizes, steps, seed, rounds, m, d):
    """Draw what the library draws for one chain: (client, rows, noise) for every round."""
    root = randomness.root_key(seed)
    visits = []
    for r in range(rounds):
        keys = randomness.round_keys(root, chain, r)
        u = int(randomness.bits(keys.client, 1)[0]) / 2**32
        s = int(np.searchsorted(np.cumsum(F), u, side="right"))
        row_bits, xi = randomness.numbers(keys, steps, m, d, np.dtype(float))
        rows = (np.asarray(row_bits).astype(object) * sizes[s]) // 2**32
        visits.append((s, rows.astype(int), np.asarray(xi)))
    return visits


@pytest.mark.filterwarnings("ignore:client 2. a visit of 6", "ignore:variances may be")  # settings are bad on purpose
@pytest.mark.parametrize("slot", LIKELIHOODS)
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_compiled_is_reference_is_numpy(dynamics, slot):
    model, shards = regression()
    surrogates = [q * 0.8 for q in fit(model, shards, anchored)]  # deliberately not exact
    ours, theirs = DYNAMICS[dynamics]
    if dynamics == "whitened":
        ours = ours.with_precision(np.linalg.inv(regression_posterior(shards)[1]))
    run = lambda engine: fsgld.sample(  # noqa: E731
        model, shards, surrogates, dynamics=ours, likelihood=LIKELIHOODS[slot], engine=engine, **SETTINGS
    )
    fast, plain = run("compiled"), run("reference")
    np.testing.assert_array_equal(fast.visited, plain.visited)
    np.testing.assert_allclose(fast.draws, plain.draws, rtol=1e-10, atol=1e-10)

    natural = [(np.array(q.shift), np.array(q.precision)) for q in surrogates]
    for chain in range(2):
        visits = same_numbers(chain, [7, 20, 12], 6, 7, 25, 4, 3)
        h = {"langevin": 1e-3, "whitened": 0.2, "sghmc": 1e-3, "psgld": 1e-2}[dynamics]
        anchor = None if slot == "plain" else np.array([0.5, -0.2, 0.1])
        want = reference.algorithm_1(
            shards, natural, F, np.zeros(3), visits, h=h, m=4, alpha=0.9, step=theirs, anchor=anchor
        )
        assert fast.visited[chain].tolist() == [s for s, _, _ in visits]
        np.testing.assert_allclose(fast.draws[chain], want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("surrogates", ["auto", None, "diagonal", "linear"])
def test_engines_agree_on_a_logistic_model_with_dict_rows(surrogates):
    model, shards = logistic()
    if surrogates in ("diagonal", "linear"):
        options = {"diagonal": {"diagonal": True}, "linear": {"order": 1}}[surrogates]
        surrogates = fit(model, shards, anchored, **options)
    run = lambda engine: fsgld.sample(  # noqa: E731
        model, shards, surrogates, dynamics=fsgld.langevin(fsgld.schedules.polynomial(0.05)), engine=engine,
        probs=F, batch_size=5, local_steps=4, rounds=15, chains=3, thin=2, seed=1,
    )  # fmt: skip
    fast, plain = run("compiled"), run("reference")
    np.testing.assert_array_equal(fast.visited, plain.visited)
    for name in ("w", "b"):
        np.testing.assert_allclose(fast.draws[name], plain.draws[name], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("group", "block"), [(1, 12), (3, 12), (6, 12), (1, 4), (1, 6), (1, 1)])
def test_how_the_work_is_cut_does_not_change_the_chain(monkeypatch, group, block):
    """Groups of rounds, blocks of steps and calls only decide when numbers are drawn."""
    model, shards = regression()
    surrogates = fit(model, shards, anchored)

    def run(plan):
        monkeypatch.setattr(sys.modules["fsgld.sample"], "make_plan", lambda *sizes: plan)
        return fsgld.sample(
            model, shards, surrogates, dynamics=fsgld.sghmc(1e-3), probs=F, batch_size=3, local_steps=12,
            rounds=10, chains=2, thin=3, burn_in=0, seed=3,
        )  # fmt: skip

    whole = run(Plan(2, 10, 12, 1, 12, True))
    cut = run(Plan(2, 6, 12, group, block, block != 6))
    assert whole.draws.shape == cut.draws.shape == (2, 40, 3)
    np.testing.assert_array_equal(whole.visited, cut.visited)
    np.testing.assert_allclose(whole.draws, cut.draws, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("thin", [1, 4, 5, 6, 10, 24])
def test_thinning_and_burn_in_pick_the_right_steps(thin):
    model, shards = regression()
    run = lambda **keep: fsgld.sample(  # noqa: E731
        model, shards, None, dynamics=fsgld.langevin(1e-3), batch_size=3, local_steps=6, rounds=20, chains=2, **keep
    )
    every = run(thin=1, burn_in=0).draws
    some = run(thin=thin, burn_in=30)
    steps = [t for t in range(1, 121) if t > 30 and t % thin == 0]
    np.testing.assert_allclose(some.draws, every[:, [t - 1 for t in steps]], rtol=1e-12)
    assert some.draw_rounds.tolist() == [(t - 1) // 6 for t in steps]


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1, 1), (4, 1000, 100, 10, 2), (1, 7, 1009, 50, 854), (1000, 3, 200, 10, 2)]
)
def test_plans_cover_all_rounds_and_divide_the_steps(sizes):
    chains, rounds, local_steps, m, d = sizes
    plan = make_plan(chains, rounds, local_steps, m, d)
    assert local_steps % plan.block == 0
    assert plan.rounds % plan.group == 0
    surplus = -(-rounds // plan.rounds) * plan.rounds - rounds
    assert surplus < max(plan.rounds, rounds)


@pytest.mark.slow
def test_the_jitted_engine_equals_itself_without_jit():
    model, shards = regression()
    run = lambda engine: fsgld.sample(  # noqa: E731
        model, shards, None, dynamics=fsgld.langevin(1e-3), batch_size=2, local_steps=2, rounds=8, chains=1,
        thin=1, burn_in=0, engine=engine,
    )  # fmt: skip
    with jax.disable_jit():
        slow = run("reference")
    np.testing.assert_allclose(run("compiled").draws, slow.draws, rtol=1e-10)


def test_keys_are_used_once():
    """JAX's own checker finds no key that is used twice in a chain (un-vmapped, as it asks)."""
    model, shards = regression()
    with jax.debug_key_reuse(True):
        fsgld.sample(
            model, shards, None, dynamics=fsgld.langevin(1e-3), batch_size=2, local_steps=3, rounds=9, chains=1,
            engine="reference",
        )  # fmt: skip


def test_the_advance_of_two_engines_has_one_signature():
    import inspect

    from fsgld.engines import reference as plain_engine

    assert inspect.signature(compiled.advance) == inspect.signature(plain_engine.advance)
