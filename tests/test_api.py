"""The public names, what importing costs, and the examples in docstrings and README."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fsgld

ROOT = Path(__file__).parents[1]


def test_the_public_names_are_sorted_few_and_there():
    assert fsgld.__all__ == sorted(fsgld.__all__)
    assert len(fsgld.__all__) <= 20
    assert all(hasattr(fsgld, name) for name in fsgld.__all__)


def test_importing_is_light():
    heavy = ("arviz", "matplotlib", "pandas", "nvflare", "torch")
    code = f"import sys, fsgld; print([name for name in {heavy!r} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_public_functions_are_documented():
    for name in fsgld.__all__:
        assert (getattr(fsgld, name).__doc__ or "").strip(), name


@pytest.mark.parametrize("name", [m.name for m in pkgutil.walk_packages(fsgld.__path__, "fsgld.")])
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_no_module_is_too_long():
    sizes = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert {name: n for name, n in sizes.items() if n > 320} == {}


def test_nothing_is_pickled():
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"import (cloud)?pickle|allow_pickle=True", path.read_text()), path


def test_the_readmes_code_runs_and_prints_what_it_says(tmp_path):
    """All Python blocks run one after the other, in float32 as a user has it, and begin by printing the text block."""
    blocks = re.findall(r"```(python|text)\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    code = [text for kind, text in blocks if kind == "python"]
    (printed,) = (text for kind, text in blocks if kind == "text")
    assert len(code) == 3
    assert len(code[0].strip().splitlines()) <= 25
    command = [sys.executable, "-W", "error", "-c", "\n".join(code)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    ours, readme = ([line.split() for line in text.strip().splitlines()] for text in (done.stdout, printed))
    ours = ours[: len(readme)]
    assert [row[0] for row in ours] == [row[0] for row in readme]
    for a, b in zip(ours[1:], readme[1:], strict=True):  # mean and sd; other machines may differ in the last digits
        assert float(a[1]) == pytest.approx(float(b[1]), abs=0.3 * float(b[2]))
        assert float(a[2]) == pytest.approx(float(b[2]), rel=0.2)
