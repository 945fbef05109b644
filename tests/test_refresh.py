"""Refresh: clients that anchor anew while a run goes on; the same on both engines, unbiased, resumable.

Rows are those of a logistic regression, whose curvature changes with θ: there a refresh is seen in every digit.
"""

import shutil
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from fsgld import randomness
from fsgld.algorithm import Rules, client_update
from fsgld.engines import Chain, Federation, everyone, leave, presence
from fsgld.randomness import Numbers
from fsgld.refresh import Table, own_tables
from fsgld.rows import gather
from fsgld.surrogates import Gaussian
from problems import Z

SIZES, D = (9, 20, 14), 2
F = np.array([0.2, 0.5, 0.3])
ANCHOR = np.array([0.5, -0.2])
H, FRICTION, M, T, ROUNDS, CHAINS, SEED = 0.05, 0.3, 4, 3, 48, 2, 7
SETTINGS = {
    "dynamics": fsgld.sghmc(H, FRICTION), "probs": F, "batch_size": M, "local_steps": T, "rounds": ROUNDS,
    "chains": CHAINS, "thin": 1, "burn_in": 0, "seed": SEED,
}  # fmt: skip
KINDS = {"dense": {}, "diagonal": {"diagonal": True}, "linear": {"order": 1}}
LIKELIHOODS = {"plain": fsgld.plain, "control_variate": fsgld.control_variate.at(jnp.asarray(ANCHOR))}


@cache
def problem():
    """Logistic regression with a N(0, I) prior; made once, so that compiled programs are found again."""
    rng = np.random.default_rng(0)
    shards = []
    for n in SIZES:
        X = rng.normal(size=(n, D)) * [1.0, 1.5]
        shards.append((X, (rng.uniform(size=n) < 1 / (1 + np.exp(-X @ rng.normal(size=D)))) * 1.0))
    model = fsgld.Model(
        log_prior=lambda p: -0.5 * jnp.sum(p**2),
        log_likelihood=lambda p, row: row[1] * (row[0] @ p) - jnp.logaddexp(0.0, row[0] @ p),
        init=jnp.zeros(D),
    )
    return model, shards


@cache
def wrong_surrogates(kind):
    """Anchored surrogates, but too narrow by a fifth: a refresh must mend them."""
    model, shards = problem()
    return [q * 1.2 for q in fsgld.fit(model, shards, fsgld.anchored, anchor=jnp.asarray(ANCHOR), **KINDS[kind])]


def slope(shard, theta, rows=slice(None)):
    X, y = shard[0][rows], shard[1][rows]
    return X.T @ (y - 1 / (1 + np.exp(-X @ theta)))


def expand(shard, theta, kind):
    """Expand a client's log-likelihood at θ: (shift, Λ) with Λ = H_s, its diagonal, or nothing."""
    X, p = shard[0], 1 / (1 + np.exp(-shard[0] @ theta))
    curvature = X.T @ (X * (p * (1 - p))[:, None])
    Lambda = {"dense": curvature, "diagonal": np.diag(np.diag(curvature)), "linear": np.zeros((D, D))}[kind]
    return slope(shard, theta) + Lambda @ theta, Lambda


@cache
def visits():
    """Draw what the library draws, for every round and chain: u in [0, 1), bits of rows (T, m), noise (T, d)."""
    root = randomness.root_key(SEED)

    @jax.jit
    def draw(c, r):
        keys = randomness.round_keys(root, c, r)
        return randomness.bits(keys.client, 1)[0], randomness.numbers(keys, T, M, D, np.dtype(float))

    def visit(c, r):
        u, (bits, noise) = draw(c, r)
        return int(u) / 2**32, np.asarray(bits).astype(object), np.asarray(noise)

    return [[visit(c, r) for c in range(CHAINS)] for r in range(ROUNDS)]


def numpy_chains(shards, surrogates, kind, slot, refresh, present=None):
    """Algorithm 1 with refresh, in plain NumPy, with the random numbers of the library; (chains, steps, d)."""
    present = np.ones((ROUNDS, len(shards)), bool) if present is None else present
    thetas, momenta = np.zeros((CHAINS, D)), np.zeros((CHAINS, D))
    tables = [[(np.array(q.shift), dense(q.precision)) for q in surrogates] for _ in range(CHAINS)]
    anchors = [[ANCHOR] * len(shards) for _ in range(CHAINS)]
    out = [[] for _ in range(CHAINS)]
    for r in range(ROUNDS):
        if refresh != "on_visit" and r > 0 and r % refresh == 0:  # all who are there, at the mean of the chains
            mean = np.mean(thetas, axis=0)
            for c in range(CHAINS):
                for s in np.flatnonzero(present[r]):
                    tables[c][s], anchors[c][s] = expand(shards[s], mean, kind), mean
        for c in range(CHAINS):
            u, bits, noise = visits()[r][c]
            f = np.where(present[r], F, 0) / F[present[r]].sum()
            s = int(np.searchsorted(np.cumsum(f), u, side="right"))
            rows = (bits * SIZES[s] // 2**32).astype(int)
            theta, p, (shift, Lambda), a = thetas[c], momenta[c], tables[c][s], anchors[c][s]
            q_shift, q_Lambda = (sum(part) for part in zip(*tables[c], strict=True))
            for batch, xi in zip(rows, noise, strict=True):
                likelihood = SIZES[s] / M * slope(shards[s], theta, batch)
                if slot == "control_variate":
                    likelihood += slope(shards[s], a) - SIZES[s] / M * slope(shards[s], a, batch)
                estimate = -theta + (likelihood - shift + Lambda @ theta) / f[s] + q_shift - q_Lambda @ theta
                p = (1 - FRICTION) * p + H / 2 * estimate + np.sqrt(FRICTION * H) * xi
                theta = theta + p
                out[c].append(theta)
            if refresh == "on_visit":  # the client that was visited, for this chain only
                tables[c][s], anchors[c][s] = expand(shards[s], theta, kind), theta
            thetas[c], momenta[c] = theta, p
    return np.array(out)


def dense(precision):
    return np.zeros((D, D)) if precision is None else np.diag(precision) if precision.ndim == 1 else np.array(precision)


def run(kind, slot, refresh, **more):
    model, shards = problem()
    given = SETTINGS | {"likelihood": LIKELIHOODS[slot], "refresh": refresh} | more
    return fsgld.sample(model, shards, wrong_surrogates(kind), **given)


# Every pair of refresh, kind and slot is met; all twelve triples would take twice as long
@pytest.mark.parametrize(
    ("refresh", "kind", "slot"),
    [
        ("on_visit", "dense", "control_variate"), ("on_visit", "linear", "control_variate"), (6, "dense", "plain"),
        (6, "diagonal", "control_variate"), pytest.param("on_visit", "diagonal", "plain", marks=pytest.mark.slow),
        pytest.param(6, "linear", "plain", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_compiled_is_numpy_with_refresh(refresh, kind, slot):
    want = numpy_chains(problem()[1], wrong_surrogates(kind), kind, slot, refresh)
    np.testing.assert_allclose(run(kind, slot, refresh).draws, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("refresh", "kind"), [("on_visit", "dense"), (6, "diagonal")])
def test_compiled_is_reference_with_refresh(refresh, kind):
    fast = run(kind, "control_variate", refresh)
    few = run(kind, "control_variate", refresh, engine="reference", rounds=14)  # two refreshes of all clients
    np.testing.assert_array_equal(few.visited, fast.visited[:, :14])
    np.testing.assert_allclose(few.draws, fast.draws[:, : 14 * T], rtol=1e-10, atol=1e-10)


def test_chains_are_those_of_a_run_without_until_the_first_refresh():
    never, six = run("dense", "plain", "never").draws, run("dense", "plain", 6).draws
    np.testing.assert_array_equal(six[:, : 6 * T], never[:, : 6 * T])
    assert np.abs(six[:, 6 * T] - never[:, 6 * T]).min() > 1e-4


def arbitrary_table(kind, likelihood):
    """Let every client anchor at a point of its own, as after many visits."""
    model, shards = problem()
    table, points = gather(shards), np.random.default_rng(1).normal(size=(len(shards), D))
    stack = Gaussian.stack(wrong_surrogates(kind))
    memos = jax.vmap(likelihood.memo)(jnp.asarray(points), jnp.asarray(points))
    federation = Federation(
        table.rows, jnp.asarray(table.starts), jnp.asarray(table.sizes), jnp.asarray(F),
        Table(stack, stack.total(), memos), jnp.ones(()), everyone(F),
    )  # fmt: skip
    rules = Rules(model.flatten(), likelihood, batch_size=1)
    chain = Chain(fsgld.langevin(2.0).init(jnp.zeros(D)), federation.table)
    go = jax.jit(lambda chain, s, point: leave(rules, federation, chain, s, chain.state._replace(theta=point)))
    for s, point in enumerate(points):
        chain = go(chain, jnp.asarray(s), jnp.asarray(point))
    return rules, federation, chain.table, points


@pytest.mark.parametrize(
    ("kind", "slot"),
    [("dense", "plain"), ("dense", "control_variate"), ("diagonal", "plain"), ("linear", "control_variate")],
)
def test_estimates_are_unbiased_for_an_arbitrary_table(kind, slot):
    """Σ_s f_s E[estimate] = ∇log p(θ | x) whatever q_s and anchors; who is away is in it through q_s.

    All clients and all rows (m = 1) are enumerated: with h = 2 and no noise a Langevin step moves θ by the estimate.
    """
    rules, federation, table, points = arbitrary_table(kind, getattr(fsgld, slot))
    shards, theta, dynamics = problem()[1], jnp.array([0.8, -1.3]), fsgld.langevin(2.0)
    for s, point in enumerate(points):  # the table holds what it should
        shift, Lambda = expand(shards[s], point, kind)
        np.testing.assert_allclose(table.surrogates[s].shift, shift, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(dense(table.surrogates[s].precision), Lambda, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(table.total.shift, table.surrogates.shift.sum(0), rtol=1e-12)

    @jax.jit
    def estimate(s, mass, bits):
        client, numbers = federation.client(s, table, mass), Numbers(bits[None, None], jnp.zeros((1, D)))
        return client_update(rules, dynamics, client, dynamics.init(theta), numbers)[0].theta - theta

    for there in ([True, True, True], [True, True, False], [False, True, False]):
        mass = presence(F, np.array([there])).mass[0]
        np.testing.assert_allclose(mass, F[there].sum(), rtol=1e-12)
        mean, want = np.zeros(D), -np.array(theta)
        for s, n in enumerate(SIZES):
            if not there[s]:
                want += np.array(table.surrogates[s].grad_log(theta))
                continue
            rows = np.ceil(np.arange(n) * 2.0**32 / n)  # bits that pick rows 0 … n − 1 in turn
            every_row = [np.array(estimate(jnp.asarray(s), mass, jnp.asarray(b, jnp.uint32))) for b in rows]
            mean += F[s] / F[there].sum() * np.mean(every_row, axis=0)
            want += slope(shards[s], np.array(theta))
        np.testing.assert_allclose(mean, want, rtol=1e-10, atol=1e-10)


def grid_moments():
    """Give the posterior's mean and sds by sums over a grid that is wide and fine enough to be exact to 1e-6."""
    _, shards = problem()
    X, y = (np.concatenate(parts) for parts in zip(*shards, strict=True))
    axis = np.linspace(-4, 4, 201)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, D)
    u = theta @ X.T
    log_p = u @ y - np.logaddexp(0, u).sum(1) - 0.5 * (theta**2).sum(1)
    w = np.exp(log_p - log_p.max())
    w /= w.sum()
    mean = w @ theta
    return mean, np.sqrt(w @ (theta - mean) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("refresh", ["on_visit", 6])
def test_the_posterior_is_right_with_refresh(refresh):
    """Means and variances against sums over a grid, within Z Monte Carlo errors of 100 independent chains.

    A chain's mean is one observation, so errors need no effective sample size. Eight z-tests (t with 99 degrees of
    freedom) at Z = 4, false-alarm rate 1e-3 together. Steps are small: variances are 1 % too large, half an error.
    """
    model, shards = problem()
    mean, sd = grid_moments()
    result = fsgld.sample(
        model, shards, wrong_surrogates("dense"), dynamics=fsgld.langevin(2e-3), probs=F, batch_size=16,
        local_steps=10, rounds=600, chains=100, refresh=refresh, seed=3,
    )  # fmt: skip
    z = (result.draws - mean) / sd
    for moment, want in ((z, 0.0), (z**2, 1.0)):
        by_chain = moment.mean(1)
        error = by_chain.std(0, ddof=1) / np.sqrt(len(by_chain))
        assert (error < 0.05).all()
        assert (np.abs(by_chain.mean(0) - want) < Z * error).all()


@pytest.mark.parametrize(("refresh", "kind", "slot"), [("on_visit", "dense", "control_variate"), (6, "dense", "plain")])
def test_a_run_with_refresh_that_was_killed_and_resumed_equals_the_uncut(tmp_path, refresh, kind, slot):
    """Cut the last calls away, at rounds where all clients anchor anew and at others, and run again."""
    whole = run(kind, slot, refresh, checkpoint=tmp_path / "whole")
    np.testing.assert_array_equal(whole.draws, run(kind, slot, refresh).draws)
    calls = sorted((tmp_path / "whole" / "calls").glob("*.npz"))
    assert len(calls) == 24  # calls of two rounds: every third begins with a refresh
    for left in (1, 3, 4, 14, 15, 23):
        folder = tmp_path / f"cut {left}"
        shutil.copytree(tmp_path / "whole", folder)
        for call in calls[left:]:
            (folder / "calls" / call.name).unlink()
        np.testing.assert_array_equal(run(kind, slot, refresh, checkpoint=folder).draws, whole.draws)


def test_who_is_away_does_not_anchor_anew_and_resuming_knows_it(tmp_path):
    """Client 0 is away from round 10 to 29: at rounds 12, 18 and 24 it must keep the surrogate of round 6."""
    present = np.ones((ROUNDS, 3), bool)
    present[10:30, 0] = False
    whole = run("dense", "plain", 6, present=present, checkpoint=tmp_path / "whole")
    want = numpy_chains(problem()[1], wrong_surrogates("dense"), "dense", "plain", 6, present)
    np.testing.assert_allclose(whole.draws, want, rtol=1e-10, atol=1e-10)
    calls = sorted((tmp_path / "whole" / "calls").glob("*.npz"))
    for call in calls[11:]:
        call.unlink()
    again = run("dense", "plain", 6, present=present, checkpoint=tmp_path / "whole")
    np.testing.assert_array_equal(again.draws, whole.draws)


@pytest.mark.parametrize(
    ("refresh", "words"),
    [
        ("sometimes", 'refresh must be "never", "on_visit" or a number of rounds; got \'sometimes\''),
        (0, "refresh must be a whole number of at least 1; got 0"),
        (-3, "refresh must be a whole number of at least 1; got -3"),
        (2.0, "refresh must be a whole number of at least 1; got 2.0"),
        (True, "refresh must be a whole number of at least 1; got True"),
        (None, "refresh must be a whole number of at least 1; got None"),
    ],
)
def test_a_refresh_that_is_none_is_refused(refresh, words):
    with pytest.raises(fsgld.InputError, match=words):
        run("dense", "plain", refresh)


@pytest.mark.parametrize("refresh", ["on_visit", 6])
def test_refresh_without_surrogates_is_refused(refresh):
    model, shards = problem()
    with pytest.raises(fsgld.InputError, match="refresh renews surrogates, but surrogates is None; give surrogates"):
        fsgld.sample(model, shards, None, dynamics=fsgld.langevin(1e-3), refresh=refresh)


def test_tables_that_are_too_large_to_carry_are_refused():
    stack = Gaussian(jnp.ones((2000, D)), jnp.ones((2000, D, D)))
    table = Table(stack, stack.total(), ())  # 12,006 numbers
    with pytest.raises(fsgld.InputError, match=r"would carry 6e\+08 numbers with 50000 chains; use fewer chains, or"):
        own_tables("on_visit", table, 50_000)
    assert own_tables(6, table, 50_000) is None  # nothing is carried
    assert own_tables("on_visit", table, 2).total.shift.shape == (2, D)


def test_a_numpy_number_is_a_number_of_rounds(tmp_path):
    result = run("dense", "plain", np.int64(6), checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(result.draws, run("dense", "plain", 6).draws)
    result.save(tmp_path / "result.npz")
    assert fsgld.Result.load(tmp_path / "result.npz").settings["refresh"] == 6
