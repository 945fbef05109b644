"""The flags that `import fsgld` gives XLA: only where they are known and wanted."""

import os
import subprocess
import sys

import pytest

from fsgld import xla

OURS = "--xla_backend_extra_options=-unroll-full-max-count=8,xla_cpu_small_while_loop_byte_threshold=4194304"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, OURS),
        ({"XLA_FLAGS": "--xla_dump_to=x"}, f"--xla_dump_to=x {OURS}"),
        ({"XLA_FLAGS": "--xla_backend_extra_options=a=1"}, "--xla_backend_extra_options=a=1"),
        ({"FSGLD_XLA_FLAGS": "off"}, None),
    ],
)
def test_flags_are_added_and_never_changed(before, after):
    environ = dict(before)
    xla.set_flags(environ)
    assert environ.get("XLA_FLAGS") == after


def test_options_that_this_jaxlib_does_not_know_are_not_set(monkeypatch):
    monkeypatch.setattr(xla, "OPTIONS", {"-no-such-option-anywhere": 1})
    environ: dict[str, str] = {}
    xla.set_flags(environ)
    assert environ == {}


def test_nothing_is_set_without_jaxlib(monkeypatch):
    monkeypatch.setattr(xla, "find_spec", lambda name: None)
    assert not xla.known(["xla"])


@pytest.mark.parametrize("first", ["import fsgld", "import jax; jax.numpy.ones(3).sum(); import fsgld"])
def test_jax_starts_with_the_flags_and_after_it_has_started(first):
    """JAX would stop the process at a flag that it does not know."""
    code = f"{first}; import os, jax; print(os.environ['XLA_FLAGS']); print(jax.jit(lambda x: x * 2)(21.0))"
    environ = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "FSGLD_XLA_FLAGS")}
    run = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [OURS, "42.0"]
