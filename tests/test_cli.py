"""The command line: what it prints, exits with, and does not import."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import fsgld
from fsgld import cli
from fsgld.experiments import EXPERIMENTS, reproduce
from fsgld.experiments.reproduce import Line

runner = CliRunner()


def run(*arguments):
    return runner.invoke(cli.app, arguments)


def test_help_comes_at_once():
    """Half a second of computing, whatever else the machine does: JAX alone takes longer, and is not imported."""
    heavy = ("jax", "numpy", "scipy", "matplotlib", "arviz", "pyarrow", "nvflare")
    code = f"""
import sys
sys.argv = ["fsgld", "--help"]
from fsgld.cli import main
try:
    main()
except SystemExit as end:
    assert end.code == 0
print([name for name in {heavy!r} if name in sys.modules])
"""
    seconds = []
    for _ in range(3):
        before = os.times()
        printed = subprocess.check_output([sys.executable, "-c", code], text=True)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))  # user and system time of the child
    assert printed.splitlines()[-1] == "[]"
    assert "reproduce" in printed and "data" in printed
    assert min(seconds) < 0.5


def test_it_runs_as_a_module():
    printed = subprocess.check_output([sys.executable, "-m", "fsgld", "--version"], text=True)
    assert printed == f"fsgld {fsgld.__version__}\n"


def test_data_list(tmp_path, monkeypatch):
    monkeypatch.delenv("FSGLD_DATA", raising=False)
    monkeypatch.setenv("FSGLD_CACHE", str(tmp_path))
    (tmp_path / "airfoil").mkdir()
    (tmp_path / "airfoil" / "airfoil_self_noise.dat").write_text("")
    lines = run("data", "list").output.splitlines()
    assert [line.split()[0] for line in lines] == list(fsgld.data.NAMES)
    assert lines[1].endswith("airfoil_self_noise.dat")
    assert lines[2].endswith("not here")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("data", "get", "iris"), "fsgld: there is no data set 'iris'; choose one of concrete,"),
        (("reproduce", "figure9"), "fsgld: there is no experiment 'figure9'; choose one of variance"),
        (("reproduce", "variance", "--seeds", "3", "--quick"), "fsgld: variance has no repetitions"),
        (("reproduce", "blobs", "--seeds", "1", "--quick"), "fsgld: seeds must be a whole number of at least 2; got 1"),
        (("reproduce", "variance", "--out", __file__), "fsgld: cannot write to the folder"),
    ],
)
def test_wrong_input_ends_with_one_sentence(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(sentence)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [("data", "put"), ("reproduce",), ("reproduce", "variance", "--seeds", "some")])
def test_wrong_usage_ends_with_two(arguments):
    assert run(*arguments).exit_code == 2


def test_reproduce_all_runs_every_experiment(monkeypatch, tmp_path):
    asked = []

    def fake(name, out, **options):
        asked.append((name, out, options["quick"], options["seeds"]))
        return out / name, [Line("ratio", "1", "2", "3", "4")]

    monkeypatch.setattr(reproduce, "reproduce", fake)
    done = run("reproduce", "all", "--quick", "--seeds", "3", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert asked == [(name, tmp_path, True, None if name == "variance" else 3) for name in EXPERIMENTS]
    assert all(word in done.stdout for word in ("corrected setting", "ratio", f"wrote {tmp_path / 'variance'}"))
