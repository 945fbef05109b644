"""Random numbers: bit-identical to jax.random where they claim to be, and of the right law."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fsgld import randomness

ALARM = 1e-5  # false-alarm rate of each statistical test here; seeds are fixed


def test_bits_are_those_of_jax():
    key = jax.random.key(3)
    np.testing.assert_array_equal(randomness.bits(key, 1000), jax.random.bits(key, (1000,), "uint32"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normals_are_those_of_jax(dtype):
    key = jax.random.key(4)
    ours, theirs = randomness.normal(key, 1000, np.dtype(dtype)), jax.random.normal(key, (1000,), dtype)
    assert ours.dtype == dtype
    np.testing.assert_allclose(ours, theirs, rtol=4 * np.finfo(dtype).eps)


def test_any_block_of_steps_can_be_drawn_alone():
    keys = randomness.round_keys(randomness.root_key(0), 1, 2)
    whole = randomness.numbers(keys, 12, 3, 5, np.dtype(float))
    block = randomness.numbers(keys, 4, 3, 5, np.dtype(float), first=8)
    np.testing.assert_array_equal(block.row_bits, whole.row_bits[8:])
    np.testing.assert_array_equal(block.xi, whole.xi[8:])


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


def test_normals_are_normal():
    x = np.asarray(randomness.normal(jax.random.key(8), 200_000, np.dtype("float32")), float)
    assert stats.kstest(x, "norm").pvalue > ALARM
    assert np.isfinite(x).all()
