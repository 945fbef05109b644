"""Checkpoints: killed and resumed equals never killed, bit for bit; damage and foreign runs are refused."""

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import fsgld
from problems import regression

SCRIPT = textwrap.dedent("""
    import sys
    sys.path.insert(0, {tests!r})
    from problems import regression
    import fsgld
    model, shards = regression()
    result = fsgld.sample(
        model, shards, dynamics=fsgld.sghmc(1e-3), batch_size=4, local_steps=50, rounds=20_000, chains=2, thin=50,
        seed=9, checkpoint=sys.argv[1], progress=False,
    )
    result.save(sys.argv[2])
""")


def start(folder, out):
    tests = os.path.dirname(__file__)
    return subprocess.Popen([sys.executable, "-c", SCRIPT.format(tests=tests), str(folder), str(out)])


@pytest.mark.slow
def test_a_run_killed_at_random_moments_gives_the_same_draws(tmp_path):
    """SIGKILL again and again, at random moments after the first call is on disk; then let it finish."""
    rng = random.Random(0)
    assert start(tmp_path / "whole", tmp_path / "whole.npz").wait(120) == 0
    kills = 0
    for _ in range(20):
        process = start(tmp_path / "cut", tmp_path / "cut.npz")
        calls = tmp_path / "cut" / "calls"
        seen = len(list(calls.glob("*.npz"))) if calls.exists() else 0
        limit = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < limit:
            if calls.exists() and len(list(calls.glob("*.npz"))) > seen:
                time.sleep(rng.uniform(0, 0.05))
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        kills += process.wait(60) == -signal.SIGKILL
        if kills == 3:
            break
    if not (tmp_path / "cut.npz").exists():
        assert start(tmp_path / "cut", tmp_path / "cut.npz").wait(120) == 0
    assert kills >= 1
    whole, cut = (fsgld.Result.load(tmp_path / f"{name}.npz") for name in ("whole", "cut"))
    np.testing.assert_array_equal(whole.draws, cut.draws)
    np.testing.assert_array_equal(whole.visited, cut.visited)
    assert np.isfinite(cut.draws).all()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    run(folder)
    return folder


def run(folder, seed=1, scale=1.0, **settings):
    model, shards = regression()
    shards = [(X * scale, y) for X, y in shards]
    settings = {"local_steps": 5, "rounds": 60, "chains": 2, "batch_size": 4} | settings
    return fsgld.sample(model, shards, dynamics=fsgld.langevin(1e-3), seed=seed, checkpoint=folder, **settings)


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_finished_run_is_read_back(saved):
    before = contents(saved)
    np.testing.assert_array_equal(run(saved).draws, run(saved).draws)
    assert contents(saved) == before


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seed": 2}, "seed"), ({"scale": 1.5}, "data"), ({"rounds": 61}, "rounds"), ({"chains": 3}, "chains"),
        ({"probs": [0.2, 0.3, 0.5]}, "probs"), ({"likelihood": fsgld.plain}, "likelihood"),
    ],
)  # fmt: skip
def test_a_foreign_checkpoint_is_refused_and_left_untouched(saved, change, word):
    before = contents(saved)
    with pytest.raises(fsgld.CheckpointError, match=rf"belongs to another run: its .*{word}.*left untouched"):
        run(saved, **change)
    assert contents(saved) == before


def test_another_model_is_a_foreign_checkpoint(saved):
    model, shards = regression()
    other = fsgld.Model(lambda p: 2 * model.log_prior(p), model.log_likelihood, model.init)
    with pytest.raises(fsgld.CheckpointError, match="belongs to another run"):
        fsgld.sample(
            other, shards, dynamics=fsgld.langevin(1e-3), seed=1, checkpoint=saved, local_steps=5, rounds=60, chains=2,
            batch_size=4,
        )  # fmt: skip


@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "missing", "json"])
def test_a_damaged_checkpoint_is_refused_and_left_untouched(saved, tmp_path, damage):
    folder = tmp_path / "damaged"
    shutil.copytree(saved, folder)
    calls = sorted((folder / "calls").glob("*.npz"))
    data = calls[-1].read_bytes()
    if damage == "truncate":
        calls[-1].write_bytes(data[: len(data) // 2])
    if damage == "flip":
        middle = data.find(b"draws.npy") + 200  # among the numbers, behind the header of 128 bytes
        calls[-1].write_bytes(data[:middle] + bytes([data[middle] ^ 255]) + data[middle + 1 :])
    if damage == "empty":
        calls[-1].write_bytes(b"")
    if damage == "missing":
        calls[1].unlink()
    if damage == "json":
        (folder / "fingerprint.json").write_text("{")
    before = contents(folder)
    with pytest.raises(fsgld.CheckpointError, match="left untouched"):
        run(folder)
    assert contents(folder) == before


def test_without_a_checkpoint_the_draws_are_the_same(saved):
    np.testing.assert_array_equal(run(saved).draws, run(None).draws)


def test_a_run_whose_chains_are_all_lost_stays_as_it_was(tmp_path):
    model, shards = regression()
    run_away = lambda: fsgld.sample(  # noqa: E731
        model, shards, None, dynamics=fsgld.langevin(10.0), local_steps=20, rounds=200, chains=2, batch_size=4,
        checkpoint=tmp_path / "lost", burn_in=0,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="diverged"):
        first = run_away()
    with pytest.warns(UserWarning, match="diverged"):
        again = run_away()
    np.testing.assert_array_equal(first.draws, again.draws)
    np.testing.assert_array_equal(first.visited, again.visited)


def test_a_kill_while_the_folder_is_claimed_does_no_harm(tmp_path):
    folder = tmp_path / "claimed"
    folder.mkdir()
    (folder / "fingerprint.partial").write_text("{")
    assert np.isfinite(run(folder).draws).all()


def test_a_checkpoint_knows_how_its_run_was_cut(saved, monkeypatch):
    from fsgld.engines import make_plan

    other = lambda *sizes: make_plan(*sizes)._replace(rounds=12, group=1)  # noqa: E731
    monkeypatch.setattr(sys.modules["fsgld.sample"], "make_plan", other)
    with pytest.raises(fsgld.CheckpointError, match="its plan is"):
        run(saved)


def test_another_version_or_compiler_option_is_a_foreign_checkpoint(saved, monkeypatch):
    """Another version may draw other random numbers, and other options of the compiler round otherwise."""
    before = contents(saved)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["fsgld.sample"], "__version__", "0.1.0")
        with pytest.raises(fsgld.CheckpointError, match=r"its versions is .*, this run's is 'fsgld 0\.1\.0"):
            run(saved)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    with pytest.raises(fsgld.CheckpointError, match="its compiler options is"):
        run(saved)
    assert contents(saved) == before


def test_no_row_is_written(tmp_path):
    """Plant a marker in every row and look for it, in both precisions and as text, in all that a run writes."""
    marker = 1234.5678
    model, shards = regression()
    shards = [(np.where(np.arange(3) == 1, marker, X), y) for X, y in shards]
    result = fsgld.sample(
        model, shards, local_steps=2, rounds=40, chains=2, batch_size=4, checkpoint=tmp_path / "run", progress=False
    )
    result.save(tmp_path / "result.npz")
    patterns = [np.array(marker, dtype).tobytes() for dtype in ("<f4", "<f8")] + [b"1234.56"]
    written = contents(tmp_path)
    assert len(written) > 3
    for archive in [name for name in written if name.endswith(".npz")]:
        with np.load(tmp_path / archive) as arrays:
            written |= {f"{archive}/{name}": arrays[name].tobytes() for name in arrays.files}
    assert not [name for name, data in written.items() for pattern in patterns if pattern in data]


@pytest.mark.parametrize("mistake", ["another run's", "swapped", "stray"])
def test_call_files_know_their_run_and_their_number(saved, tmp_path, mistake):
    """A whole file in a wrong place would give wrong draws without a word."""
    folder = tmp_path / "mixed"
    shutil.copytree(saved, folder)
    calls = sorted((folder / "calls").glob("*.npz"))
    if mistake == "another run's":
        run(tmp_path / "other", seed=2)
        shutil.copy(tmp_path / "other" / "calls" / calls[-1].name, calls[-1])
    if mistake == "swapped":
        (one, two) = calls[0].read_bytes(), calls[1].read_bytes()
        calls[0].write_bytes(two)
        calls[1].write_bytes(one)
    if mistake == "stray":
        (folder / "calls" / "0 copy.npz").write_bytes(b"")
        np.testing.assert_array_equal(run(folder).draws, run(saved).draws)
        return
    before = contents(folder)
    with pytest.raises(fsgld.CheckpointError, match="of another run or call; it was left untouched"):
        run(folder)
    assert contents(folder) == before
