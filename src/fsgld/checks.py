"""What `sample` was given, checked: one clear sentence each, naming the client."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import jax
import numpy as np

from fsgld.diagnostics import Converged
from fsgld.dynamics import Dynamics
from fsgld.errors import InputError, brief, check_whole, first_line, is_number
from fsgld.likelihood import Likelihood
from fsgld.model import Model, Theta
from fsgld.programs import put
from fsgld.run import ENGINES
from fsgld.surrogates import Gaussian


def check_settings(given: dict[str, Any]) -> None:
    """Check the plain arguments of `sample`."""
    check_given({name: given[name] for name in ("step_size", "batch_size", "local_steps", "rounds")})
    optional = ("thin", "max_rounds")
    check_whole(chains=given["chains"], **{name: given[name] for name in optional if given[name] is not None})
    if given["dynamics"] is not None and given["step_size"] != "auto":
        raise InputError(
            f"step_size is for the default dynamics; got {brief(given['step_size'])} and dynamics as well. Give one"
        )
    if not callable(given["engine"]) and given["engine"] not in list(ENGINES):
        raise InputError(f"engine must be one of {sorted(ENGINES)}; got {brief(given['engine'])}")
    check_mini_batches(given["mini_batches"])
    check_kind("model", given["model"])
    for name in ("dynamics", "likelihood"):
        if given[name] is not None:
            check_kind(name, given[name])
    if given["refresh"] not in ("never", "on_visit"):
        if isinstance(given["refresh"], str):
            raise InputError(f'refresh must be "never", "on_visit" or a number of rounds; got {given["refresh"]!r}')
        check_whole(refresh=given["refresh"])
    if given["until"] is not None and not isinstance(given["until"], Converged):
        raise InputError(f"until must be fsgld.Converged(rhat, ess); got {brief(given['until'])}")
    if given["until"] is not None and not all(is_number(x) and x > 0 for x in given["until"]):
        raise InputError(f"rhat and ess of Converged must be positive numbers; got {brief(given['until'])}")
    check_alpha(given["alpha"])
    if given["checkpoint"] is not None and not isinstance(given["checkpoint"], str | PathLike):
        raise InputError(f"checkpoint must be the path of a folder; got {brief(given['checkpoint'])}")


def check_counters(rounds: int, local_steps: int, m: int, d: int) -> None:
    """Check that steps and the random numbers of a visit can be counted in 32 bits."""
    if rounds * local_steps > 2**31 - 1:
        raise InputError(
            f"rounds × local_steps must be at most {2**31 - 1} steps a chain; got {rounds} × {local_steps}"
        )
    if local_steps * max(m, d) >= 2**32:
        raise InputError(
            f"a visit would draw {local_steps} × {max(m, d)} random numbers, more than 2**32; use fewer local_steps"
        )


def check_auto(d: int, most: int = 1000) -> None:
    """Check that dense surrogates, d² numbers a client, are not too large."""
    if d > most:
        raise InputError(
            f'surrogates="auto" keeps a {d} × {d} matrix a client, which is meant for at most {most} parameters; give'
            " surrogates=fsgld.fit(model, shards, fsgld.anchored, diagonal=True), or None for DSGLD"
        )


def check_kind(name: str, value: Any) -> None:
    """Check that a part of a run is what it should be."""
    kind, hint = {
        "model": (Model, "build it with fsgld.Model(log_prior, log_likelihood, init)"),
        "dynamics": (Dynamics, "give fsgld.langevin(step_size), whitened, sghmc or psgld"),
        "likelihood": (Likelihood, "give fsgld.plain or fsgld.control_variate"),
    }[name]
    if not isinstance(value, kind):
        raise InputError(f"{name} is {brief(value, 60)}; {hint}")


def check_dynamics(dynamics: Dynamics | None, theta: Theta) -> Dynamics:
    """Check the dynamics of a run whose surrogates (None or linear) have no curvature: nothing can be filled in."""
    if dynamics is None:
        raise InputError(
            "without surrogates that have a curvature (None and linear ones have none) there is no default for the step"
            ' size; give dynamics=fsgld.langevin(step_size=...), or let surrogates be "auto" for whitened dynamics'
        )
    if dynamics.needs_precision:
        raise InputError(
            "whitened takes its coordinates from prior × q, but surrogates is None or linear; give surrogates with a"
            " curvature, whitened(step_size, precision), or dynamics=fsgld.langevin(step_size=...)"
        )
    return check_size(dynamics, theta)


def check_size(dynamics: Dynamics, theta: Theta) -> Dynamics:
    """Check that a precision given to `whitened` fits the model."""
    factor = dynamics.constants.get("factor")
    if factor is not None and len(factor) != len(theta):
        raise InputError(
            f"the precision given to whitened has shape {factor.shape}, but the model has {len(theta)} parameters"
        )
    return dynamics


def check_given(given: dict[str, Any]) -> None:
    """Check settings that may be "auto"."""
    for name, value in given.items():
        if isinstance(value, str):
            if value != "auto":
                kind = "a positive number" if name == "step_size" else "a whole number of at least 1"
                raise InputError(f'{name} must be "auto" or {kind}; got {value!r}')
        elif name != "step_size":
            check_whole(**{name: value})
        elif not is_number(value) or not value > 0:
            raise InputError(f'step_size must be "auto" or a positive number; got {brief(value)}')


def check_mini_batches(how: Any) -> str:
    """Check how rows are drawn."""
    if how not in ("auto", "uniform", "leverage"):
        raise InputError(f'mini_batches must be "auto", "uniform" or "leverage"; got {brief(how)}')
    return str(how)


def check_alpha(alpha: Any) -> None:
    """Check the scale of the conducive gradient."""
    if not is_number(alpha) or alpha < 0:
        raise InputError(f"alpha must be a number of at least 0; got {brief(alpha)}")


def check_burn_in(burn_in: Any) -> int | float:
    """Read burn_in: a whole number of steps, or a share of all steps below 1."""
    whole = isinstance(burn_in, int | np.integer)
    if isinstance(burn_in, bool) or not is_number(burn_in) or burn_in < 0 or not (whole or burn_in < 1):
        raise InputError(f"burn_in must be a whole number of steps or a share below 1; got {brief(burn_in)}")
    return int(burn_in) if whole else float(burn_in)


def check_present(present: Any, rounds: int, names: Sequence[str], surrogates: Gaussian) -> np.ndarray:
    """Check who is present in which round: one row a round, one truth value a client."""
    S = len(names)
    try:
        there = np.asarray([present(r) for r in range(rounds)] if callable(present) else present)
    except Exception as error:
        raise InputError(f"present fails: {first_line(error)}; give a function of the round number") from error
    if there.ndim != 2 or there.shape[1] != S or len(there) < rounds or there.dtype.kind not in "bi":
        raise InputError(
            f"present must give one truth value for each of {S} clients in each of {rounds} rounds; got"
            f" {there.dtype} of shape {there.shape}"
        )
    there = there[:rounds].astype(bool)
    if not there.any(1).all():
        raise InputError(f"nobody is present in round {int(np.argmin(there.any(1)))}; a chain needs a client to go to")
    away = ~there.all(0)
    if away.any() and not any(bool((leaf != 0).any()) for leaf in jax.tree.leaves(surrogates)):
        raise InputError(
            f"{names[int(np.argmax(away))]} is away at times, and without surrogates its data would be missing from the"
            " posterior; give surrogates, or have all clients present"
        )
    return there


def check_probs(probs: Any, clients: int, names: Sequence[str] | None = None) -> np.ndarray:
    """Check the selection probabilities f_s."""
    if probs is None:
        return np.full(clients, 1 / clients)
    try:
        f = np.asarray(probs, float)
    except (TypeError, ValueError):
        f = np.zeros(())
    if f.shape != (clients,):
        given = f"{f.size} numbers of shape {f.shape}" if f.ndim else f"{type(probs).__name__} {brief(probs)}"
        raise InputError(f"probs must hold one number for each of {clients} clients; got {given}")
    if not (f > 0).all() or abs(f.sum() - 1) > 1e-6:
        s = int(np.argmin(f))
        worst = "" if (f > 0).all() else f" and {f[s]:g} at {names[s] if names else f'client {s}'}"
        raise InputError(f"probs must be positive and sum to 1; got sum {f.sum():.6g} over {clients} clients{worst}")
    return f / f.sum()


def stack_surrogates(surrogates: Any, names: Sequence[str], theta: Theta) -> Gaussian:
    """Check the surrogates given and stack them; None is q ≡ 1 for every client."""
    S, d = len(names), len(theta)
    if surrogates is None:
        return Gaussian(put(np.zeros((S, d)), theta.dtype))
    if not isinstance(surrogates, Gaussian):
        if not isinstance(surrogates, list | tuple):
            raise InputError(
                "surrogates must be a list of fsgld.Gaussian, one a client (see fsgld.fit);"
                f" got {type(surrogates).__name__} {brief(surrogates, 40)}"
            )
        if len(surrogates) != S:
            raise InputError(f"got {len(surrogates)} surrogates for {S} clients; give one each")
        for q, name in zip(surrogates, names, strict=True):
            _check_form(q, name, d)
        surrogates = Gaussian.stack(surrogates)
    shapes = surrogates.shift.shape, None if surrogates.precision is None else surrogates.precision.shape
    if shapes[0] != (S, d) or shapes[1] not in (None, (S, d), (S, d, d)):
        raise InputError(
            f"stacked surrogates must have a shift of shape {(S, d)} (clients, parameters), and a precision of"
            f" that shape or {(S, d, d)}; got {shapes[0]} and {shapes[1]}"
        )
    finite = np.all([np.isfinite(leaf).reshape(S, -1).all(1) for leaf in jax.tree.leaves(surrogates)], axis=0)
    if not finite.all():
        raise InputError(f"{names[int(np.argmin(finite))]}: the surrogate holds NaN or infinite numbers; fit it again")
    if surrogates.kind == "dense":
        P = np.asarray(surrogates.precision)
        skew = np.abs(P - P.swapaxes(1, 2)).max((1, 2)) > 1e-3 * np.abs(P).max((1, 2))
        if skew.any():
            raise InputError(
                f"{names[int(np.argmax(skew))]}: the surrogate's precision is not symmetric; give the precision"
                " itself, not a factor of it"
            )
    in_place: Any = lambda leaf: isinstance(leaf, jax.Array) and leaf.dtype == theta.dtype  # noqa: E731
    return jax.tree.map(lambda leaf: leaf if in_place(leaf) else put(leaf, theta.dtype), surrogates)


def _check_form(q: Any, name: str, d: int) -> None:
    """Check one client's surrogate: type and size."""
    if not isinstance(q, Gaussian):
        raise InputError(f"{name}: the surrogate must be an fsgld.Gaussian; got {type(q).__name__} {brief(q, 40)}")
    if not all(hasattr(leaf, "shape") for leaf in (q.shift, np.zeros(0) if q.precision is None else q.precision)):
        raise InputError(f"{name}: the surrogate holds lists; give arrays, or use fsgld.Gaussian.from_precision")
    precision = None if q.precision is None else q.precision.shape
    if q.shift.shape != (d,) or precision not in (None, (d,), (d, d)):
        raise InputError(
            f"{name}: the surrogate has shift of shape {q.shift.shape} and precision of shape"
            f" {precision}; the model has {d} parameters, so ({d},) and ({d}, {d}) or ({d},) are needed"
        )
