"""The containers of a pytree as JSON, so that files need no pickle."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import jax
import numpy as np


def write_structure(tree: Any, leaf: Any) -> Any:
    """Write the containers of a pytree as JSON; unknown containers become ordered dicts by path."""
    if tree is None:
        return None
    if isinstance(tree, dict) and all(type(key) in (str, int) for key in tree):
        kind = "ordered" if isinstance(tree, OrderedDict) else "dict"
        keys = tree if kind == "ordered" else sorted(tree)  # as JAX orders the leaves
        return {kind: [[key, write_structure(tree[key], leaf)] for key in keys]}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [write_structure(item, leaf) for item in tree]}
    if jax.tree_util.all_leaves([tree]):
        return next(leaf)
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {"ordered": [[jax.tree_util.keystr(path, simple=True, separator="."), next(leaf)] for path, _ in paths]}


def read_structure(structure: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Put arrays back into the containers that `write_structure` wrote."""
    if isinstance(structure, int):
        return arrays[f"draws_{structure}"]
    if structure is None:
        return None
    ((kind, content),) = structure.items()
    if kind in ("dict", "ordered"):
        pairs = content.items() if isinstance(content, dict) else content  # a dict in files of format 1: keys are text
        items = {key: read_structure(value, arrays) for key, value in pairs}
        return OrderedDict(items) if kind == "ordered" else items
    parts = [read_structure(value, arrays) for value in content]
    return parts if kind == "list" else tuple(parts)
