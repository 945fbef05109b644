"""Clients that come and go: who is away is in the posterior through its surrogate, exactly, and the result says so.

On Gaussian data a step at client s is an affine map of θ plus noise, and control variates leave no mini-batch noise.
Hence the mean and the second moments of θ after any number of rounds have a closed form, for any surrogates; many
short chains are compared with it. Every comparison is a z-test at Z = 4, false-alarm rate 6e-5; there are 23 of them,
so a right program with new seeds would fail this file once in 700 runs. Seeds are fixed.
"""

import shutil
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from fsgld import randomness
from fsgld.checks import check_present
from fsgld.engines import presence
from fsgld.surrogates import Gaussian
from problems import Z, assert_mean

SIZES, D, H, T, ROUNDS = (12, 30, 18), 2, 0.01, 2, 36
F = np.array([0.2, 0.5, 0.3])
THIRDS = np.repeat([0, 1, 2], ROUNDS // 3)
WRONG = Gaussian(jnp.array([-40.0, 25.0]), jnp.array([[45.0, 12.0], [12.0, 20.0]]))


@cache
def problem():
    """Rows around centres that disagree; model N(x | θ, I), prior N(0, I). Made once, as are compiled programs."""
    rng = np.random.default_rng(0)
    shards = {name: rng.normal(rng.uniform(-2, 2, D), 1, (n, D)) for name, n in zip("abc", SIZES, strict=True)}
    model = fsgld.Model(
        log_prior=lambda p: -0.5 * jnp.sum(p**2),
        log_likelihood=lambda p, x: -0.5 * jnp.sum((x - p) ** 2),
        init=jnp.ones(D),
    )
    return model, shards


def exact():
    return [Gaussian(jnp.asarray(x.sum(0)), len(x) * jnp.eye(D)) for x in problem()[1].values()]


def away(client, rounds):
    """Say that a client is away in these rounds (an index array), and all others always there."""
    there = np.ones((ROUNDS, 3), bool)
    there[rounds, client] = False
    return there


def run(surrogates, present=None, **more):
    """Langevin steps: `sghmc` with friction 1, which needs no pre-flight."""
    given = {
        "dynamics": fsgld.sghmc(H, 1.0), "likelihood": fsgld.control_variate, "probs": F, "batch_size": 1,
        "local_steps": T, "rounds": ROUNDS, "chains": 2, "thin": 1, "burn_in": 0, "seed": 5,
    }  # fmt: skip
    return fsgld.sample(*problem(), surrogates, present=present, **given | more)


def run_while_away(surrogates, present, **more):
    result = run(surrogates, present, **more)
    assert "was away in" in str(result.summary())
    return result


def affine(surrogates, there):
    """Give (f_s, A_s, b_s) of every client that is there: a step takes θ to A_s θ + b_s + √h ξ."""
    naturals = [(np.array(q.shift), np.array(q.precision)) for q in surrogates]
    shift, Lambda = (sum(part) for part in zip(*naturals, strict=True))
    f, maps = np.where(there, F, 0) / F[there].sum(), []
    for s, x in enumerate(problem()[1].values()):
        if there[s]:
            drift = -np.eye(D) - Lambda - (len(x) * np.eye(D) - naturals[s][1]) / f[s]
            pull = shift + (x.sum(0) - naturals[s][0]) / f[s]
            maps.append((f[s], np.eye(D) + H / 2 * drift, H / 2 * pull))
    return maps


def moments(surrogates, present):
    """Give E θ and E θθᵀ after every round: a visit is T affine maps, and clients are mixed by their f."""
    mean, second, out = np.ones(D), np.ones((D, D)), []
    for there in present:
        ends = []
        for f, A, b in affine(surrogates, there):
            m, S = mean, second
            for _ in range(T):
                m, S = A @ m + b, A @ S @ A.T + np.outer(A @ m, b) + np.outer(b, A @ m) + np.outer(b, b) + H * np.eye(D)
            ends.append((f, m, S))
        mean, second = (sum(f * part for f, *parts in ends for part in [parts[i]]) for i in range(2))
        out.append((mean, second))
    return out


def target(surrogates, there):
    """Give mean and covariance of prior × Π_there p(x_s | θ) × Π_away q_s(θ)."""
    used = [given if not here else own for given, own, here in zip(surrogates, exact(), there, strict=True)]
    P = np.eye(D) + sum(np.array(q.precision) for q in used)
    return np.linalg.solve(P, sum(np.array(q.shift) for q in used)), np.linalg.inv(P)


def assert_moments(draws, mean, second):
    """Compare E θ and E θθᵀ of independent draws (n, d) with what they should be: five z-tests."""
    assert_mean(draws, mean)
    i, j = np.triu_indices(D)
    assert_mean(draws[:, i] * draws[:, j], second[i, j])


def test_the_law_follows_who_is_there():
    """All surrogates are wrong, a client is away in the middle third: moments at the end of each third."""
    surrogates = [WRONG * 0.3, WRONG * 0.7, WRONG]
    present = away(0, THIRDS == 1)
    draws = run_while_away(surrogates, present, chains=4000, thin=T * ROUNDS // 3).draws
    law = moments(surrogates, present)
    for third in range(3):
        assert_moments(draws[:, third], *law[12 * third + 11])
    before, between, after = (law[r][0] for r in (11, 23, 35))
    sd = np.sqrt(np.diag(law[23][1] - np.outer(between, between)))
    assert np.abs((between - before) / sd).max() > 1  # what the wrong surrogate changes is not small
    np.testing.assert_allclose(after, before, atol=0.02)


def test_a_client_that_leaves_for_good_is_replaced_by_its_surrogate():
    """Others are exact: then the chain is AR(1) around prior × Π_there p × q_away, with (I − hP/4)⁻¹ from its steps."""
    q = exact()
    surrogates = [q[0], WRONG, q[2]]
    there = np.array([True, False, True])
    draws = run_while_away(surrogates, away(1, np.arange(ROUNDS) >= 6), chains=4000, thin=T * ROUNDS // 3).draws
    mean, covariance = target(surrogates, there)
    covariance = np.linalg.solve(np.eye(D) - H / 4 * np.linalg.inv(covariance), covariance)
    assert_moments(draws[:, -1], mean, covariance + np.outer(mean, mean))
    truth = target(surrogates, np.ones(3, bool))[0]
    assert np.abs(mean - truth).max() > 5 * np.sqrt(covariance.max())


def test_small_steps_lead_to_the_target_for_any_surrogates():
    """The fixed point of the closed form above tends to prior × Π_there p × Π_away q as h → 0 (no draws needed)."""
    surrogates, there = [WRONG * 0.3, WRONG * 0.7, WRONG], np.array([True, True, False])
    mean, covariance = target(surrogates, there)
    errors = []
    for scale in (1e-3, 1e-4):
        maps = [(f, np.eye(D) + scale * (A - np.eye(D)), scale * b) for f, A, b in affine(surrogates, there)]
        A, b = sum(f * A for f, A, _ in maps), sum(f * b for f, _, b in maps)
        m = np.linalg.solve(np.eye(D) - A, b)
        np.testing.assert_allclose(m, mean, rtol=1e-8)
        mixed = sum(f * np.kron(A, A) for f, A, _ in maps)
        known = sum(f * (np.outer(A @ m, b) + np.outer(b, A @ m) + np.outer(b, b)) for f, A, b in maps)
        S = np.linalg.solve(np.eye(D * D) - mixed, (known + scale * H * np.eye(D)).ravel()).reshape(D, D)
        errors.append(np.abs(S - np.outer(m, m) - covariance).max() / covariance.max())
    assert errors[0] < 0.01
    assert errors[1] < errors[0] / 9


def test_exact_surrogates_do_not_feel_who_is_away():
    """Then all clients pull alike, so that the chain itself, not only its law, is the same."""
    everyone = run(exact()).draws
    for client in range(3):
        draws = run_while_away(exact(), away(client, THIRDS == 1)).draws
        np.testing.assert_allclose(draws, everyone, rtol=1e-9, atol=1e-9)


def numpy_chain(surrogates, present, chain):
    """Algorithm 1 with clients that come and go, in plain NumPy, with the library's random numbers."""
    root, shards = randomness.root_key(5), list(problem()[1].values())

    @jax.jit
    def draw(r):
        keys = randomness.round_keys(root, chain, r)
        return randomness.bits(keys.client, 1)[0], randomness.numbers(keys, T, 1, D, np.dtype(float))

    naturals = [(np.array(q.shift), np.array(q.precision)) for q in surrogates]
    shift, Lambda = (sum(part) for part in zip(*naturals, strict=True))
    theta, thetas, visited = np.ones(D), [], []
    for r, there in enumerate(present):
        u, (bits, noise) = draw(r)
        f = np.where(there, F, 0) / F[there].sum()
        s = int(np.searchsorted(np.cumsum(f), int(u) / 2**32, side="right"))
        visited.append(s)
        for b, xi in zip(np.asarray(bits).astype(object)[:, 0], np.asarray(noise), strict=True):
            x, anchor = shards[s], np.linalg.solve(np.eye(D) + Lambda, shift)  # the mean of prior × q
            row = x[int(b * len(x) // 2**32)]
            likelihood = (x - anchor).sum(0) + len(x) * ((row - theta) - (row - anchor))
            g = shift - Lambda @ theta - (naturals[s][0] - naturals[s][1] @ theta) / f[s]
            theta = theta + H / 2 * (-theta + likelihood / f[s] + g) + np.sqrt(H) * xi
            thetas.append(theta)
    return visited, np.array(thetas)


def test_compiled_is_reference_is_numpy_with_clients_away():
    surrogates, present = [WRONG * 0.3, WRONG * 0.7, WRONG], away(2, THIRDS == 1)
    fast = run_while_away(surrogates, present)
    plain = run_while_away(surrogates, present, engine="reference", rounds=18)
    np.testing.assert_array_equal(fast.visited[:, :18], plain.visited)
    np.testing.assert_allclose(fast.draws[:, : 18 * T], plain.draws, rtol=1e-10, atol=1e-10)
    for chain in range(2):
        visited, draws = numpy_chain(surrogates, present, chain)
        assert fast.visited[chain].tolist() == visited
        np.testing.assert_allclose(fast.draws[chain], draws, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("client", range(3))
def test_who_is_away_is_never_visited_and_the_others_by_their_shares(client):
    """12 rounds of 4000 chains without the client: shares of the others are f renormalised, within Z errors."""
    away_in = THIRDS == 1
    visited = run_while_away(exact(), away(client, away_in), chains=4000, thin=T * ROUNDS // 3).visited
    here = visited[:, away_in]
    assert (here != client).all()
    others = [s for s in range(3) if s != client]
    share, want = (here == others[0]).mean(), F[others[0]] / F[others].sum()
    assert abs(share - want) < Z * np.sqrt(want * (1 - want) / here.size)
    assert set(np.unique(visited[:, ~away_in])) == {0, 1, 2}


SETS = [[s for s in range(4) if (k >> s) & 1] for k in range(1, 16)]


@pytest.mark.parametrize("bits", [0, 1, 2**31, 2**32 - 2, 2**32 - 1])
def test_the_edges_of_32_bits_lead_to_nobody_who_is_away(monkeypatch, bits):
    """Cumulative probabilities of 1 cannot be written in 32 bits; the largest number must still find someone there."""
    f = np.array([0.1, 0.2, 1e-12, 0.7 - 1e-12])
    there = np.array([[s in one for s in range(4)] for one in SETS])
    monkeypatch.setattr(randomness, "bits", lambda key, n, first=0: jnp.full(n, bits, jnp.uint32))
    who = presence(f, there)
    for k, one in enumerate(SETS):
        s, mass = who.reassign(jax.random.key(0), k)
        np.testing.assert_allclose(mass, f[one].sum(), rtol=1e-12)
        assert int(s) in one
        np.testing.assert_array_equal(who.there(k), there[k])


def test_the_result_says_who_was_away_and_what_rests_on_surrogates():
    """Draws of the last two thirds are kept; clients b and c are away in the middle third."""
    present = away(1, THIRDS == 1) & away(2, THIRDS == 1)
    result = run_while_away(exact(), present, burn_in=ROUNDS // 3 * T)
    assert result.settings["away"] == pytest.approx([0, 1 / 3, 1 / 3])
    assert result.settings["away_in_draws"] == pytest.approx([0, 1 / 2, 1 / 2])
    shares = np.array(SIZES) / np.sum(SIZES)  # curvatures are N_s I
    np.testing.assert_allclose(result.settings["shares"], shares, rtol=1e-10)
    lines = result.absences()
    assert result.problems() == []
    assert lines == [
        f"{name} was away in 33 % of the rounds: in 50 % of the draws its data ({100 * share:.0f} % of the information)"
        " are in the posterior through its surrogate only"
        for name, share in (("b", shares[1]), ("c", shares[2]))
    ]
    assert set(lines) <= set(result.summary().notes)


def test_who_is_always_away_is_said_to_be_so_once():
    """More rounds would not bring a visit, so none are asked for; of who was never visited by chance they are."""
    settings = {"away": [0.0, 0.5, 1.0], "away_in_draws": [0.0, 0.5, 1.0], "shares": [0.2, 0.5, 0.3]}
    result = fsgld.Result({}, np.arange(0), np.zeros((2, 9), int), ("a", "b", "c"), (), settings, {})
    (never,) = result.problems()
    assert never.startswith("never visited: b;")
    _, line = result.absences()
    assert line.startswith(
        "c was away in 100 % of the rounds: in 100 % of the draws its data (30 % of the information)"
    )


def test_a_function_of_the_round_and_a_longer_table_do_as_well():
    present = away(0, THIRDS == 1)
    whole = run_while_away(exact(), present).visited
    np.testing.assert_array_equal(run_while_away(exact(), lambda r: [r // 12 != 1, True, True]).visited, whole)
    longer = np.concatenate([present, np.zeros((5, 3), bool)]).astype(int).tolist()
    np.testing.assert_array_equal(run_while_away(exact(), longer).visited, whole)


def test_a_resumed_run_knows_who_was_away(tmp_path):
    surrogates, present = [WRONG * 0.3, WRONG * 0.7, WRONG], away(0, THIRDS == 1)
    whole = run_while_away(surrogates, present, checkpoint=tmp_path / "run")
    calls = sorted((tmp_path / "run" / "calls").glob("*.npz"))
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    for call in calls[len(calls) // 2 :]:
        call.unlink()
    again = run_while_away(surrogates, present, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(again.draws, whole.draws)
    assert again.settings == whole.settings
    with pytest.raises(fsgld.CheckpointError, match="belongs to another run"):
        run(surrogates, away(1, THIRDS == 1), checkpoint=tmp_path / "other")


def fails(r):
    if r == 7:
        raise KeyError("no such round")
    return [True, True, True]


@pytest.mark.parametrize(
    ("present", "words"),
    [
        (away(slice(None), [3]), "nobody is present in round 3; a chain needs a client to go to"),
        (np.ones((ROUNDS, 2), bool), r"for each of 3 clients in each of 36 rounds; got bool of shape \(36, 2\)"),
        (np.ones((ROUNDS - 1, 3), bool), r"in each of 36 rounds; got bool of shape \(35, 3\)"),
        (np.ones(3, bool), r"got bool of shape \(3,\)"),
        (np.ones((ROUNDS, 3)), r"got float64 of shape \(36, 3\)"),
        (np.full((ROUNDS, 3), "yes"), r"got <U3 of shape \(36, 3\)"),
        (lambda r: True, r"got bool of shape \(36,\)"),
        (lambda r: None, r"got object of shape \(36,\)"),
        (fails, "present fails: KeyError: 'no such round'; give a function of the round number"),
        (lambda r: [True] * (3 - r % 2), "present fails: ValueError: .*; give a function of the round number"),
    ],
)  # fmt: skip
def test_a_present_that_cannot_be_used_is_refused_in_words(present, words):
    with pytest.raises(fsgld.InputError, match=words):
        run(exact(), present)


def test_without_surrogates_who_is_away_is_named():
    words = "c is away at times, and without surrogates its data would be missing from the posterior; give surrogates"
    with pytest.raises(fsgld.InputError, match=words):
        run(None, away(2, THIRDS == 1), likelihood=fsgld.plain)


def test_without_surrogates_all_may_be_present():
    there = check_present(np.ones((ROUNDS, 3), bool), ROUNDS, "abc", Gaussian(jnp.zeros((3, D))))
    assert there.all()
    assert there.shape == (ROUNDS, 3)
