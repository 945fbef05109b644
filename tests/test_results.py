"""Results: draws in the user's structure, divergence in words, ArviZ, files without pickle."""

import json
import pickle
import zipfile
from collections import OrderedDict
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from problems import blobs, logistic


@pytest.fixture(scope="module")
def result():
    model, shards = logistic()
    hospitals = dict(zip(("north", "south", "west"), shards, strict=True))
    return fsgld.sample(model, hospitals, local_steps=5, rounds=300, chains=3, batch_size=8, thin=10, seed=2)


@pytest.fixture(scope="module")
def diverged():
    """One of many chains is thrown out by a step size beyond stability: |1 − hA/2| > 1."""
    model, shards = blobs(clients=3, rows=50)
    with pytest.warns(UserWarning, match="diverged in round"):
        return fsgld.sample(
            model, shards, None, dynamics=fsgld.langevin(1.0), batch_size=5, local_steps=10, rounds=100, chains=2,
            thin=1, burn_in=0,
        )  # fmt: skip


def test_draws_have_the_structure_of_the_parameters(result):
    assert result.draws["w"].shape == (3, 135, 3)
    assert result.draws["b"].shape == (3, 135)
    assert result.visited.shape == (3, 300)
    assert result.clients == ("north", "south", "west")
    assert all(not status.diverged and status.draws == 135 for status in result.status)


def test_summary_agrees_with_arviz(result):
    arviz = pytest.importorskip("arviz")
    summary = result.summary()
    table = arviz.summary(result.to_arviz(), round_to="none")
    assert list(summary.names) == ["b", "w[0]", "w[1]", "w[2]"]
    for ours, theirs in [("mean", "mean"), ("sd", "sd"), ("mcse", "mcse_mean"),
                         ("ess_bulk", "ess_bulk"), ("ess_tail", "ess_tail")]:  # fmt: skip
        np.testing.assert_allclose(summary.columns[ours], table.loc[list(summary.names), theirs], rtol=1e-6)
    rhat = arviz.rhat(result.to_arviz())  # arviz.summary leaves the folded half of R-hat out
    np.testing.assert_allclose(summary.columns["r_hat"], [rhat["b"], *rhat["w"]], rtol=1e-8)
    text = str(summary)
    assert "r_hat" in text
    assert "w[2]" in text
    assert "few effective draws" in text  # 405 draws in all cannot give 400 effective ones here


def test_arviz_gets_client_and_round(result):
    data = result.to_arviz()
    assert data.posterior.sizes == {"chain": 3, "draw": 135, "w_dim_0": 3}
    stats = data.sample_stats
    np.testing.assert_array_equal(stats["round"].values[0], result.draw_rounds)
    np.testing.assert_array_equal(stats["client"].values, result.visited[:, result.draw_rounds])
    assert json.loads(data.posterior.attrs["settings"])["seed"] == 2


def test_saved_results_come_back_and_hold_no_pickle(result, tmp_path):
    file = tmp_path / "result.npz"
    result.save(file)
    back = fsgld.Result.load(file)
    jax.tree.map(np.testing.assert_array_equal, back.draws, result.draws)
    np.testing.assert_array_equal(back.visited, result.visited)
    assert (back.clients, back.status, back.settings) == (result.clients, result.status, result.settings)
    assert str(back.summary()) == str(result.summary())
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            with pytest.raises(pickle.UnpicklingError):
                pickle.loads(archive.read(name))


class Pair(NamedTuple):
    one: np.ndarray
    two: np.ndarray


@pytest.mark.parametrize(
    "draws",
    [
        np.ones((1, 2, 3)),
        {"b": np.ones((1, 2)), "a": [np.zeros((1, 2, 1)), (np.ones((1, 2)), np.zeros((1, 2)))]},
        [Pair(np.zeros((1, 2)), np.ones((1, 2)))],
        OrderedDict(b=np.zeros((1, 2)), a=np.ones((1, 2))),
        {number: np.full((1, 2), number) for number in range(12)},
        {"b": np.ones((1, 2)), "a": None},
    ],
)
def test_any_structure_of_parameters_can_be_saved(result, tmp_path, draws):
    one = fsgld.Result(draws, np.arange(2), result.visited[:1], result.clients, result.status[:1], {}, {})
    one.save(tmp_path / "r.npz")
    back = fsgld.Result.load(tmp_path / "r.npz").draws
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(draws), strict=True):
        assert isinstance(draws, OrderedDict) or np.array_equal(a, b)
    if isinstance(draws, OrderedDict):
        np.testing.assert_array_equal(back["a"], draws["a"])
    elif not isinstance(draws, list):
        assert jax.tree.structure(back) == jax.tree.structure(draws)


def test_divergence_is_a_result_in_words(diverged):
    assert all(status.diverged for status in diverged.status)
    for status in diverged.status:
        draws = diverged.draws[status.chain]
        assert np.isfinite(draws[: status.draws]).all()
        assert np.isnan(draws[status.draws :]).all()
        assert status.draws > 0
        assert status.client == diverged.clients[diverged.visited[status.chain, status.round]]
        # the first draw that is not finite was made in the round that the status names
        assert diverged.draw_rounds[status.draws] == status.round
    text = str(diverged.summary())
    assert "no chain ran to the end" in text
    assert f"chain 0 diverged in round {diverged.status[0].round} at {diverged.status[0].client}" in text


def test_summary_leaves_out_chains_that_diverged():
    """Starts differ: the chain that starts far out overflows, the other does not."""
    model = fsgld.Model(
        lambda p: -0.5 * jnp.sum(p**2),
        lambda p, x: -0.25 * jnp.sum((x - p) ** 4) / 100,
        lambda key: jnp.where(jax.random.bits(key, (), "uint32") % 2 == 0, 0.0, 40.0) * jnp.ones(1),
    )
    shards = [np.zeros((10, 1)), np.ones((10, 1))]
    with pytest.warns(UserWarning, match="diverged in round"):
        result = fsgld.sample(
            model, shards, None, dynamics=fsgld.langevin(0.05), batch_size=5, local_steps=5, rounds=400, chains=8
        )
    gone = [status.diverged for status in result.status]
    assert 0 < sum(gone) < 8
    summary = result.summary()
    assert np.isfinite(summary.columns["mean"]).all()
    alive = result.draws[[not g for g in gone]]
    np.testing.assert_allclose(summary.columns["mean"], alive.mean((0, 1)), rtol=1e-12)
    assert sum("diverged" in note for note in summary.notes) == sum(gone)
    assert len(result.predict(lambda p, x: p, np.zeros(3))) == alive.shape[0] * alive.shape[1]


def test_predictions_are_the_function_of_every_draw_and_row(result):
    rows = {"x": np.arange(6.0).reshape(2, 3), "y": np.zeros(2)}
    logit = lambda p, row: row["x"] @ p["w"] + p["b"]  # noqa: E731
    out = np.asarray(result.predict(logit, rows))
    want = np.einsum("cdk,nk->cdn", result.draws["w"], rows["x"]) + result.draws["b"][..., None]
    np.testing.assert_allclose(out, want.reshape(-1, 2), rtol=1e-10)
    assert result.predict(logit, rows, draws=7).shape == (7, 2)


def test_replicated_rows_have_the_predictive_law(result):
    """y_rep ~ N(b, 1): its mean is b's mean and its variance b's variance + 1 (4 σ, false alarm 6e-5 each)."""
    rows = {"x": np.zeros((500, 3)), "y": np.zeros(500)}
    replicate = lambda key, p, row: p["b"] + jax.random.normal(key)  # noqa: E731
    out = np.asarray(result.posterior_predictive(replicate, rows, draws=405))
    noise = out - result.draws["b"].reshape(-1, 1)
    assert abs(noise.mean()) < 4 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 4 * np.sqrt(2 / noise.size)
    assert len(np.unique(noise)) == noise.size


def test_all_chains_lost_before_the_first_draw_is_said_in_words():
    """No draw is kept at all, and the run stops early; nothing fails on the empty arrays."""
    model, shards = blobs(clients=3, rows=50)
    with pytest.warns(UserWarning, match="0 finite draws kept"):
        result = fsgld.sample(
            model, shards, None, dynamics=fsgld.langevin(1.0), batch_size=5, local_steps=10, rounds=5000, chains=2,
            burn_in=0.5,
        )  # fmt: skip
    assert result.draws.shape[1] == 0
    assert result.visited.shape[1] < 5000
    assert "no chain ran to the end" in str(result.summary())


def test_a_chain_that_runs_away_has_diverged_before_it_overflows():
    """Growth by a factor a step reaches 1e15 long before 1e308: such numbers are not draws."""
    model, shards = blobs(clients=3, rows=50)
    with pytest.warns(UserWarning, match="diverged in round"):
        result = fsgld.sample(
            model, shards, None, dynamics=fsgld.langevin(0.0267), batch_size=5, local_steps=10, rounds=400, chains=2,
            thin=1, burn_in=0,
        )  # fmt: skip
    assert all(status.diverged for status in result.status)
    assert np.nanmax(np.abs(result.draws)) < 1e15


def test_parameters_keep_their_order_in_a_file(result, tmp_path):
    draws = Pair(one=np.ones((1, 2)), two=np.zeros((1, 2)))
    one = fsgld.Result(draws, np.arange(2), result.visited[:1], result.clients, result.status[:1], {}, {})
    one.save(tmp_path / "r.npz")
    names, values = fsgld.Result.load(tmp_path / "r.npz").flat_draws()
    assert names == one.flat_draws()[0] == ("one", "two")
    np.testing.assert_array_equal(values, one.flat_draws()[1])


def test_files_of_earlier_versions_are_read(result, tmp_path):
    """In format 1 keys were written as those of JSON objects."""
    result.save(tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as archive:
        arrays = dict(archive)
    meta = json.loads(str(arrays.pop("meta")))
    meta["format"] = "fsgld result 1"
    meta["structure"] = {"dict": {"b": {"ordered": {"z": 0}}}}
    np.savez(tmp_path / "old.npz", meta=np.array(json.dumps(meta)), **arrays)
    draws = fsgld.Result.load(tmp_path / "old.npz").draws
    np.testing.assert_array_equal(draws["b"]["z"], jax.tree.leaves(result.draws)[0])
