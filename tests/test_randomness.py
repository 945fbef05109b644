"""Random numbers: bit-identical to jax.random where they claim to be, and of the right law."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fsgld import randomness
from fsgld.engines.compiled import _once

ALARM = 1e-5  # false-alarm rate of each statistical test here; seeds are fixed


def test_bits_are_those_of_jax():
    key = jax.random.key(3)
    np.testing.assert_array_equal(randomness.bits(key, 1000), jax.random.bits(key, (1000,), "uint32"))


def test_pairs_hold_both_words_of_threefry():
    """Bits that are no number (NaN, signalling or not) must survive in a complex number; 1 word in 256 is one."""
    key, n = jax.random.key(3), 100_000
    z = np.asarray(jax.jit(lambda: randomness.bit_pairs(key, n))())
    words = z.view(np.uint32).reshape(n, 2)
    assert np.isnan(z).sum() > n / 256
    np.testing.assert_array_equal(words[:, 0] ^ words[:, 1], jax.random.bits(key, (n,), "uint32"))
    assert len(np.unique(words)) > 1.99 * n  # the two words differ from each other and from all others


def test_words_are_those_of_the_authors():
    """Known answers of Threefry-2x32 with 20 rounds, from Random123."""
    key = jax.random.wrap_key_data(jnp.array([0x13198A2E, 0x03707344], jnp.uint32))
    x, y = randomness._threefry(key, 1, 0x85A308D3, 0x243F6A88)
    assert (int(x[0]), int(y[0])) == (0xC4923A9C, 0x483DF7A0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normals_are_those_of_box_and_muller(dtype):
    key, n = jax.random.key(4), 1000
    z = np.asarray(randomness.normal_pairs(key, n, np.dtype(dtype)))
    x, y = (np.asarray(word, np.uint64) for word in randomness._threefry(key, n, 0))
    if dtype == "float64":
        second = (np.asarray(word, np.uint64) for word in randomness._threefry(key, n, 0, 1))
        whole = lambda high, low: ((high << np.uint64(32)) | low) >> np.uint64(11)  # noqa: E731
        u, v = (whole(x, y) + 0.5) / 2**53, (whole(*second) + 0.5) / 2**53
    else:
        u, v = (x // 2 + 0.5) / 2**31, y / 2**32
    assert z.real.dtype == dtype
    np.testing.assert_allclose(z, np.sqrt(-2 * np.log(u)) * np.exp(2j * np.pi * v), atol=40 * np.finfo(dtype).eps)


def test_cosine_and_sine_of_all_kinds_of_turns():
    corners = np.arange(0, 2**32, 2**28, dtype=np.int64)[:, None] + np.arange(-3, 4)
    random = np.random.default_rng(0).integers(0, 2**32, 100_000)
    turns = np.concatenate([corners.ravel() % 2**32, random]).astype(np.uint32)
    got = np.stack(randomness.cos_sin(jnp.asarray(turns)))
    angle = turns.astype(float) * (2 * np.pi / 2**32)
    np.testing.assert_allclose(got, [np.cos(angle), np.sin(angle)], atol=1.2e-7)


def test_the_largest_and_smallest_radius_are_finite():
    """At the ends of u the radius is 6.66 and 0."""
    words = lambda x, y: lambda *_: (jnp.full(1, x, jnp.uint32), jnp.full(1, y, jnp.uint32))  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        for x, size in ((0, 6.66), (2**32 - 1, 0.0)):
            patch.setattr(randomness, "_threefry", words(x, 12345))
            z = randomness.normal_pairs(jax.random.key(0), 1, np.dtype("float32"))
            np.testing.assert_allclose(abs(z[0]), size, atol=0.01)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [int, jnp.asarray])
@pytest.mark.parametrize(("steps", "first"), [(4, 8), (1, 11), (5, 0), (7, 5)])
def test_any_block_of_steps_can_be_drawn_alone(steps, first, kind, dtype):
    keys = randomness.round_keys(randomness.root_key(0), 1, 2)
    whole = randomness.numbers(keys, 12, 13, 5, np.dtype(dtype))
    block = randomness.numbers(keys, steps, 13, 5, np.dtype(dtype), first=kind(first))
    np.testing.assert_array_equal(block.row_bits, whole.row_bits[first : first + steps])
    np.testing.assert_array_equal(block.xi, whole.xi[first : first + steps])


def test_many_chains_draw_behind_a_condition_too():
    """A condition that differs by chain would be no condition any more, and numbers would be drawn twice."""

    def draw(root, first_round):
        each = lambda c: randomness.numbers(  # noqa: E731
            randomness.round_keys(root, c, first_round), 4, 3, 2, np.dtype("float32"), 0, partial(_once, first_round)
        )
        return jax.vmap(each)(jnp.arange(3))

    program = str(jax.make_jaxpr(draw)(randomness.root_key(0), 5))
    assert program.count("cond[") == 2  # rows and noise


def test_no_number_is_used_twice():
    keys = randomness.round_keys(randomness.root_key(0), 1, 2)
    drawn = randomness.numbers(keys, 100, 30, 7, np.dtype(float))
    assert len(np.unique(drawn.row_bits)) >= 2999  # two of 3000 words are equal once in a thousand times
    assert len(np.unique(drawn.xi)) == 700


def test_keys_differ_by_seed_chain_round_and_use():
    seen = {
        tuple(np.asarray(jax.random.key_data(key)).tolist())
        for seed in range(3)
        for chain in range(4)
        for round in range(5)
        for key in randomness.round_keys(randomness.root_key(seed), chain, round)
    }
    assert len(seen) == 3 * 4 * 5 * 3


def test_rows_are_uniform():
    rows = randomness.pick_rows(randomness.bits(jax.random.key(5), 200_000), 37)
    counts = np.bincount(rows, minlength=37)
    assert len(counts) == 37
    assert stats.chisquare(counts).pvalue > ALARM


def test_row_numbers_are_bits_times_size_over_two_to_the_32():
    bits = jnp.array([0, 1, 2**31, 2**32 - 1], jnp.uint32)
    for size in (1, 7, 581_012, 2**31 - 1):
        want = [int(b) * size // 2**32 for b in bits]
        assert randomness.pick_rows(bits, size).tolist() == want


@pytest.mark.parametrize("clients", [1, 2, 10, 10_000])
def test_clients_follow_their_probabilities(clients):
    f = np.random.default_rng(clients).dirichlet(np.ones(clients) * 5)
    edges = jnp.asarray(randomness.thresholds(f))
    pick = jax.jit(jax.vmap(lambda key: randomness.pick_client(key, edges)))
    picked = np.asarray(pick(jax.random.split(jax.random.key(1), 100_000)))
    counts = np.bincount(picked, minlength=clients)
    assert len(counts) == clients
    if clients > 1:
        assert stats.chisquare(counts, f * len(picked)).pvalue > ALARM


def test_edges_keep_probabilities_to_two_to_the_minus_32():
    f = np.array([1e-6, 0.5, 1e-4, 1 - 0.5 - 1e-6 - 1e-4])
    edges = np.concatenate([[0], randomness.thresholds(f).astype(float), [2.0**32]])
    np.testing.assert_allclose(np.diff(edges) / 2**32, f, atol=2**-32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normals_are_normal(dtype):
    """The law of each part, of the radius, of the angle and of the product; each fails by chance at a rate of 1e-5."""
    z = np.asarray(randomness.normal_pairs(jax.random.key(8), 200_000, np.dtype(dtype))).astype(complex)
    assert np.isfinite(z).all()
    for part in (z.real, z.imag, (z.real + z.imag) / np.sqrt(2)):
        assert stats.kstest(part, "norm").pvalue > ALARM
    assert stats.kstest(np.abs(z) ** 2, "chi2", (2,)).pvalue > ALARM
    assert stats.kstest(np.angle(z), "uniform", (-np.pi, 2 * np.pi)).pvalue > ALARM
    assert stats.pearsonr(z.real**2, z.imag**2).pvalue > ALARM
    assert stats.pearsonr(z.real[1:], z.imag[:-1]).pvalue > ALARM
