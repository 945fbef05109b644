"""A study's settings as arguments of `fsgld.sample`: parts are named in study.toml, their numbers stand beside them."""

from __future__ import annotations

from inspect import signature
from typing import Any

from fsgld.derivatives import all_clients
from fsgld.diagnostics import Converged
from fsgld.engines.flare.visit import CONSTANTS, DYNAMICS, LIKELIHOODS, SCHEDULES
from fsgld.errors import InputError, brief
from fsgld.model import Model, ravel
from fsgld.model_checks import check_finite_at, check_model
from fsgld.rows import Shards
from fsgld.schedules import Schedule, as_schedule
from fsgld.study import Study
from fsgld.surrogates import Gaussian


def arguments(study: Study, table: Shards | None = None) -> dict[str, Any]:
    """Turn a study's settings into arguments of `fsgld.sample`; surrogates at the model's init need the table."""
    given = dict(study.settings)
    numbers = {name: given.pop(name) for name in CONSTANTS if name in given}
    schedule, kind = given.pop("schedule", None), given.pop("dynamics", None)
    if kind is None and (schedule is not None or numbers or given.get("surrogates") == "none"):
        kind = "langevin" if given.get("surrogates") == "none" else "whitened"
    if kind is not None:
        given["dynamics"] = _build(DYNAMICS[kind], _schedule(schedule, given.pop("step_size", None)), **numbers)
    if "likelihood" in given:
        given["likelihood"] = LIKELIHOODS[given["likelihood"]]
    if given.get("surrogates") == "none":
        given["surrogates"] = None
    if given.get("surrogates") in ("diagonal", "linear") and table is not None:
        given["surrogates"] = _anchored(study.model(), table, given["surrogates"])
    return given | ({"until": Converged(**study.until)} if study.until else {})


def _schedule(given: Any, step_size: Any) -> Schedule:
    """Read `schedule = {name = "polynomial", a = …}`, or a step size."""
    if (given is None) == (step_size is None):
        raise InputError("dynamics in a study need step_size, or else schedule; give one of them")
    if given is None:
        return as_schedule(step_size)
    numbers = dict(given) if isinstance(given, dict) else {}
    build = SCHEDULES.get(str(numbers.pop("name", "")))
    if build is None:
        raise InputError(f"schedule must be a table with a name, one of {', '.join(SCHEDULES)}; got {brief(given)}")
    return _build(build, **numbers)


def _build(function: Any, *args: Any, **numbers: Any) -> Any:
    """Call a builder of dynamics or schedules; numbers that it does not take are an error of the study."""
    try:
        signature(function).bind(*args, **numbers)
    except TypeError as error:
        names = ", ".join(name for name in signature(function).parameters)
        raise InputError(f"{function.__name__} takes {names}; got {brief(numbers)} ({error})") from None
    return function(*args, **numbers)


def _anchored(model: Model, table: Shards, form: str) -> Gaussian:
    """Let all clients expand their log-likelihood at the model's init, as `fsgld.anchored` does."""
    theta = ravel(model.start())
    flat = check_model(model, theta, table)
    check_finite_at(flat, theta, table, "the model's start (init)")
    _, G, H = all_clients(flat, theta, table, None if form == "linear" else form)
    return Gaussian(G) if H is None else Gaussian(G + H * theta[None], H)
