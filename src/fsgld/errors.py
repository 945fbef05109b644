"""The two exceptions that `fsgld` raises on purpose.

Exception
├── ValueError
│   └── InputError        what the caller gave cannot be used; the message says what to do
└── RuntimeError
    └── CheckpointError   a checkpoint is damaged, foreign or cannot be written

Divergence is a result, not an exception: see `fsgld.Result.status`.
"""

from __future__ import annotations


class InputError(ValueError):
    """What the caller gave cannot be used; the message says what to do instead."""


class CheckpointError(RuntimeError):
    """A checkpoint is damaged, belongs to another run, or cannot be written."""
