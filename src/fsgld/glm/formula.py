"""A formula, taken apart and checked before any row is looked at.

`formulaic` reads the formula. What it would evaluate as Python is checked first: only columns, numbers, arithmetic
and the functions below, since a site must not run what somebody else wrote. Functions that learn from the data
(`center`, `scale`) take means and sds that all sites agree on; those that would need more than sums are refused.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from formulaic import Formula
from formulaic.utils.code import format_expr

from fsgld.errors import InputError, brief

PLAIN = {
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "exp": np.exp, "expm1": np.expm1,
    "sqrt": np.sqrt, "abs": np.abs, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
}  # fmt: skip
LEARNS = ("center", "scale")  # from agreed means and sds
NODES = (
    ast.Expression, ast.Name, ast.Load, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Compare,
    ast.cmpop, ast.BoolOp, ast.boolop, ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Attribute,
)  # fmt: skip
REFUSED = {
    "cr": "cubic splines need quantiles of all rows; use bs(x, knots=[...], lower_bound=..., upper_bound=...)",
    "lag": "rows have no order here; make the lagged column beforehand",
    "hashed": "use the column itself, as a category",
    "standardize": "use scale(x)",
}
REFUSED |= dict.fromkeys(("cs", "cc", "te"), REFUSED["cr"])


class Parsed(NamedTuple):
    """What a formula asks for."""

    text: str
    outcome: str  # an expression, as a rule the name of a column
    terms: tuple[Any, ...]  # formulaic's, without the offset
    offset: str | None  # an expression
    intercept: bool
    variables: tuple[str, ...]  # all columns that are used
    predictors: tuple[str, ...]  # those without which there is no prediction
    categories: dict[str, str]  # from a factor, "C(cp)", to its column
    learns: dict[str, tuple[str, str]]  # from a call, "center(age)", to its function and what it is applied to


def parse(text: str, offset: str | None = None, trials: str | None = None) -> Parsed:
    """Take a formula apart; refuse what cannot be read, or what could not be agreed across sites."""
    if not isinstance(text, str) or "~" not in text:
        raise InputError(f'the formula must read "outcome ~ predictors"; got {brief(text)}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            formula = Formula(text)
            left, right = list(formula.lhs), list(formula.rhs)
            assert len(left) == 1 and len(left[0].factors) == 1 and all(hasattr(term, "factors") for term in right)
            assert left[0].factors[0].eval_method.value != "literal"
        except AssertionError:
            raise InputError(
                f'the formula {brief(text)} must have one outcome and one set of predictors: "y ~ a + b"'
            ) from None
        except Exception as error:
            words = " ".join(str(error).split("\n")[0].split()) or type(error).__name__
            raise InputError(f"the formula {brief(text)} cannot be read: {brief(words, 150).strip(chr(39))}") from None
    outcome = left[0].factors[0].expr
    offsets = [term for term in right if any(_called(f.expr) == "offset" for f in term.factors)]
    terms = tuple(term for term in right if term not in offsets)
    inside = [_inside_offset(term) for term in offsets] + ([offset] if offset else [])
    exprs = [outcome, *inside, *([trials] if trials else [])]
    exprs += [f.expr for term in terms for f in term.factors if f.eval_method.value != "literal"]
    lookups = {f.expr for term in (*terms, *left) for f in term.factors if f.eval_method.value == "lookup"}
    trees = {expr: None if expr in lookups else _tree(expr, text) for expr in dict.fromkeys(exprs)}
    names = {expr: [expr] if tree is None else list(_names(tree)) for expr, tree in trees.items()}
    variables = dict.fromkeys(name for found in names.values() for name in found)
    predictors = dict.fromkeys(name for expr in exprs[1:] if expr != trials for name in names[expr])
    if again := set(names[outcome]) & {name for term in terms for f in term.factors for name in names.get(f.expr, [])}:
        raise InputError(f"{brief(again.pop())} is the outcome of {brief(text)} and among its predictors; take it out")
    calls = [call for tree in trees.values() if tree for call in ast.walk(tree) if isinstance(call, ast.Call)]
    learns = dict(_learns(call) for call in calls if _name(call) in LEARNS)
    categories = dict(_category(expr, tree) for expr, tree in trees.items() if tree and _called(expr) == "C")
    return Parsed(
        text, outcome, terms, " + ".join(f"({each})" for each in inside) or None,
        any(str(term) == "1" for term in terms), tuple(variables), tuple(predictors), categories,
        learns,
    )  # fmt: skip


def _tree(expr: str, text: str) -> ast.Expression:
    """Read an expression as Python and check every part of it."""
    try:
        tree = ast.parse(expr, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise InputError(
            f"{brief(expr)} in the formula {brief(text)} cannot be read; rename columns with odd names, or make the"
            " column beforehand"
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            _check_call(node)
        elif isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id == "contr" and node.attr.isidentifier()):
                raise InputError(f"{brief(ast.unparse(node))} cannot be used in a formula; make the column beforehand")
        elif not isinstance(node, NODES):
            raise InputError(f"{brief(ast.unparse(node))} cannot be used in a formula; make the column beforehand")
    return tree


def _check_call(call: ast.Call) -> None:
    """Check a function and, where it would learn from the data, its arguments."""
    name, words = _name(call), brief(ast.unparse(call))
    given = {keyword.arg for keyword in call.keywords}
    if name in REFUSED:
        raise InputError(f"{words} cannot be agreed across sites: {REFUSED[name]}")
    if name not in (*PLAIN, *LEARNS, "I", "C", "bs", "poly", "offset") and not name.startswith("contr."):
        known = ", ".join([*PLAIN, *LEARNS, "I", "C", "bs", "poly"])
        raise InputError(f"the function {brief(name)} is not known; formulas may use {known}")
    if name == "bs" and not {"knots", "lower_bound", "upper_bound"} <= given:
        raise InputError(
            f"{words} would take its knots from the rows of each site; give knots=[...], lower_bound and upper_bound"
        )
    if name == "poly" and "raw" not in given:
        raise InputError(f"{words} would be orthogonal at one site only; give raw=True, as poly(scale(x), 2, raw=True)")
    if name in LEARNS:
        inner = [_name(node) for arg in call.args for node in ast.walk(arg) if isinstance(node, ast.Call)]
        if len(call.args) != 1 or call.keywords or any(each not in PLAIN for each in inner):
            raise InputError(f"{words}: give {name} one column or expression, and no options")


def _inside_offset(term: Any) -> str:
    """Give what is inside offset(...)."""
    call = ast.parse(term.factors[0].expr, mode="eval").body
    if len(term.factors) != 1 or not isinstance(call, ast.Call) or len(call.args) != 1 or call.keywords:
        raise InputError(f"{brief(str(term))}: an offset stands alone, as offset(log(exposure))")
    return ast.unparse(call.args[0])


def _learns(call: ast.Call) -> tuple[str, tuple[str, str]]:
    """Give the name under which formulaic keeps what a call has learnt, its function and its argument."""
    return format_expr(call), (_name(call), ast.unparse(call.args[0]))


def _category(expr: str, tree: ast.Expression) -> tuple[str, str]:
    """Find the column of C(column, ...)."""
    assert isinstance(tree.body, ast.Call)
    if not tree.body.args or not isinstance(tree.body.args[0], ast.Name):
        raise InputError(f"{brief(expr)}: C takes the name of a column; make the column beforehand")
    if any(keyword.arg == "levels" for keyword in tree.body.keywords):
        raise InputError(f"{brief(expr)}: levels are agreed across sites; leave the argument out")
    return expr, tree.body.args[0].id


def _called(expr: str) -> str:
    """Name the function that an expression calls at the outside; "" if there is none."""
    try:
        body = ast.parse(expr, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ""
    return _name(body) if isinstance(body, ast.Call) else ""


def _name(call: ast.Call) -> str:
    """Name the function of a call."""
    return ast.unparse(call.func)


def _names(tree: ast.AST) -> Iterator[str]:
    """Give the columns of an expression: names that are neither called nor a module."""
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    modules = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in functions | modules:
            yield node.id
