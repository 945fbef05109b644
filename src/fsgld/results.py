"""`Result`: the draws of a run, and all that a reader needs to trust or distrust them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fsgld.engines import RUNAWAY
from fsgld.errors import InputError, check_whole, first_line, is_number
from fsgld.model import Params, describe
from fsgld.randomness import root_key
from fsgld.rows import check_rows, read
from fsgld.run import Record
from fsgld.structure import read_structure, write_structure
from fsgld.summary import Summary, statistics, thin_evidence

FORMATS = ("fsgld result 1", "fsgld result 2")


class Status(NamedTuple):
    """How one chain ended: None for `round` and `client` if it ran to the end."""

    chain: int
    draws: int  # finite draws kept
    round: int | None = None
    client: str | None = None

    @property
    def diverged(self) -> bool:
        """Whether the chain ran away: a parameter beyond 1e15, or not a number."""
        return self.round is not None

    def __str__(self) -> str:
        if not self.diverged:
            return f"chain {self.chain}: {self.draws} draws"
        return f"chain {self.chain} diverged in round {self.round} at {self.client}; {self.draws} finite draws kept"


@dataclass(frozen=True)
class Result:
    """The draws of a run and what happened on the way.

    Attributes
    ----------
    draws
        A pytree like the model's parameters; leaves have shape (chains, draws, …). After a chain
        diverged its draws are NaN; `status` and `summary()` say so.
    draw_rounds
        The round each draw comes from, shape (draws,).
    visited
        The client each chain visited in each round, shape (chains, rounds), as indices.
    clients
        The clients' names.
    status
        One `Status` a chain.
    settings, timings
        What was run, and the seconds it took.
    """

    draws: Params
    draw_rounds: np.ndarray
    visited: np.ndarray
    clients: tuple[str, ...]
    status: tuple[Status, ...]
    settings: dict[str, Any]
    timings: dict[str, float]

    @staticmethod
    def from_record(
        record: Record, unravel: Callable[[Any], Params], clients: tuple[str, ...],
        settings: dict[str, Any], timings: dict[str, float],
    ) -> Result:  # fmt: skip
        """Wrap what the driver left: find divergences, give draws their structure."""
        flat = record.draws
        with np.errstate(invalid="ignore"):
            good = (np.abs(flat) < RUNAWAY).all(-1)
        began_alive = np.pad(record.alive, ((0, 0), (1, 0)), constant_values=True)[:, record.draw_rounds]
        good = np.logical_and.accumulate(good & began_alive, axis=1)
        flat = np.where(good[..., None], flat, np.nan)
        draws = _give_structure(flat, unravel)
        status = tuple(_status(c, good[c], record, clients) for c in range(len(flat)))
        return Result(draws, record.draw_rounds, record.visited, clients, status, settings, timings)

    def problems(self) -> list[str]:
        """Say in words what went wrong; empty if nothing did."""
        lines = [f"{status}; use a smaller step_size, or other surrogates"
                 for status in self.status if status.diverged]  # fmt: skip
        gone = {s for s, away in enumerate(self.settings.get("away", [])) if away == 1}
        never = set(range(len(self.clients))) - set(np.unique(self.visited).tolist()) - gone
        if never:
            names = ", ".join(self.clients[s] for s in sorted(never)[:5])
            more = f" and {len(never) - 5} more" if len(never) > 5 else ""
            lines.append(
                f"never visited: {names}{more}; what is known of their data is in surrogates only. Run more rounds"
            )
        return lines + self._doubts()

    def absences(self) -> list[str]:
        """Say who was away, and how much of the posterior rests on surrogates."""
        away, kept = self.settings.get("away", []), self.settings.get("away_in_draws", [])
        shares = self.settings.get("shares", [float("nan")] * len(self.clients))
        return [
            f"{name} was away in {100 * a:.0f} % of the rounds: in {100 * k:.0f} % of the draws its data"
            f" ({100 * share:.0f} % of the information) are in the posterior through its surrogate only"
            for name, a, k, share in zip(self.clients, away, kept, shares, strict=False) if a > 0
        ]  # fmt: skip

    def _doubts(self) -> list[str]:
        """Say what makes the draws doubtful though no chain has diverged."""
        lines = []
        tamed = max(self.settings.get("tamed", [0.0]))
        if tamed > 1e-3:
            lines.append(
                f"{100 * tamed:.1f} % of the steps of a chain met a gradient far beyond what the pre-flight saw and"
                " were shortened, which biases the tails; use a smaller step_size or fewer local_steps"
            )
        if self.settings.get("converged") is False:
            lines.append(f"not converged after {self.visited.shape[1]} rounds; give more max_rounds")
        return lines

    def flat_draws(self) -> tuple[tuple[str, ...], np.ndarray]:
        """Name every scalar parameter, and give the draws as (chains, draws, d)."""
        names, arrays = [], []
        for stem, leaf in self._named_leaves():
            shape = leaf.shape[2:]
            names += [stem + (str(list(i)) if shape else "") for i in np.ndindex(*shape)]
            arrays.append(leaf.reshape(*leaf.shape[:2], int(np.prod(shape))))
        return tuple(names), np.concatenate(arrays, -1)

    def _named_leaves(self) -> list[tuple[str, np.ndarray]]:
        """Name the arrays of the parameters by their paths; a single array is "theta"."""
        leaves = jax.tree_util.tree_leaves_with_path(self.draws)
        return [(jax.tree_util.keystr(path, simple=True, separator=".") or "theta", leaf) for path, leaf in leaves]

    def summary(self, interval: float = 0.94) -> Summary:
        """Summarise each parameter over the chains that did not diverge.

        Columns are mean, sd, the ends of the equal-tailed interval, the Monte Carlo error of the
        mean, bulk and tail effective sample size, and rank-normalised split R-hat.
        """
        if not is_number(interval) or not 0 < interval < 1:
            raise InputError(f"interval must lie strictly between 0 and 1; got {interval!r}")
        names, draws = self.flat_draws()
        whole = draws[[not status.diverged for status in self.status]].astype(float)
        notes = self.problems() + self.absences()
        if not len(whole):
            notes.insert(0, "no chain ran to the end: there is nothing to summarise")
            return Summary(names, {"mean": np.full(len(names), np.nan)}, tuple(notes))
        columns = statistics(whole, interval)
        return Summary(names, columns, tuple(notes + thin_evidence(names, columns)))

    def to_arviz(self) -> Any:
        """Convert to `arviz.InferenceData`; sample_stats hold each draw's client and round."""
        try:
            import arviz
        except ImportError:
            raise ImportError("to_arviz needs ArviZ: pip install 'fsgld[arviz]'") from None
        shape = (len(self.visited), len(self.draw_rounds))
        stats = {
            "client": self.visited[:, self.draw_rounds],
            "round": np.broadcast_to(self.draw_rounds, shape),
            "diverging": ~np.isfinite(self.flat_draws()[1]).all(-1),
        }
        names = [name for name, _ in self._named_leaves()]
        if len(set(names)) < len(names) or set(names) & {"chain", "draw"}:
            raise InputError(f"ArviZ needs parameters of different names, none of them chain or draw; got {names}")
        data = arviz.from_dict(posterior=dict(self._named_leaves()), sample_stats=stats)
        data.posterior.attrs |= {
            "clients": list(self.clients),
            "settings": json.dumps(self.settings),
        }
        return data

    def predict(self, function: Callable[[Params, Any], Any], data: Any, draws: int | None = None) -> Any:
        """Evaluate function(params, row) for every kept draw and every row.

        Parameters
        ----------
        function
            For example a predicted mean, a class probability, or the model's log_likelihood.
        data
            Rows of the structure that `function` takes.
        draws
            Use so many draws, evenly spaced, instead of all.

        Returns
        -------
        Array or pytree
            With leading axes (draws, rows); draws of chains that diverged are left out.
        """
        arrays = read(data, "data")
        check_rows(arrays, "data", values=False)
        self._check_function("function(params, row)", function, (), arrays)
        rows = jax.vmap(function, in_axes=(None, 0))
        return self._each_draw(lambda i, params: rows(params, arrays), draws)

    def posterior_predictive(
        self,
        simulate: Callable[[Any, Params, Any], Any],
        data: Any,
        draws: int = 200,
        seed: int = 0,
    ) -> Any:
        """Simulate replicated rows, simulate(key, params, row), for `draws` draws × all rows."""
        arrays, root = read(data, "data"), root_key(seed)
        count = check_rows(arrays, "data", values=False)
        self._check_function("simulate(key, params, row)", simulate, (root,), arrays)
        rows = jax.vmap(simulate, in_axes=(0, None, 0))

        def one(i: Any, params: Params) -> Any:
            return rows(jax.random.split(jax.random.fold_in(root, i), count), params, arrays)

        return self._each_draw(one, draws)

    def _check_function(self, name: str, function: Callable, first: tuple, data: Any) -> None:
        """Try a function of the user's on the shapes of one draw and one row."""
        params, row = jax.tree.map(lambda leaf: leaf[0, 0], self.draws), jax.tree.map(lambda leaf: leaf[0], data)
        try:
            jax.eval_shape(function, *first, params, row)
        except Exception as error:
            given = f"params {describe(params)} and one row {describe(row)}"
            raise InputError(f"{name} fails for {given}: {first_line(error)}; write it with jax.numpy") from error

    def _each_draw(self, function: Callable[[Any, Params], Any], draws: int | None) -> Any:
        """Map function(index, params) over evenly spaced draws of the chains that ran to the end."""
        if draws is not None:
            check_whole(draws=draws)
        alive = [not status.diverged for status in self.status]
        merged = jax.tree.map(lambda leaf: leaf[alive].reshape(-1, *leaf.shape[2:]), self.draws)
        count = len(jax.tree.leaves(merged)[0])
        if count == 0:
            raise InputError("no chain ran to the end, so there is nothing to predict from")
        chosen = np.linspace(0, count - 1, min(draws or count, count)).astype(int)
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf[chosen]), merged)
        each = jax.jit(lambda i, p: jax.lax.map(lambda pair: function(*pair), (i, p)))
        return each(jnp.arange(len(chosen)), params)

    def save(self, file: str | Path) -> None:
        """Write an .npz archive (arrays and JSON, no pickle) that `Result.load` reads."""
        leaves, _ = jax.tree.flatten(self.draws)
        meta = {
            "format": FORMATS[-1], "structure": write_structure(self.draws, iter(range(len(leaves)))),
            "clients": self.clients, "status": self.status, "settings": self.settings,
            "timings": self.timings,
        }  # fmt: skip
        arrays = {f"draws_{i}": leaf for i, leaf in enumerate(leaves)}
        with Path(file).open("wb") as stream:
            np.savez_compressed(
                stream, meta=np.array(json.dumps(meta)), draw_rounds=self.draw_rounds,
                visited=self.visited, **arrays,
            )  # fmt: skip

    @staticmethod
    def load(file: str | Path) -> Result:
        """Read what `save` wrote. Parameters in custom containers come back as ordered dicts by path."""
        try:
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
            meta = json.loads(str(arrays["meta"]))
            if meta["format"] not in FORMATS:
                raise ValueError(meta["format"])
            return Result(
                read_structure(meta["structure"], arrays), arrays["draw_rounds"], arrays["visited"],
                tuple(meta["clients"]), tuple(Status(*s) for s in meta["status"]), meta["settings"],
                meta["timings"],
            )  # fmt: skip
        except FileNotFoundError:
            raise
        except Exception:
            raise InputError(f"{file} is not a result written by fsgld.Result.save, or it is damaged") from None


def _status(c: int, good: np.ndarray, record: Record, clients: tuple[str, ...]) -> Status:
    """Find the first round, if any, in which a chain ran away."""
    rounds = np.append(np.flatnonzero(~record.alive[c]), record.draw_rounds[~good])
    if not len(rounds):
        return Status(c, int(good.sum()))
    r = int(rounds.min())
    return Status(c, int(good.sum()), r, clients[record.visited[c, r]])


def _give_structure(flat: np.ndarray, unravel: Callable[[Any], Params]) -> Params:
    """Cut draws (chains, n, d) into the arrays that `unravel` makes of one, on the host."""
    leaves, structure = jax.tree.flatten(jax.eval_shape(unravel, np.empty(flat.shape[-1], flat.dtype)))
    parts = np.split(flat, np.cumsum([leaf.size for leaf in leaves])[:-1], axis=-1)
    cut = [part.reshape(*part.shape[:2], *leaf.shape).astype(leaf.dtype)
           for part, leaf in zip(parts, leaves, strict=True)]  # fmt: skip
    return jax.tree.unflatten(structure, cut)
