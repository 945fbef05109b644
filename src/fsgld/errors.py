"""The two exceptions that `fsgld` raises on purpose.

Exception
├── ValueError
│   └── InputError        what the caller gave cannot be used; the message says what to do
└── RuntimeError
    └── CheckpointError   a checkpoint is damaged, foreign or cannot be written

Divergence is a result, not an exception: see `fsgld.Result.status`.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

# Without NumPy and JAX, so that the command line answers at once


class InputError(ValueError):
    """What the caller gave cannot be used; the message says what to do instead.

    A message may quote data. `told` is what a site may say of the error elsewhere, "" if nothing.
    """

    def __init__(self, message: object = "", told: str = "") -> None:
        super().__init__(message)
        self.told = told


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, belongs to another run, or cannot be written."""


def check_whole(least: int = 1, **given: Any) -> None:
    """Check that settings are whole numbers, not too small."""
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
            raise InputError(f"{name} must be a whole number of at least {least}; got {brief(value)}")


def is_number(value: Any) -> bool:
    """Whether a value is one finite real number: Python's, NumPy's or JAX's."""
    import numpy as np

    if not isinstance(value, int | float) and not _is_array(value):
        return False
    array = np.asarray(value)
    return array.shape == () and array.dtype.kind in "iuf" and bool(np.isfinite(array))


def brief(value: Any, length: int = 80) -> str:
    """Say in one short line what was given."""
    if hasattr(value, "shape") and value.shape:
        kind = "array" if _is_array(value) else type(value).__name__
        return f"{kind} of shape {tuple(value.shape)}"
    words = " ".join(repr(value).split())
    return words if len(words) <= length else words[: length - 1] + "…"


def first_line(error: Exception) -> str:
    """Quote an exception of the user's code in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _is_array(value: Any) -> bool:
    """Whether a value is one of NumPy's or JAX's arrays or numbers."""
    return type(value).__module__.split(".")[0] in ("numpy", "jax", "jaxlib") and hasattr(value, "shape")
