"""Compiler options of single programs: only where they are known and wanted; what is computed stays the same."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fsgld
from fsgld import programs
from fsgld.programs import OWN_PRODUCTS, QUICK, may_set, quick


@pytest.mark.parametrize(
    ("environ", "allowed"),
    [
        ({}, {"quick", "own products"}),
        ({"XLA_FLAGS": "--xla_dump_to=x"}, {"quick", "own products"}),
        ({"XLA_FLAGS": "--xla_cpu_prefer_vector_width=256"}, {"quick"}),
        ({"XLA_FLAGS": "--xla_cpu_use_fusion_emitters=true"}, set()),
        ({"XLA_FLAGS": "flags.txt"}, set()),  # a file with flags
        ({"FSGLD_XLA_FLAGS": "off"}, set()),
    ],
)
def test_options_are_only_set_where_the_user_sets_none(environ, allowed):
    may = {name for name, options in (("quick", QUICK), ("own products", OWN_PRODUCTS)) if may_set(options, environ)}
    assert may == (allowed if jax.default_backend() == "cpu" else set())


def test_options_that_this_jaxlib_does_not_know_are_not_set():
    assert not may_set({"xla_cpu_no_such_option": True}, {})


@pytest.mark.parametrize("allowed", [True, False])
def test_a_quick_program_is_compiled_once_with_its_options(allowed, monkeypatch):
    """It takes static arguments as jax.jit does, computes the same, and has options where these may be set."""
    monkeypatch.setattr(programs, "may_set", lambda options: allowed)
    compiled, jit = [], jax.jit

    def spy(function, **how):
        program = jit(function, **how)
        return lambda *args: (compiled.append(how.get("compiler_options")), program(*args))[1]

    monkeypatch.setattr(jax, "jit", spy)
    traced = []

    @partial(quick, static_argnums=0)
    def power(n, x):
        """Give xⁿ."""
        traced.append(n)
        return x**n

    assert [float(power(n, jnp.asarray(x))) for n, x in ((2, 3.0), (2, 4.0), (3, 2.0))] == [9, 16, 8]
    assert traced == [2, 3] and compiled == [QUICK if allowed else None] * 3
    assert power.__doc__ == "Give xⁿ."


def test_both_ways_of_compiling_give_the_same_answers(monkeypatch):
    x = np.random.default_rng(0).normal(size=(40, 3))
    model = fsgld.Model(
        lambda b: -0.5 * jnp.sum(b**2), lambda b, row: -jnp.log1p((row[0] - row[1:] @ b) ** 2), jnp.zeros(2)
    )
    run = {"rounds": 30, "chains": 2, "progress": False}
    draws = []
    for allowed in (True, False):
        monkeypatch.setattr(programs, "may_set", lambda options, allowed=allowed: allowed)
        result = fsgld.sample(model, [x[:15], x[15:]], **run)
        draws.append(result.draws)
    np.testing.assert_allclose(*draws, rtol=1e-8)
