"""Fewer programs, and compiler options that single ones have; xla.py has options of the whole process.

XLA writes loops for a CPU through MLIR ("fusion emitters") or without it. Without, the compiler takes a third less time
and about half the memory, and programs may be slower: by nothing at all where gradients are rewritten
(`fsgld.rewrite`), up to three times in others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jaxtyping import Array

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

QUICK: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False}
OWN_PRODUCTS = QUICK | {
    "xla_cpu_multi_thread_eigen": False, "xla_cpu_experimental_ynn_fusion_type": "", "xla_cpu_prefer_vector_width": 512,
}  # fmt: skip


def put(numbers: Any, dtype: Any = None) -> Array:
    """Bring a copy of numbers that are on the host to the device; `jnp.asarray` would compile a program a shape."""
    return jax.device_put(np.array(numbers, dtype))


def quick(function: Callable[Given, Answer], **how: Any) -> Callable[Given, Answer]:
    """Compile quickly a program that runs a few times before a chain begins and loses little by it.

    Like `jax.jit`, but not for use inside of other programs.
    """
    programs = {False: jax.jit(function, **how), True: jax.jit(function, compiler_options=QUICK, **how)}

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        answer: Answer = programs[may_set(QUICK)](*args, **kwargs)
        return answer

    return call


def may_set(options: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a program may have these options: on a CPU, if jaxlib knows them and the user sets none of them."""
    given = environ.get("XLA_FLAGS", "").strip()
    theirs = any(name in given for name in options) or (given and not given.startswith("--"))  # else a file's name
    allowed = not theirs and environ.get("FSGLD_XLA_FLAGS") != "off" and jax.default_backend() == "cpu"
    return allowed and _compiles(tuple(options.items()))


@cache
def _compiles(options: tuple[tuple[str, Any], ...]) -> bool:
    """Whether JAX compiles a program with these options."""
    try:
        jax.jit(lambda: 0, compiler_options=dict(options)).lower().compile()
    except Exception:  # JAX says of one that it does not know it
        return False
    return True
