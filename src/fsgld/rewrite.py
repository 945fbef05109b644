"""Gradients rewritten for a CPU: the same values from equations that XLA computes without calling a library.

XLA computes a small matrix product itself where it has the form (m × k)·(k × n) and is not shared among threads. For
any other, say the Aᵀ B of a weight's gradient, it calls a library, which takes longer to prepare fifty rows than to
multiply them. `rewrite` transposes factors first. It also adds rows up in short stretches, puts a vector together part
by part and writes out which entry a label picks, because XLA has slow general code for these. `suits` says whether that
pays: whether XLA computes all products then. Such a program is compiled with options of its own
(`fsgld.programs.OWN_PRODUCTS`): no products shared among threads, no library for sums, the CPU's longest vectors, and
less work for the compiler. No other program has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params
from jaxtyping import Array

Equation = Any  # a JaxprEqn, whose types say less about its variables than is known

INLINED = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"}
PRODUCTS = {"dot_general", "conv_general_dilated"}
STRAIGHT = (((1,), (0,)), ((), ()))  # (m × k)·(k × n) in the words of lax.dot_general
STRETCH = 31  # rows; XLA takes sums over more apart in a slow way


def rewrite(function: Callable) -> Callable:
    """Compute the same by other equations, where there is a rule; rounding differs. Not to be differentiated."""

    def same(*args: Any) -> Any:
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        results = _evaluate(traced.jaxpr, traced.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return same


def suits(function: Callable, *args: Any) -> bool:
    """Whether XLA computes every product of a rewritten function itself; arguments may be mere shapes.

    A product with a vector does not count as one that it does: long vectors are slow with `OWN_PRODUCTS`.
    """
    try:
        equations = list(_equations(jax.make_jaxpr(rewrite(function))(*args).jaxpr))
    except Exception:  # equations that cannot be taken one by one; what is wrong with a function shows elsewhere
        return False
    return all(_is_small(eqn) for eqn in equations if eqn.primitive.name in PRODUCTS)


def _evaluate(jaxpr: Jaxpr, consts: list, args: list) -> list:
    """Evaluate equation by equation, by a rule where one applies."""
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    equations: list[Equation] = jaxpr.eqns
    made = {eqn.outvars[0]: eqn for eqn in equations if eqn.outvars}

    def read(variables: Iterable) -> list[Any]:
        return [v.val if isinstance(v, Literal) else values[v] for v in variables]

    for eqn in equations:
        name, given = eqn.primitive.name, read(eqn.invars)
        maker = made.get(eqn.invars[0]) if name == "transpose" and eqn.params["permutation"] == (1, 0) else None
        if maker is not None and _is_product(maker):
            a, b = read(maker.invars)
            out = [_product(maker, a, b, turn=True)]
        elif name in RULES and RULES[name][0](eqn):
            out = [RULES[name][1](eqn, *given)]
        elif name in INLINED:
            inner = eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"]
            out = _evaluate(inner.jaxpr, inner.consts, given)
        else:
            result = eqn.primitive.bind(*given, **eqn.params)
            out = result if eqn.primitive.multiple_results else [result]
        values.update(zip(eqn.outvars, out, strict=True))
    return read(jaxpr.outvars)


def _is_product(eqn: Equation) -> bool:
    """Whether an equation multiplies two matrices."""
    if eqn.primitive.name != "dot_general":
        return False
    (axes, _), (batch, _) = eqn.params["dimension_numbers"]
    return [v.aval.ndim for v in eqn.invars] == [2, 2] and len(axes) == 1 and not batch


def _product(eqn: Equation, a: Array, b: Array, turn: bool = False) -> Array:
    """Multiply, each factor transposed if its common axis is not where it should be; turned, (A B)ᵀ = Bᵀ Aᵀ."""
    ((axis_a,), (axis_b,)), _ = eqn.params["dimension_numbers"]
    if turn:
        a, b, axis_a, axis_b = b, a, axis_b, axis_a
    left, right = a if axis_a == 1 else a.T, b if axis_b == 0 else b.T
    return jax.lax.dot_general(left, right, **(eqn.params | {"dimension_numbers": STRAIGHT}))


def _is_sum_of_rows(eqn: Equation) -> bool:
    """Whether an equation adds up the rows of a real matrix, too many for one stretch and not very many."""
    x = eqn.invars[0].aval
    rows = x.ndim == 2 and tuple(eqn.params["axes"]) == (0,) and STRETCH < x.shape[0] <= 8 * STRETCH
    return rows and jnp.issubdtype(x.dtype, jnp.floating)


def _sum_of_rows(eqn: Equation, x: Array) -> Array:
    parts = -(-len(x) // STRETCH)
    length = -(-len(x) // parts)
    return reduce(add, (jnp.sum(x[i * length : (i + 1) * length], axis=0) for i in range(parts)))


def _is_vector(eqn: Equation) -> bool:
    return eqn.outvars[0].aval.ndim == 1


def _put_together(eqn: Equation, *parts: Array) -> Array:
    """Write one part after the other into a vector."""
    whole, begin = jnp.zeros(eqn.outvars[0].aval.shape, eqn.outvars[0].aval.dtype), 0
    for part in parts:
        whole = jax.lax.dynamic_update_slice(whole, part, (begin,))
        begin += len(part)
    return whole


def _is_one_of_each_row(eqn: Equation) -> bool:
    """Whether an equation adds one number to one entry of each row: the gradient of `logits[y]`."""
    at, (operand, index, update) = eqn.params["dimension_numbers"], (v.aval for v in eqn.invars)
    axes = at.operand_batching_dims, at.scatter_indices_batching_dims, at.scatter_dims_to_operand_dims
    one = operand.ndim == 2 and index.size == update.size == operand.shape[0]
    whole = jnp.can_cast(index.dtype, jnp.int64) and index.dtype != jnp.uint32  # without x64 no other type holds it
    return one and tuple(map(tuple, axes)) == ((0,), (0,), (1,)) and whole


def _one_of_each_row(eqn: Equation, operand: Array, index: Array, update: Array) -> Array:
    """Add where the column's number is the index; what lies beyond is the nearest column or, by mode, none."""
    index = index.astype(jnp.promote_types(index.dtype, jnp.int32)).reshape(-1, 1)
    if eqn.params["mode"] == jax.lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, operand.shape[1] - 1)
    columns = jax.lax.broadcasted_iota(index.dtype, operand.shape, 1)
    return operand + jnp.where(columns == index, update.reshape(-1, 1), jnp.zeros((), update.dtype))


RULES: dict[str, tuple[Callable[[Equation], bool], Callable[..., Array]]] = {
    "dot_general": (_is_product, _product),
    "reduce_sum": (_is_sum_of_rows, _sum_of_rows),
    "concatenate": (_is_vector, _put_together),
    "scatter-add": (_is_one_of_each_row, _one_of_each_row),
}


def _equations(jaxpr: Jaxpr) -> Iterator[Equation]:
    """Go through the equations that a function needs, and those of functions that it calls or loops over."""
    needed = set(filter(_is_variable, jaxpr.outvars))
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars) or eqn.effects:
            needed.update(filter(_is_variable, eqn.invars))
            yield eqn
            for inner in jaxprs_in_params(eqn.params):
                yield from _equations(inner)


def _is_variable(v: Any) -> bool:
    return not isinstance(v, Literal)


def _is_small(eqn: Equation) -> bool:
    """Whether XLA computes a product itself unless threads share it (`CanEmitTiledLlvmIrGemm` in its source)."""
    if not _is_product(eqn) or eqn.params["dimension_numbers"] != STRAIGHT:
        return False
    (m, k), (_, n) = (v.aval.shape for v in eqn.invars)
    floating = eqn.outvars[0].aval.dtype in (jnp.float32, jnp.float64)
    return floating and k <= 128 and min(m, n) <= 32 and max(m, n) <= 128
