"""The flags that `import fsgld` gives XLA: only where they are known and wanted."""

import os
import subprocess
import sys

import pytest

from fsgld import xla

OURS = "--xla_backend_extra_options=-unroll-full-max-count=8,xla_cpu_small_while_loop_byte_threshold=4194304"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """JAX has started in this process; pretend that it has not, and that it is alone."""
    monkeypatch.setattr(xla, "started", lambda: False)
    found = xla.find_spec
    monkeypatch.setattr(xla, "find_spec", lambda name: None if name == "jax_plugins" else found(name))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, OURS),
        ({"XLA_FLAGS": "--xla_dump_to=x"}, f"--xla_dump_to=x {OURS}"),
        ({"XLA_FLAGS": "--xla_backend_extra_options=a=1"}, "--xla_backend_extra_options=a=1"),
        ({"XLA_FLAGS": "flags.txt"}, "flags.txt"),  # a file with flags
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


def test_nothing_is_set_for_other_devices_unless_the_cpu_is_asked_for(monkeypatch):
    found = xla.find_spec
    monkeypatch.setattr(xla, "find_spec", lambda name: name if name == "jax_plugins" else found(name))
    device, cpu = {}, {"JAX_PLATFORMS": "cpu"}
    xla.set_flags(device)
    xla.set_flags(cpu)
    assert device == {} and cpu["XLA_FLAGS"] == OURS


@pytest.mark.parametrize(
    ("first", "flags"), [("import fsgld", OURS), ("import jax; jax.numpy.ones(3).sum(); import fsgld", "None")]
)
def test_jax_takes_the_flags_if_it_has_not_started(first, flags):
    """JAX would stop the process at a flag that it does not know."""
    code = f"{first}; import os, jax; print(os.environ.get('XLA_FLAGS')); print(jax.jit(lambda x: x * 2)(21.0))"
    environ = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "FSGLD_XLA_FLAGS")}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [flags, "42.0"]
