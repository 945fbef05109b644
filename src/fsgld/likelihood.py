"""The likelihood slot: how a client estimates ∇log p(x_s | θ) from a mini-batch B of size m.

    estimate = (N_s/m) Σ_{i∈B} w_i ∇log p(x_i | θ) + offset(B)

`plain` has no offset. `control_variate` has the offset G_s(a) − (N_s/m) Σ_{i∈B} w_i ∇log p(x_i | a),
where a is an anchor and G_s(a) = Σ_i ∇log p(x_i | a) is computed once and kept at the client. Weights w_i are 1
where rows are drawn evenly, and 1/(N_s p_i) where row i is drawn with probability p_i (`fsgld.lots`). All are
unbiased. The offset does not depend on θ, so it is computed for many steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Array

from fsgld.model import FlatModel, Params, Row, Theta

Memo = Any


@dataclass(frozen=True)
class Likelihood:
    """An estimator of the client's likelihood gradient: what the client keeps, and the offset."""

    name: str
    memo: Callable[[Theta, Theta], Memo]
    offset: Callable[[FlatModel, Memo, Row, Array, Array | None], Array | None]
    anchor: Params | None = None

    def at(self, anchor: Params) -> Likelihood:
        """Choose the anchor (a pytree of parameters) instead of the default."""
        return replace(self, anchor=anchor)

    def gradient(
        self, model: FlatModel, theta: Theta, batch: Row, scale: Array, offset: Array | None, w: Array | None = None
    ) -> Theta:
        """Estimate ∇log p(x_s | θ); scale is N_s/m."""
        estimate = scale * model.grad_log_likelihood(theta, batch, w)
        return estimate if offset is None else estimate + offset


def _plain_offset(model: FlatModel, memo: Memo, batch: Row, scale: Array, w: Array | None = None) -> None:
    return None


def _control_variate_offset(model: FlatModel, memo: Memo, batch: Row, scale: Array, w: Array | None = None) -> Theta:
    anchor, total = memo
    return total - scale * model.grad_log_likelihood(anchor, batch, w)


plain = Likelihood("plain", lambda anchor, total: (), _plain_offset)
"""The mini-batch sum, as in the paper: (N_s/m) Σ_{i∈B} ∇log p(x_i | θ)."""

control_variate = Likelihood("control_variate", lambda anchor, total: (anchor, total), _control_variate_offset)
"""The difference to an anchor a: G_s(a) + (N_s/m) Σ_{i∈B} [∇log p(x_i | θ) − ∇log p(x_i | a)].

The default anchor is the mean of prior × q where that is a density, else the start of the chain.
`control_variate.at(params)` chooses another.
"""
