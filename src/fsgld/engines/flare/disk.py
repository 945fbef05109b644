"""Small files that another process may read while they are written: whole, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_whole(file: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    partial = file.with_suffix(".partial")
    partial.write_bytes(data)
    os.replace(partial, file)


def write_json(file: Path, facts: dict[str, Any]) -> None:
    """Write facts as JSON, whole or not at all."""
    write_whole(file, json.dumps(facts, indent=1).encode())


def read_json(file: Path) -> dict[str, Any]:
    """Read what `write_json` wrote; empty if there is none."""
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return {}
