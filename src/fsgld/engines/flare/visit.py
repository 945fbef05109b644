"""Algorithm 1 at a site: requests are read as parts of the library, and the compiled engine runs with one client."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fsgld import lots, randomness, schedules
from fsgld.algorithm import Lots, Rules
from fsgld.dynamics import Dynamics, State, langevin, psgld, sghmc, whitened
from fsgld.engines import Chain, Federation, Plan, compiled, everyone, largest_divisor
from fsgld.engines.flare.messages import Message
from fsgld.errors import InputError
from fsgld.likelihood import control_variate, plain
from fsgld.model import FlatModel, Theta
from fsgld.refresh import Table
from fsgld.rows import Shards
from fsgld.surrogates import Gaussian

STATE = ("theta", "memory", "t")
MEMO = ("anchor", "gradient")  # what a control variate keeps
OWN = ("shift", "precision", *MEMO)  # what a site renews for a chain with a table of its own
LIKELIHOODS = {"plain": plain, "control_variate": control_variate}
DYNAMICS = {"langevin": langevin, "whitened": whitened, "sghmc": sghmc, "psgld": psgld}
SCHEDULES = {
    "constant": schedules.constant, "polynomial": schedules.polynomial, "cosine": schedules.cosine,
    "cyclical": schedules.cyclical,
}  # fmt: skip
CONSTANTS = ("friction", "decay", "floor")  # of dynamics


class Refusal(Exception):
    """The site does not answer; the reason may be told to the coordinator."""


class Place(NamedTuple):
    """Where a request is read: the model, its start, and the site's rows as a table of one client."""

    flat: FlatModel
    theta: Theta
    table: Shards

    def array(self, request: Message, name: str) -> jax.Array:
        """Read a field in the model's precision."""
        if name not in request.fields:
            raise Refusal(f"no field {name}")
        return jnp.asarray(request.fields[name], self.theta.dtype)

    def gaussian(self, request: Message, prefix: str = "") -> Gaussian:
        """Read a surrogate; without a precision it is a linear one."""
        precision = f"{prefix}precision"
        Λ = self.array(request, precision) if precision in request.fields else None
        return Gaussian(self.array(request, f"{prefix}shift"), Λ)

    def lots(self, request: Message, few: np.ndarray | None, differences: bool) -> Lots | None:
        """Give rows their lots, as a function of the request."""
        if few is None:
            return None
        anchor = self.array(request, "anchor") if differences else jnp.zeros_like(self.theta)
        points = jnp.asarray(few, self.theta.dtype)
        return lots.by_leverage(self.flat, differences, points, anchor, self.array(request, "factor"), self.table)


class Setup(NamedTuple):
    """A run as this site sees it: Algorithm 1 with one client."""

    rules: Rules
    dynamics: Dynamics
    federation: Federation
    local_steps: int
    root: Any
    chains: int


def prepare(place: Place, request: Message) -> Setup:
    """Build the run with this site as its only client."""
    given, dtype = request.fields, place.theta.dtype
    T, record = given["local_steps"], given["record"]
    if T < 1 or record < 1 or T % record or given["batch_size"] < 1 or not 1 <= given["chains"] <= 100_000:
        raise Refusal("local_steps, record, batch_size or chains make no sense")
    slot = LIKELIHOODS.get(given["likelihood"])
    if slot is None or not 0 < given["prob"] <= 1:
        raise Refusal("the likelihood's name or prob makes no sense")
    kept: Any = () if slot is plain else tuple(place.array(request, name) for name in MEMO)
    q_s, memo = jax.tree.map(lambda x: x[None], (place.gaussian(request), kept))
    federation = Federation(
        place.table.rows, jnp.asarray(place.table.starts), jnp.asarray(place.table.sizes),
        jnp.asarray([given["prob"]], dtype), Table(q_s, place.gaussian(request, "total_"), memo),
        jnp.asarray(given["alpha"], dtype), everyone(np.ones(1)),
        place.lots(request, given.get("few"), slot is not plain),
    )  # fmt: skip
    rules = Rules(place.flat, slot, given["batch_size"], record)
    return Setup(rules, _dynamics(request), federation, T, randomness.root_key(given["seed"]), given["chains"])


def update(place: Place, setup: Setup, request: Message) -> dict[str, Any]:
    """Client-side Update for all chains that have come, as one program."""
    given, number = request.fields, request.round
    count, T = len(given["t"]), setup.local_steps
    if number < 0 or not (given["t"] == number * T).all() or not 0 < given["mass"] <= 1 + 1e-9:
        raise Refusal(f"the chains are not at the beginning of round {number}")
    kept = jax.tree.leaves(setup.dynamics.memory(place.theta))  # of a chain: nothing, a count, or a vector
    sent = [given["memory"]] if "memory" in given else []
    same = [(x.shape, x.dtype.kind) for x in kept] == [(x.shape[1:], x.dtype.kind) for x in sent]
    which = given["chains"]
    if not same or not count or not ((which >= 0) & (which < setup.chains)).all():
        raise Refusal("the chains do not belong to this run")
    size = min(2 ** int(np.ceil(np.log2(max(count, 4)))), max(setup.chains, count))  # few programs, all kept hot
    index = np.minimum(np.arange(size), count - 1)
    state: Any = [jnp.asarray(given[name][index]) if name in given else () for name in STATE]
    chains = Chain(State(*state), _own_table(place, setup, request, index))
    m, d = setup.rules.batch_size, len(place.theta)
    together = m * d <= 256 or jax.default_backend() != "cpu"
    block = largest_divisor(T, 2**20 // ((size if together else 1) * (m + d)))
    plan = Plan(size, 1, T, 1, block, together and size > 1)
    mass = jnp.asarray([given["mass"]], setup.federation.presence.mass.dtype)
    federation = setup.federation._replace(presence=setup.federation.presence._replace(mass=mass))
    where = jnp.int32(number), jnp.asarray(which[index])
    after, trace = compiled.advance(setup.rules, plan, setup.dynamics, federation, chains, setup.root, *where)
    after, draws = jax.tree.map(lambda leaf: np.asarray(leaf)[:count], (after, trace.draws[:, 0]))
    fields = {name: leaf for name, leaf in zip(STATE, after.state, strict=True) if name in given}
    return fields | _own_fields(after.table) | {"draws": draws if draws.shape[1] > 1 else None}


def _own_table(place: Place, setup: Setup, request: Message, index: np.ndarray) -> Table | None:
    """Read the tables of chains that carry their own (refresh on visit), with this site as the only client."""
    if "shift" not in request.fields:
        return None
    names = () if setup.rules.likelihood is plain else MEMO
    memos = tuple(place.array(request, name)[index][:, None] for name in names)
    q, total = (jax.tree.map(lambda leaf: leaf[index], place.gaussian(request, prefix)) for prefix in ("", "total_"))
    table = Table(jax.tree.map(lambda leaf: leaf[:, None], q), total, memos)
    run = [leaf.ndim + 1 for leaf in jax.tree.leaves(setup.federation.table)]
    if [leaf.ndim for leaf in jax.tree.leaves(table)] != run:
        raise Refusal("surrogates of another form than the run's")
    return table


def _own_fields(table: Table | None) -> dict[str, Any]:
    """Write what the site renewed for each chain: its surrogate and what its likelihood slot keeps."""
    if table is None:
        return {}
    q, memos = jax.tree.map(lambda leaf: leaf[:, 0], (table.surrogates, table.memos))
    return {"shift": q.shift, "precision": q.precision, **dict(zip(MEMO, memos, strict=False))}


def _dynamics(request: Message) -> Dynamics:
    """Build the dynamics that a setup names, with its schedule."""
    given = request.fields
    try:
        step: Any = SCHEDULES[given["schedule"]]
        numbers = zip(sorted(signature(step).parameters), map(float, given["numbers"]), strict=True)
        h = step(**{name: int(value) if name in ("steps", "period") else value for name, value in numbers})
        build: Any = DYNAMICS[given["dynamics"]]
        found: Dynamics = build(h, **{name: given[name] for name in CONSTANTS if name in given})
    except (InputError, KeyError, TypeError, ValueError, OverflowError):
        raise Refusal("dynamics, schedule or their numbers make no sense") from None
    if (found.name == "whitened") != ("factor" in given) or ("limit" in given) > ("factor" in given):
        raise Refusal("whitened dynamics need a factor, and others have none")
    if "factor" in given:
        found = replace(found, constants={"factor": jnp.asarray(given["factor"])})
    return found.tamed(given["mean"], given["limit"]) if "limit" in given else found
