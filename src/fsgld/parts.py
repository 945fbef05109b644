"""The parts of a run with all defaults filled in: surrogates, probabilities, coordinates, likelihood slot, anchor."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from fsgld import newton
from fsgld.checks import check_auto, check_dynamics, check_probs, check_size, stack_surrogates
from fsgld.derivatives import all_clients, prior_taylor
from fsgld.dynamics import Dynamics, whitened
from fsgld.errors import InputError
from fsgld.likelihood import Likelihood, Memo, control_variate, plain
from fsgld.model import FlatModel, Model, Theta, as_theta
from fsgld.model_checks import check_finite_at
from fsgld.rows import Shards
from fsgld.surrogates import Gaussian


class Parts(NamedTuple):
    """What a run is made of."""

    surrogates: Gaussian  # a stack, one a client
    approximation: Gaussian | None  # prior × q; None if the surrogates have no curvature
    dynamics: Dynamics
    likelihood: Likelihood
    anchor: Theta  # the control variate's
    probs: np.ndarray  # f_s
    shares: np.ndarray | None  # each client's part in the information about θ, where that can be said
    mode: newton.Mode | None  # found on the way, if surrogates are "auto"
    words: str  # where the surrogates came from
    asked_probs: Any  # as the user gave them

    @property
    def centre(self) -> Theta:
        """The mean of prior × q, which is the mode if that was searched for."""
        if self.mode is not None:
            return self.mode.theta
        assert self.approximation is not None
        return self.approximation.mean


def choose_parts(
    model: Model, flat: FlatModel, theta: Theta, table: Shards, surrogates: Any, dynamics: Dynamics | None,
    likelihood: Likelihood | None, probs: Any,
) -> Parts:  # fmt: skip
    """Fill in the defaults: surrogates at the mode; with a curvature, whitened dynamics and control variates."""
    mode = None
    if isinstance(surrogates, str):
        if surrogates != "auto":
            raise InputError(f'surrogates must be "auto", None or a list of fsgld.Gaussian; got {surrogates!r}')
        check_auto(len(theta))
        mode = newton.find_mode(flat, theta, table)
    stack = mode.surrogates if mode else stack_surrogates(surrogates, table.names, theta)
    if stack.kind == "linear":  # no curvature in it: neither coordinates nor a mean
        chosen, approximation = check_dynamics(dynamics, theta), None
        words = "none (DSGLD)" if surrogates is None else "given, linear"
    else:
        chosen, approximation = _choose_dynamics(dynamics, flat, mode.theta if mode else theta, stack.total())
        words = _words(mode) if mode else f"given, {stack.kind}"
    likelihood = likelihood or (plain if stack.kind == "linear" else control_variate)
    anchor = choose_anchor(likelihood, model, theta, mode, approximation)
    shares = information_shares(stack, approximation)
    f = choose_probs(probs, shares, table)
    return Parts(stack, approximation, chosen, likelihood, anchor, f, shares, mode, words, probs)


def with_mode(flat: FlatModel, parts: Parts, table: Shards, mode: newton.Mode) -> Parts:
    """Put other surrogates of the "auto" kind in place of the ones that there are, and all that follows from them."""
    approximation = prior_taylor(flat, mode.theta, mode.surrogates.kind) + mode.surrogates.total()
    shares = information_shares(mode.surrogates, approximation)
    return parts._replace(
        surrogates=mode.surrogates, approximation=approximation, shares=shares, mode=mode, words=_words(mode),
        dynamics=parts.dynamics.with_precision(np.asarray(approximation.precision, float)),
        anchor=parts.anchor if parts.likelihood.anchor is not None else mode.theta,
        probs=choose_probs(parts.asked_probs, shares, table),
    )  # fmt: skip


def _words(mode: newton.Mode) -> str:
    """Say where "auto" surrogates come from."""
    return f"auto: {mode.how}, {mode.sweeps} sweeps"


def _choose_dynamics(
    dynamics: Dynamics | None, flat: FlatModel, theta: Theta, total: Gaussian
) -> tuple[Dynamics, Gaussian]:
    """Fill in the default dynamics and the coordinates of `whitened`; give prior × q as well."""
    dynamics = check_size(whitened() if dynamics is None else dynamics, theta)
    approximation = prior_taylor(flat, theta, total.kind) + total
    if dynamics.needs_precision:
        dynamics = dynamics.with_precision(np.asarray(approximation.precision, float))
    return dynamics, approximation


def choose_anchor(
    likelihood: Likelihood, model: Model, theta: Theta, mode: newton.Mode | None, approximation: Gaussian | None
) -> Theta:
    """Choose the control variate's anchor: the user's, the mode, the mean of prior × q, or init."""
    if likelihood.anchor is not None:
        return as_theta(model, likelihood.anchor, "anchor").astype(theta.dtype)
    if mode is not None:
        return mode.theta
    try:
        return approximation.mean.astype(theta.dtype) if approximation is not None else theta
    except InputError:
        return theta


def information_shares(surrogates: Gaussian, approximation: Gaussian | None) -> np.ndarray | None:
    """Give tr(MΛ_s)/Σ tr(MΛ_s), a client's part in what the data say; None where that is not a share."""
    if approximation is None:
        return None
    Λ = np.asarray(surrogates.precision, float)
    P = np.asarray(approximation.precision, float)
    if P.ndim == 1:
        traces = (Λ / P).sum(1) if (P > 0).all() else None
    else:
        try:
            M = approximation.covariance_float64()
        except InputError:
            return None
        traces = np.einsum("ij,sji->s", M, Λ)
    return traces / traces.sum() if traces is not None and traces.sum() > 0 else None


def choose_probs(probs: Any, shares: np.ndarray | None, table: Shards) -> np.ndarray:
    """Choose f_s: what was given, equal ones (None), or "auto".

    "auto" is a client's share of the information, so that its drift stays close to the posterior's; at least
    a tenth of an equal part, because 1/f_s multiplies its noise. Without shares it is equal.
    """
    if not isinstance(probs, str):
        return check_probs(probs, len(table), table.names)
    if probs != "auto":
        raise InputError(f'probs must be "auto", None for equal ones, or one number a client; got {probs!r}')
    if shares is None:
        return check_probs(None, len(table))
    f = np.maximum(shares, 0.1 / len(table))
    return f / f.sum()


def make_memos(likelihood: Likelihood, flat: FlatModel, anchor: Theta, table: Shards) -> Memo:
    """Let every client compute what its likelihood slot keeps."""
    if likelihood.name == plain.name:
        return ()
    check_finite_at(flat, anchor, table, "the control variate's anchor")
    _, totals, _ = all_clients(flat, anchor, table)
    return jax.vmap(likelihood.memo, in_axes=(None, 0))(anchor, totals)
