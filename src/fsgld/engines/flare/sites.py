"""A table of rows that are elsewhere: it takes the place of the clients' table in `fsgld.sample`.

Questions about rows (see `fsgld.rows.asked`) go to the sites, all at once, and their answers are put together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fsgld import __version__
from fsgld.algorithm import Lots
from fsgld.engines.flare.post import Post
from fsgld.errors import InputError
from fsgld.probes import Noise, Residual
from fsgld.rows import Data, Shards
from fsgld.surrogates import Gaussian


def check_software(site: str, theirs: str) -> None:
    """Refuse a site with another version: it may draw other random numbers, and the run would not be what it says."""
    if theirs != f"fsgld {__version__}":
        raise InputError(f"{site} runs {theirs}, the coordinator fsgld {__version__}; install the same version at both")


@dataclass(frozen=True)
class Sites(Shards):
    """The clients' table of a federation: sizes and names are here, rows are not."""

    post: Post | None = None
    data: tuple[str, ...] = ()  # the sites' words for their data
    drawn: dict[str, Any] = field(default_factory=dict)  # the probes that rows get their lots by

    @staticmethod
    def meet(post: Post, names: tuple[str, ...]) -> Sites:
        """Say hello to all sites: how many rows they have, and of what structure."""
        answers, gone = post.each({site: partial(post.ask, site, "hello", {}) for site in names})
        for error in gone.values():
            raise error
        first = answers[names[0]]["columns"]
        for site in names:
            check_software(site, answers[site]["software"])
            if answers[site]["columns"] != first:
                raise InputError(f"{site} has columns {answers[site]['columns']}, but {names[0]} has {first}")
        sizes = np.array([answers[site]["rows"] for site in names], np.int32)
        data = tuple(answers[site]["data"] for site in names)
        return Sites(_skeleton(first), np.zeros_like(sizes), sizes, names, post, data)

    def shard(self, s: int) -> Data:
        """Give no rows: they are at their site."""
        return jax.tree.map(lambda leaf: leaf[:0], self.rows)

    def fingerprint(self) -> str:
        """Say which data these are, in the sites' words."""
        return " ".join(self.data)

    def ask(self, question: str, given: dict[str, Any]) -> Any:
        """Put a question to all sites at once and stack their answers."""
        assert self.post is not None
        jobs = {site: partial(self.post.ask, site, question, self._fields(question, given, s))
                for s, site in enumerate(self.names)}  # fmt: skip
        answers, gone = self.post.each(jobs)
        for error in gone.values():
            raise error
        ordered = [answers[site] for site in self.names]
        join: Any = lambda name: jnp.concatenate([jnp.asarray(one[name]) for one in ordered])  # noqa: E731
        if question == "all_clients":
            return join("value"), join("gradient"), None if given["kind"] is None else join("curvature")
        if question == "mean_derivatives":
            return np.asarray(join("gradient")), np.asarray(join("curvature"))
        if question == "residuals":
            return Residual(join("value"), join("growth"))
        if question == "excess_by_products":
            return join("ends")
        if question == "noise_of_some":
            return Noise(join("variance"), join("leverage"))
        self.drawn["few"] = np.asarray(given["points"])
        counts = jnp.asarray([one["lots"] for one in ordered], jnp.int32)  # the lots themselves stay at their sites
        return Lots(jnp.zeros(0, jnp.int32), jnp.zeros(0), jnp.zeros_like(counts), counts)

    def _fields(self, question: str, given: dict[str, Any], s: int) -> dict[str, Any]:
        """Write the arguments of a question as the fields of a request to site s."""
        fields = {name: value for name, value in given.items() if name not in ("flat", "surrogates", "lots", "kind")}
        if question == "all_clients":
            fields["form"] = given["kind"]
        if "surrogates" in given:
            fields |= as_fields(given["surrogates"][s], "")
        if question == "noise_of_some":
            total, most = int(self.sizes.sum()), given["most"]
            fields["most"] = most if total <= most else max(most // len(self.names), 1000)
            fields["few"] = None if given["lots"] is None else self.drawn["few"]
        return fields


def as_fields(q: Gaussian, prefix: str) -> dict[str, Any]:
    """Write a surrogate as fields; a linear one has no precision."""
    fields = {f"{prefix}shift": q.shift, f"{prefix}precision": q.precision}
    return {name: leaf for name, leaf in fields.items() if leaf is not None}


def _skeleton(columns: list[str]) -> Data:
    """Build a table of the sites' structure with one row of noughts, to trace the model with."""
    tree: Any = {}
    for column in columns:
        path, dtype, shape = column.split(" ", 2)
        leaf = np.zeros([1, *map(int, re.findall(r"\d+", shape))], dtype)
        *inner, last = ["", *(name or int(place) for name, place in re.findall(r"\['([^']*)'\]|\[(\d+)\]", path))]
        node = tree
        for key in inner:
            node = node.setdefault(key, {})
        node[last] = leaf
    return jax.tree.map(jnp.asarray, _tuples(tree[""]))


def _tuples(tree: Any) -> Any:
    """Turn dicts with numbers for keys into tuples."""
    if not isinstance(tree, dict):
        return tree
    parts = {key: _tuples(value) for key, value in tree.items()}
    return tuple(parts[i] for i in range(len(parts))) if all(isinstance(key, int) for key in parts) else parts
