"""Bad input gets one clear sentence: what was wrong, what was given, what to do, which client.

Every case misuses the public API and lists words that its message must hold. Users run without
beartype, so the type checks of tests/conftest.py are off in this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pandas as pd
import pytest

import fsgld
from fsgld import schedules

# What a message must never hold: it is for a statistician, not for a developer of JAX
INTERNALS = ("PyTreeDef", "jaxlib", "ShapeDtypeStruct", "Traced<", "site-packages", "object at 0x")
LONGEST = 400  # characters: a sentence or two


@pytest.fixture(autouse=True)
def without_beartype() -> Iterator[None]:
    """Switch run-time type checks off: what users see is the library's own message."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def check(message: str, words: tuple[str, ...]) -> None:
    """Check that a message is one line, short, in the user's words, and complete."""
    assert "\n" not in message, message
    assert len(message) <= LONGEST, message
    for internal in INTERNALS:
        assert internal not in message, message
    for word in words:
        assert word in message, f"{word!r} is missing in: {message}"


# --- models and data that are right; the cases below spoil one thing each


def normal_prior(params: Any) -> Any:
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def flat_prior(params: Any) -> Any:
    return jnp.zeros(())


def normal_likelihood(mu: Any, x: Any) -> Any:
    return -0.5 * jnp.sum((x - mu) ** 2)


def logistic_likelihood(w: Any, row: Any) -> Any:
    x, y = row
    return y * (x @ w) - jnp.logaddexp(0.0, x @ w)


def linear_likelihood(w: Any, row: Any) -> Any:
    x, y = row
    return -0.5 * (y - x @ w) ** 2


def gamma_likelihood(params: Any, x: Any) -> Any:
    return params["shape"] * jnp.log(x) - x


RNG = np.random.default_rng(2021)
ROWS = RNG.normal(size=(20, 2))
SHARDS = [ROWS[:8], ROWS[8:]]
NAMED = {"Oslo": ROWS[:8], "Bergen": ROWS[8:]}
WITH_INTERCEPT = np.column_stack([np.ones(20), ROWS[:, 0]])
ONE_CLASS = {
    "Oslo": (WITH_INTERCEPT[:8], np.array([0.0, 1, 1, 0, 1, 0, 0, 1])),
    "Bergen": (WITH_INTERCEPT[8:], np.ones(12)),
}
WIDE = (RNG.normal(size=(2, 3)), RNG.normal(size=2))  # fewer rows than parameters

MEAN = fsgld.Model(normal_prior, normal_likelihood, np.zeros(2))
IMPROPER = fsgld.Model(flat_prior, normal_likelihood, np.zeros(2))
LOGISTIC = fsgld.Model(normal_prior, logistic_likelihood, np.zeros(2))
LINEAR = fsgld.Model(normal_prior, linear_likelihood, np.zeros(3))
GAMMA = fsgld.Model(normal_prior, gamma_likelihood, {"shape": np.ones(())})

UNIT = fsgld.Gaussian.from_precision(jnp.zeros(2), jnp.eye(2))
LINEAR_Q = fsgld.Gaussian(jnp.ones(2))
NAN_Q = fsgld.Gaussian(jnp.array([0.0, jnp.nan]), jnp.eye(2))


def run(data: Any = SHARDS, surrogates: Any = None, model: Any = MEAN, **changes: Any) -> Any:
    """Sample with settings that are right, but for the changes."""
    settings: dict[str, Any] = {
        "dynamics": fsgld.langevin(1e-3), "batch_size": 2, "local_steps": 2, "rounds": 16,
        "chains": 1,
    }  # fmt: skip
    return fsgld.sample(model, data, surrogates, **(settings | changes))


def run32(data: Any) -> Any:
    """Sample in single precision, JAX's default."""
    with jax.enable_x64(False):
        return run(data)


def spoiled(row: int, value: float, rows: int = 12) -> np.ndarray:
    """Give clean rows but for one value."""
    data = np.zeros((rows, 2))
    data[row, 1] = value
    return data


def model(**changes: Any) -> fsgld.Model:
    """Give a model with something replaced."""
    given = {"log_prior": normal_prior, "log_likelihood": normal_likelihood, "init": np.zeros(2)}
    return fsgld.Model(**(given | changes))


class Case(NamedTuple):
    """A misuse, and the words that its message must hold."""

    name: str
    misuse: Callable[[], Any]
    words: tuple[str, ...]


def case(name: str, misuse: Callable[[], Any], *words: str) -> Case:
    return Case(name, misuse, words)


# --- the clients' data

DATA = [
    case("keys of several kinds", lambda: run({"Oslo": {"a": ROWS, 1: ROWS}}), "Oslo", "cannot be read", "as keys"),
    case("random keys", lambda: run([jax.random.split(jax.random.key(0), 4)]), "client 0", "cannot be read"),
    case("whole numbers at one client", lambda: run({"Oslo": ROWS, "Bergen": ROWS.astype(int)}),
         "Bergen", "int64", "float64", "of one type"),
    case("text in a data frame", lambda: run({"Oslo": pd.DataFrame({"a": [1.0, 2.0], "b": ["u", "v"]})}),
         "Oslo", "column b", "numbers or booleans"),
    case("no shards", lambda: run([]), "shards", "non-empty list", "[]"),
    case("no shards, as a dict", lambda: run({}), "shards", "non-empty list", "{}"),
    case("None", lambda: run(None), "shards", "list of data sets", "None"),
    case("one array", lambda: run(ROWS), "list of data sets", "array", "(20, 2)", "[data]"),
    case("one JAX array", lambda: run(jnp.asarray(ROWS)), "list of data sets", "(20, 2)", "[data]"),
    case("a tuple", lambda: run((ROWS, ROWS)), "list of data sets", "tuple", "[data]"),
    case("a data frame", lambda: run(pd.DataFrame(ROWS)), "list of data sets", "DataFrame", "[data]"),
    case("a generator", lambda: run(x for x in SHARDS), "list of data sets", "generator"),
    case("a path", lambda: run("data.csv"), "list of data sets", "'data.csv'"),
    case("columns as clients", lambda: run({"x": ROWS, "y": ROWS[:, 0]}), "y", "(2,)", "()"),
    case("empty shard", lambda: run([ROWS, ROWS[:0]]), "client 1", "no rows", "leave it out"),
    case("empty named shard", lambda: run({"Oslo": ROWS[:0]}), "Oslo", "no rows", "leave it out"),
    case("shard without arrays", lambda: run([ROWS, {}]), "client 1", "no array", "{}"),
    case("shard that is None", lambda: run([ROWS, None]), "client 1", "no array", "None"),
    case("shard of no dimension", lambda: run([np.array(1.0)]), "client 0", "scalar", "array"),
    case("shard of Python floats", lambda: run([[1.0, 2.0]]), "client 0", "scalar", "array"),
    case(
        "other structure",
        lambda: run([{"x": ROWS, "y": ROWS}, {"x": ROWS, "z": ROWS}]),
        "client 1", "client 0", "y", "z", "same columns",
    ),
    case(
        "array beside dict",
        lambda: run({"Oslo": {"x": ROWS}, "Bergen": ROWS}),
        "Oslo", "Bergen", "x", "same columns",
    ),
    case(
        "other trailing shape",
        lambda: run({"Oslo": ROWS, "Bergen": ROWS[:, :1]}),
        "Bergen", "(1,)", "Oslo", "(2,)", "same columns",
    ),
    case(
        "other dtype",
        lambda: run([ROWS, ROWS.astype(np.float32)]),
        "client 1", "float32", "client 0", "float64", "same",
    ),
    case(
        "other dtype in a column",
        lambda: run([(ROWS, np.ones(20)), (ROWS, np.ones(20, int))], model=LOGISTIC),
        "client 1", "column 1", "int64", "client 0", "float64",
    ),
    case(
        "columns of unequal length",
        lambda: run({"Oslo": {"x": ROWS, "y": np.ones(19)}}),
        "Oslo", "column y", "19 rows", "column x", "20",
    ),
    case("text", lambda: run([ROWS, np.array(["a", "b"])]), "client 1", "<U1", "numbers"),
    case("objects", lambda: run([np.array([1, "a"], object)]), "client 0", "object", "numbers"),
    case(
        "text column",
        lambda: run({"Oslo": {"age": ROWS[:2], "sex": np.array(["f", "m"])}}),
        "Oslo", "column sex", "<U1", "numbers",
    ),
    case(
        "data frame with text",
        lambda: run([pd.DataFrame({"age": [1.0, 2.0], "sex": ["f", "m"]})]),
        "client 0", "object", "numbers",
    ),
    case(
        "data frame with missing whole numbers",
        lambda: run([dict(pd.DataFrame({"age": pd.array([1, None], "Int64")}))]),
        "client 0", "column age",
    ),
    case("dates", lambda: run([np.array(["2021-07-27"], "M8[D]")]), "client 0", "datetime64"),
    case("complex numbers", lambda: run([ROWS + 1j]), "client 0", "complex128", "numbers"),
    case(
        "masked values",
        lambda: run([ROWS, np.ma.masked_greater(ROWS, 1.0)]),
        "client 1", "masked", "remove or fill",
    ),
    case("NaN", lambda: run([ROWS, spoiled(3, np.nan)]), "client 1", "row 3", "nan", "remove"),
    case("infinity", lambda: run([spoiled(11, -np.inf)]), "client 0", "row 11", "-inf", "remove"),
    case(
        "NaN in a JAX array",
        lambda: run([ROWS, jnp.asarray(spoiled(0, np.nan))]),
        "client 1", "row 0", "nan",
    ),
    case(
        "NaN far down",
        lambda: run([ROWS, spoiled(65536 + 70, np.nan, 70000)]),
        "client 1", "row 65606", "nan", "remove",
    ),
    case(
        "NaN at the end of a block",
        lambda: run([spoiled(65535, np.inf, 65537)]),
        "client 0", "row 65535", "inf",
    ),
    case(
        "NaN in a column",
        lambda: run([{"x": ROWS, "y": ROWS}, {"x": ROWS[:12], "y": spoiled(7, np.nan)}]),
        "client 1", "column y", "row 7", "nan", "remove",
    ),
    case(
        "NaN at a named client",
        lambda: run({"Oslo": ROWS, "Bergen": spoiled(5, np.nan)}),
        "Bergen", "row 5", "nan", "remove",
    ),
    case(
        "NaN in a named client's column",
        lambda: run({"Oslo": {"x": spoiled(2, np.inf)}, "Bergen": {"x": ROWS}}),
        "Oslo", "column x", "row 2", "inf", "remove",
    ),
    case(
        "NaN in half precision",
        lambda: run([spoiled(4, np.nan).astype(np.float16)]),
        "client 0", "row 4", "nan",
    ),
    case(
        "too large for single precision",
        lambda: run32([ROWS, spoiled(3, 1e300)]),
        "client 1", "row 3", "1e+300", "float32",
    ),
    case(
        "whole numbers too large for 32 bits",
        lambda: run32([spoiled(1, 0).astype(int), spoiled(3, 2**40).astype(int)]),
        "client 1", "row 3", str(2**40), "int32",
    ),
    case(
        "more rows than 32 bits count",
        lambda: run([np.zeros((2**30, 0), np.int8)] * 3),
        "3221225472 rows", "2147483647",
    ),
    case("names that read alike", lambda: run({1: ROWS, "1": ROWS}), "'1'", "names", "different"),
]  # fmt: skip

# --- selection probabilities

PROBS = [
    case("zero", lambda: run(probs=[1.0, 0.0]), "probs", "positive", "0", "client 1"),
    case("negative", lambda: run(probs=[1.5, -0.5]), "probs", "positive", "-0.5", "client 1"),
    case("zero, named", lambda: run(NAMED, probs=[1.0, 0.0]), "probs", "positive", "Bergen"),
    case("sum", lambda: run(probs=[0.5, 0.4]), "probs", "sum to 1", "0.9", "2 clients"),
    case("too many", lambda: run(probs=[0.5, 0.25, 0.25]), "probs", "2 clients", "3"),
    case("one number", lambda: run(probs=1.0), "probs", "2 clients"),
    case("matrix", lambda: run(probs=np.eye(2)), "probs", "2 clients", "(2, 2)"),
    case("NaN", lambda: run(probs=[np.nan, 1.0]), "probs", "positive", "nan", "client 0"),
    case("text", lambda: run(probs=["a", "b"]), "probs", "2 clients", "'a'"),
    case("dict", lambda: run(NAMED, probs={"Oslo": 0.5, "Bergen": 0.5}), "probs", "dict"),
]

# --- the model


def age(params: Any, row: Any) -> Any:
    return -0.5 * jnp.sum((row["agee"] - params) ** 2)


def branch(params: Any, x: Any) -> Any:
    return -jnp.sum(x) if jnp.sum(x) > 0 else jnp.sum(params)


def rising(params: Any, x: Any) -> Any:
    return jnp.sum(params)


def complain(params: Any, *row: Any) -> Any:
    raise RuntimeError("the sky fell")


def chains_apart(key: Any) -> Any:
    """Start at a fine point for one key only."""
    fine = jnp.array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(0)))
    return jnp.where(fine, jnp.zeros(2), jnp.full(2, jnp.inf))


def without_gradient(params: Any, x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c < 3, lambda c: c - jnp.sum((x - params) ** 2), 0.0)


def with_numpy(params: Any, x: Any) -> Any:
    return -np.sum(np.asarray(x - params) ** 2)


MODEL = [
    case("arguments swapped", lambda: run([{"x": ROWS[:, 0]}], model=model(
        log_likelihood=lambda row, p: -(row["x"] - p["m"]) ** 2, init={"m": 0.0})),
        "log_likelihood(params, row)", "{'m': 'float64[]'}", "one row {'x': 'float64[]'}", "KeyError: 'x'", "order"),
    case("functions swapped", lambda: run(model=fsgld.Model(normal_likelihood, normal_prior, np.zeros(2))),
         "log_prior(params)", "missing 1 required"),
    case("no prior", lambda: run(model=model(log_prior=None)), "log_prior(params)", "not callable"),
    case("NumPy", lambda: run(model=model(log_likelihood=with_numpy)), "log_likelihood", "write it with jax.numpy"),
    case("a whole number", lambda: run(model=model(log_prior=lambda p: 0)), "log_prior", "0.0 and not 0"),
    case("no gradient", lambda: run(model=model(log_likelihood=without_gradient)),
         "the gradient of log_likelihood fails", "while_loop", "lax.scan"),
    case("no gradient of the prior", lambda: run(model=model(log_prior=lambda p: without_gradient(p, 0 * p))),
         "the gradient of log_prior fails"),
    case("no gradient, fit", lambda: fsgld.fit(model(log_likelihood=without_gradient), NAMED, fsgld.anchored),
         "Oslo: the fit fails", "while_loop"),
    case("empty init", lambda: run(model=model(init=np.zeros(0))), "init holds no parameter", "shape (0,)"),
    case("init of keys of several kinds", lambda: run(model=model(init={"a": 0.0, 1: 0.0})), "init cannot be read"),
    case("init whose size depends on the key", lambda: run(chains=3, model=model(
        init=lambda key: jnp.zeros(2 if not jax.random.key_data(key).any() else 3))), "init", "other shapes"),
    case("masked init", lambda: run(model=model(init=np.ma.masked_array([1.0, 2.0], [0, 1]))), "init must hold"),
    case("None", lambda: run(model=None), "model", "None", "fsgld.Model("),
    case("arguments swapped", lambda: fsgld.sample(SHARDS, MEAN), "model", "fsgld.Model("),
    case(
        "likelihood of shape (2,)",
        lambda: run(model=model(log_likelihood=lambda p, x: -((x - p) ** 2))),
        "log_likelihood", "scalar", "(2,)", "Sum",
    ),
    case(
        "likelihood of shape (1,)",
        lambda: run(model=model(log_likelihood=lambda p, x: -((x - p) ** 2).sum(keepdims=True))),
        "log_likelihood", "scalar", "(1,)", "Sum",
    ),
    case(
        "likelihood without return",
        lambda: run(model=model(log_likelihood=lambda p, x: None)),
        "log_likelihood", "scalar", "None",
    ),
    case(
        "likelihood of whole numbers",
        lambda: run(model=model(log_likelihood=lambda p, x: jnp.sum(x > p))),
        "log_likelihood", "int64", "float",
    ),
    case(
        "complex likelihood",
        lambda: run(model=model(log_likelihood=lambda p, x: jnp.sum(x - p) * 1j)),
        "log_likelihood", "complex128", "real",
    ),
    case(
        "prior of shape (2,)",
        lambda: run(model=model(log_prior=lambda p: -(p**2))),
        "log_prior", "scalar", "(2,)", "Sum",
    ),
    case(
        "likelihood raises",
        lambda: run(model=model(log_likelihood=complain)),
        "log_likelihood", "RuntimeError", "the sky fell", "float64[2]",
    ),
    case(
        "prior raises",
        lambda: run(model=model(log_prior=complain)),
        "log_prior", "RuntimeError", "the sky fell",
    ),
    case(
        "likelihood asks for a column that is not there",
        lambda: run([{"age": ROWS}], model=model(log_likelihood=age)),
        "log_likelihood", "agee", "'age'",
    ),
    case(
        "columns given as clients",
        lambda: run({"age": ROWS, "dose": ROWS}, model=model(log_likelihood=age)),
        "log_likelihood", "one row", "float64[2]",
    ),
    case(
        "likelihood takes no row",
        lambda: run(model=model(log_likelihood=lambda p: jnp.sum(p))),
        "log_likelihood", "TypeError", "argument",
    ),
    case(
        "likelihood branches on a value",
        lambda: run(model=model(log_likelihood=branch)),
        "log_likelihood", "boolean",
    ),
    case(
        "likelihood in NumPy",
        lambda: run(model=model(log_likelihood=lambda p, x: np.sum(np.asarray(p) * x))),
        "log_likelihood", "numpy",
    ),
    case(
        "likelihood is no function", lambda: run(model=model(log_likelihood=1.0)),
        "log_likelihood", "callable",
    ),
    case("complex parameters", lambda: run(model=model(init=np.zeros(2) * 1j)), "init", "complex", "real"),
    case("no parameters", lambda: run(model=model(init={})), "init", "parameter", "{}"),
    case("text parameters", lambda: run(model=model(init={"mu": "zero"})), "init", "mu", "'zero'"),
    case("init raises", lambda: run(model=model(init=complain)), "init", "RuntimeError", "the sky fell"),
    case("init takes no key", lambda: run(model=model(init=lambda: np.zeros(2))), "init", "key"),
    case(
        "init depends on the shape of the data",
        lambda: run(model=model(init=np.zeros(3))),
        "log_likelihood", "float64[2]", "(3,)",
    ),
    case("NaN init", lambda: run(model=model(init=np.array([0, np.nan]))), "prior", "init", "finite"),
    case(
        "start outside the prior",
        lambda: run(model=model(log_prior=lambda p: jnp.sum(jnp.log(p)))),
        "prior", "-inf", "not finite", "init", "support",
    ),
    case(
        "start outside the prior, for some chains",
        lambda: run(model=model(init=chains_apart), chains=2),
        "chain 0", "init", "finite",
    ),
    case(
        "prior without a gradient",
        lambda: run(model=model(log_prior=lambda p: -jnp.sqrt(jnp.sum(p**2)))),
        "prior", "gradient", "not finite", "init",
    ),
    case(
        "likelihood not finite",
        lambda: run({"Oslo": np.ones(3), "Bergen": np.array([1.0, 2.0, -3.0, 0.0])}, model=GAMMA),
        "Bergen", "row 2", "not finite", "init", "give",
    ),
    case(
        "likelihood not finite, far down",
        lambda: run([np.ones(9), np.where(np.arange(2000) == 1500, -1.0, 1.0)], model=GAMMA),
        "client 1", "row 1500", "not finite", "init",
    ),
    case(
        "likelihood without a gradient",
        lambda: run(model=model(log_likelihood=lambda p, x: -jnp.sqrt(jnp.sum(p**2)) * x[0])),
        "client 0", "gradient", "not finite", "init",
    ),
    case(
        "posterior without a mode",
        lambda: run(surrogates="auto", dynamics=None, model=model(log_prior=jnp.sum, log_likelihood=rising)),
        "mode", "proper", "prior",
    ),
    case(
        "improper posterior: one class and a flat prior",
        lambda: run([ONE_CLASS["Bergen"]], "auto", dynamics=None,
                    model=model(log_prior=flat_prior, log_likelihood=logistic_likelihood)),
        "mode", "proper", "prior",
    ),
]  # fmt: skip

# --- surrogates

SURROGATES = [
    case("lists", lambda: run(NAMED, [fsgld.Gaussian([0.0, 1.0], [1.0, 1.0])] * 2), "Oslo", "lists", "from_precision"),
    case("unknown word", lambda: run(surrogates="foo"), "surrogates", '"auto"', "None", "'foo'"),
    case(
        "wrong size",
        lambda: run(NAMED, [UNIT, fsgld.Gaussian.flat(3)]),
        "Bergen", "(3,)", "2 parameters",
    ),
    case(
        "wrong size of the precision",
        lambda: run(NAMED, [fsgld.Gaussian(jnp.zeros(2), jnp.eye(3)), UNIT]),
        "Oslo", "(3, 3)", "2 parameters",
    ),
    case("too few", lambda: run(surrogates=[UNIT]), "1 surrogates", "2 clients", "one each"),
    case("too many", lambda: run(surrogates=[UNIT] * 3), "3 surrogates", "2 clients", "one each"),
    case("none at all", lambda: run(surrogates=[]), "0 surrogates", "2 clients"),
    case("NaN", lambda: run(NAMED, [UNIT, NAN_Q]), "Bergen", "NaN", "fit it again"),
    case(
        "NaN in a stack",
        lambda: run(NAMED, fsgld.Gaussian.stack([UNIT, NAN_Q])),
        "Bergen", "NaN", "fit it again",
    ),
    case("not stacked", lambda: run(surrogates=UNIT), "(2, 2)", "(2,)", "clients"),
    case(
        "stack with a wrong precision",
        lambda: run(surrogates=fsgld.Gaussian(jnp.zeros((2, 2)), jnp.zeros((2, 3, 3)))),
        "(2, 3, 3)", "2",
    ),
    case("not Gaussian", lambda: run(NAMED, [UNIT, "x"]), "fsgld.Gaussian", "Bergen", "str"),
    case("moments", lambda: run(surrogates=[(0, 1), (0, 1)]), "fsgld.Gaussian", "client 0", "tuple"),
    case("a number", lambda: run(surrogates=3), "fsgld.Gaussian", "3"),
    case("a method", lambda: run(surrogates=fsgld.anchored), "fsgld.Gaussian", "fsgld.fit"),
    case(
        "asymmetric precision",
        lambda: run(NAMED, [UNIT, fsgld.Gaussian(jnp.zeros(2), jnp.array([[1.0, 0], [1, 1]]))]),
        "Bergen", "symmetric",
    ),
    case(
        "auto with many parameters",
        lambda: run(surrogates="auto", data=[np.zeros((3, 1))], model=model(init=np.zeros(1001),
                    log_likelihood=lambda p, x: -jnp.sum((x - p[:1]) ** 2))),
        '"auto"', "1001", "1000", "diagonal=True",
    ),
    case(
        "covariance not positive definite",
        lambda: fsgld.Gaussian.from_moments(jnp.zeros(2), jnp.array([[1.0, 2], [2, 1]])),
        "covariance", "positive definite", "-1",
    ),
    case(
        "covariance not symmetric",
        lambda: fsgld.Gaussian.from_moments(jnp.zeros(2), jnp.array([[1.0, 0], [0.5, 1]])),
        "covariance", "symmetric",
    ),
    case(
        "covariance with NaN",
        lambda: fsgld.Gaussian.from_moments(jnp.zeros(2), jnp.full((2, 2), jnp.nan)),
        "covariance", "nan",
    ),
    case(
        "variances not positive",
        lambda: fsgld.Gaussian.from_moments(jnp.zeros(2), jnp.array([1.0, 0.0])),
        "variances", "positive", "0",
    ),
    case(
        "moments of unequal size",
        lambda: fsgld.Gaussian.from_moments(jnp.zeros(2), jnp.eye(3)),
        "mean", "(2,)", "(3, 3)",
    ),
    case(
        "precision of unequal size",
        lambda: fsgld.Gaussian.from_precision(jnp.zeros(2), jnp.ones(3)),
        "mean", "(2,)", "(3,)",
    ),
    case("mean of a flat one", lambda: fsgld.Gaussian.flat(2).mean, "precision", "positive definite", "0"),
    case(
        "covariance of an indefinite one",
        lambda: (UNIT - 2 * UNIT).covariance,
        "precision", "positive definite", "-1", "prior",
    ),
    case("mean of a stack", lambda: fsgld.Gaussian.stack([UNIT, UNIT]).mean, "stack", "2 clients"),
    case("dense as diagonal", lambda: UNIT.to("diagonal"), "dense", "diagonal"),
    case("unknown form", lambda: UNIT.to("sparse"), "'sparse'", "dense"),
]  # fmt: skip

# --- fits


def fitted(method: Any, data: Any = None, m: Any = MEAN, **options: Any) -> Any:
    return fsgld.fit(m, NAMED if data is None else data, method, **options)


def fitted32(*arguments: Any) -> Any:
    with jax.enable_x64(False):
        return fitted(*arguments)


quick = partial(fitted, fsgld.from_draws, draws=10, burn_in=0, batch_size=4)

FITS = [
    case("laplace, one class", lambda: fitted(fsgld.laplace, ONE_CLASS, LOGISTIC),
         "Bergen", "12 rows", "no mode", "one class", "fsgld.anchored"),
    case("laplace, one class, single precision", lambda: fitted32(fsgld.laplace, ONE_CLASS, LOGISTIC),
         "Bergen", "12 rows", "no mode", "one class", "fsgld.anchored"),
    case("laplace, few rows", lambda: fitted(fsgld.laplace, [WIDE], LINEAR),
         "client 0", "2 rows", "no mode", "fewer rows than parameters", "fsgld.anchored"),
    case("laplace alone, few rows", lambda: fsgld.laplace(LINEAR, WIDE),
         "2 rows", "fewer rows than parameters", "fsgld.anchored"),
    case("laplace, not finite at init",
         lambda: fitted(fsgld.laplace, {"Oslo": -np.ones(5)}, GAMMA), "Oslo", "finite", "init"),
    case("from_draws, few draws", lambda: quick(draws=2),
         "Oslo", "2 draws", "2 parameters", "diagonal=True"),
    case("from_draws, one draw", lambda: quick(draws=1, diagonal=True), "Oslo", "draws"),
    case("from_draws, no draws", lambda: quick(draws=0, diagonal=True), "draws", "at least", "0"),
    case("from_draws, half a draw", lambda: quick(draws=2.5), "draws", "whole number", "2.5"),
    case("from_draws, no batch", lambda: quick(batch_size=0), "batch_size", "at least 1", "0"),
    case("from_draws, thin 0", lambda: quick(thin=0), "thin", "at least 1", "0"),
    case("from_draws, negative burn_in", lambda: quick(burn_in=-1), "burn_in", "-1"),
    case("from_draws, negative step", lambda: quick(step_size=-1.0), "step_size", "positive", "-1.0"),
    case("from_draws, bad seed", lambda: quick(seed=-1), "seed", "-1"),
    case("from_draws, diverges", lambda: quick(step_size=1e3, draws=500),
         "Oslo", "diverged", "1e+03", "smaller step_size"),
    case("from_draws, diverges, diagonal", lambda: quick(step_size=1e3, draws=500, diagonal=True),
         "Oslo", "diverged", "smaller step_size"),
    case("from_draws, diverges but ends finite", lambda: quick(step_size=25.0, draws=100),
         "Oslo", "diverged", "25", "smaller step_size"),
    case("from_draws, diverges but ends finite, diagonal",
         lambda: quick(step_size=25.0, draws=50, diagonal=True), "Oslo", "diverged", "25", "smaller step_size"),
    case("from_draws, no curvature",
         lambda: quick(m=model(log_likelihood=lambda p, x: p @ x)), "Oslo", "curvature", "step_size"),
    case("analytic, logistic", lambda: fitted(fsgld.analytic, ONE_CLASS, LOGISTIC),
         "Oslo", "not quadratic", "fsgld.anchored"),
    case("analytic, not finite", lambda: fitted(fsgld.analytic, {"Oslo": -np.ones(5)}, GAMMA), "Oslo"),
    case("anchored, order 3", lambda: fitted(fsgld.anchored, order=3), "order", "1 or 2", "3"),
    case("anchored, order as text", lambda: fitted(fsgld.anchored, order="2"), "order", "'2'"),
    case("anchored, wrong size", lambda: fitted(fsgld.anchored, anchor=np.zeros(3)),
         "anchor", "3", "2 parameters"),
    case("anchored, other structure", lambda: fitted(fsgld.anchored, anchor={"mu": np.zeros(2)}),
         "anchor", "mu", "init"),
    case("anchored, text", lambda: fitted(fsgld.anchored, anchor="mode"), "anchor", "'mode'"),
    case("anchored, NaN", lambda: fitted(fsgld.anchored, anchor=np.full(2, np.nan)),
         "Oslo", "anchor", "finite"),
    case("anchored, no derivative",
         lambda: fitted(fsgld.anchored, m=model(log_likelihood=lambda p, x: -jnp.sqrt(p @ p) + x[0])),
         "Oslo", "anchor", "not finite", "differentiable"),
    case("NaN row", lambda: fitted(fsgld.laplace, {"Oslo": ROWS, "Bergen": spoiled(5, np.nan)}),
         "Bergen", "row 5", "nan"),
    case("NaN row, a client alone", lambda: fsgld.anchored(MEAN, spoiled(5, np.nan)), "row 5", "nan"),
    case("no shards", lambda: fitted(fsgld.laplace, []), "shards", "non-empty list"),
    case("method by name", lambda: fitted("laplace"), "method", "'laplace'", "fsgld.laplace"),
    case("no model", lambda: fsgld.fit(SHARDS, MEAN, fsgld.laplace), "model", "fsgld.Model("),
    case("no model, a client alone", lambda: fsgld.laplace(None, ROWS), "model", "fsgld.Model("),
    case("method that returns no Gaussian", lambda: fitted(lambda model, data: 1.0),
         "Oslo", "fsgld.Gaussian", "float"),
    *(
        case(f"likelihood not scalar, {method.__name__}",
             partial(fitted, method, m=model(log_likelihood=lambda p, x: -((x - p) ** 2))),
             "log_likelihood", "scalar", "(2,)")
        for method in (fsgld.analytic, fsgld.anchored, fsgld.laplace, fsgld.from_draws)
    ),
    case("likelihood raises", lambda: fitted(fsgld.anchored, m=model(log_likelihood=complain)),
         "log_likelihood", "the sky fell"),
]  # fmt: skip

# --- settings

SIZES = ("batch_size", "local_steps", "rounds", "chains", "thin")
NOT_SIZES = (0, -3, 2.5, 1e3, True, "10", np.float64(4), [4])

SETTINGS = [
    *(
        case(f"{name}={value!r}", partial(run, **{name: value}), name, "whole number", repr(value))
        for name in SIZES
        for value in NOT_SIZES
    ),
    *(
        case(f"{name}=None", partial(run, **{name: None}), name, "whole number", "None")
        for name in SIZES
        if name != "thin"
    ),
    *(
        case(f"burn_in={value!r}", partial(run, burn_in=value), "burn_in", "steps", repr(value))
        for value in (-1, -0.1, np.nan, np.inf, True, "x", None, 2.5, 1.0, [1])
    ),
    case("burn_in drops all", lambda: run(burn_in=32), "no draw", "burn_in", "32", "more rounds"),
    case("thin beyond the end", lambda: run(thin=33), "no draw", "thin", "33", "more rounds"),
    case("huge thin", lambda: run(thin=10**30), "thin", str(10**30)),
    case("huge rounds", lambda: run(rounds=10**15), "rounds", str(10**15), "2147483647"),
    *(
        case(f"seed={value!r}", partial(run, seed=value), "seed", "whole number", repr(value))
        for value in (-1, 1.5, 2**32, "a", None)
    ),
    case("seed is a key", lambda: run(seed=jax.random.key(0)), "seed", "whole number"),
    *(
        case(f"engine={value!r}", partial(run, engine=value), "engine", "'compiled'", repr(value))
        for value in ("fast", None, ["compiled"])
    ),
    *(
        case(f"alpha={value!r}", partial(run, alpha=value), "alpha", "number", repr(value))
        for value in (-1.0, np.nan, np.inf, "x", None, [1.0])
    ),
    case("checkpoint is a number", lambda: run(checkpoint=3), "checkpoint", "folder", "3"),
    case("dynamics is a number", lambda: run(dynamics=0.1), "dynamics", "0.1", "fsgld.langevin("),
    case("dynamics not called", lambda: run(dynamics=fsgld.langevin), "dynamics", "fsgld.langevin("),
    case("dynamics by name", lambda: run(dynamics="sghmc"), "dynamics", "'sghmc'", "fsgld.langevin("),
    case("likelihood by name", lambda: run(likelihood="plain"), "likelihood", "'plain'", "fsgld.plain"),
    case("no dynamics", lambda: run(dynamics=None), "step size", "surrogates", "fsgld.langevin("),
    case("whitened without surrogates", lambda: run(dynamics=fsgld.whitened()),
         "whitened", "surrogates", "fsgld.langevin("),
    case("whitened without a density",
         lambda: run(model=IMPROPER, surrogates=[UNIT, -2 * UNIT], dynamics=None),
         "whitened", "prior × q", "-1", "fsgld.langevin"),
    case("linear surrogates without dynamics",
         lambda: run(surrogates=[LINEAR_Q] * 2, dynamics=None),
         "curvature", "linear", "step size", "fsgld.langevin"),
    case("linear surrogates for whitened",
         lambda: run(surrogates=[LINEAR_Q] * 2, dynamics=fsgld.whitened()),
         "whitened", "prior × q", "linear", "fsgld.langevin"),
    case("whitened of a wrong size", lambda: run(dynamics=fsgld.whitened(0.1, np.eye(3))),
         "whitened", "precision", "(3, 3)", "2 parameters"),
    case("anchor of a wrong size",
         lambda: run(likelihood=fsgld.control_variate.at(np.zeros(3))), "anchor", "3", "2 parameters"),
    case("anchor of another structure",
         lambda: run(likelihood=fsgld.control_variate.at({"mu": np.zeros(2)})), "anchor", "mu", "init"),
    case("anchor is text", lambda: run(likelihood=fsgld.control_variate.at("mode")), "anchor", "'mode'"),
    case("anchor with NaN", lambda: run(NAMED, likelihood=fsgld.control_variate.at(np.full(2, np.nan))),
         "anchor", "finite"),
]  # fmt: skip

# --- dynamics and schedules

NOT_POSITIVE = (-1, 0, -0.5, np.nan, np.inf, "x", None, True, [0.1], 1j)
STEP_SIZES = {
    "langevin": fsgld.langevin,
    "whitened": fsgld.whitened,
    "sghmc": fsgld.sghmc,
    "psgld": fsgld.psgld,
    "constant": schedules.constant,
}

DYNAMICS = [
    *(
        case(f"{name}({value!r})", partial(build, value), "step_size", "positive", repr(value))
        for name, build in STEP_SIZES.items()
        for value in NOT_POSITIVE
    ),
    case("a function as a step size", lambda: fsgld.langevin(lambda t: 0.1), "step_size", "positive"),
    *(
        case(f"friction={value!r}", partial(fsgld.sghmc, 0.1, value), "friction", "(0, 1]", repr(value))
        for value in (0, -1, 1.5, np.nan, "x", None, [0.1])
    ),
    *(
        case(f"decay={value!r}", partial(fsgld.psgld, 0.1, value), "decay", "between 0 and 1", repr(value))
        for value in (0, 1, -1, 1.5, np.nan, "x", None, [0.1])
    ),
    *(
        case(f"floor={value!r}", partial(fsgld.psgld, 0.1, floor=value), "floor", "positive", repr(value))
        for value in (0, -1, np.nan, np.inf, "x", None)
    ),
    case("precision is indefinite", lambda: fsgld.whitened(0.1, np.diag([1.0, -2])),
         "whitened", "precision", "-2"),
    case("precisions with zero", lambda: fsgld.whitened(0.1, np.array([1.0, 0])),
         "whitened", "precision", "positive", "0"),
    case("precision with NaN", lambda: fsgld.whitened(0.1, np.full((2, 2), np.nan)),
         "whitened", "precision", "nan"),
    case("precision is not square", lambda: fsgld.whitened(0.1, np.ones((2, 3))),
         "precision", "(2, 3)", "matrix"),
    case("precision is not symmetric", lambda: fsgld.whitened(0.1, np.array([[1.0, 0], [0.5, 1]])),
         "precision", "symmetric"),
    case("precision is a number", lambda: fsgld.whitened(0.1, np.array(2.0)), "precision", "()", "matrix"),
    case("precision is text", lambda: fsgld.whitened(0.1, "x"), "precision", "'x'", "matrix"),
    case("polynomial, a", lambda: schedules.polynomial(-1), "a must", "positive", "-1"),
    case("polynomial, b", lambda: schedules.polynomial(1, b=0), "b must", "positive", "0"),
    case("polynomial, gamma", lambda: schedules.polynomial(1, gamma="x"), "gamma", "positive", "'x'"),
    case("cosine, h", lambda: schedules.cosine(np.nan, 10, 0.1), "step_size", "positive", "nan"),
    case("cosine, steps", lambda: schedules.cosine(0.1, 0, 0.1), "steps", "positive", "0"),
    case("cosine, final", lambda: schedules.cosine(0.1, 10, -0.1), "final", "positive", "-0.1"),
    case("cyclical, h", lambda: schedules.cyclical(None, 10), "step_size", "positive", "None"),
    case("cyclical, period", lambda: schedules.cyclical(0.1, -5), "period", "positive", "-5"),
]  # fmt: skip

TABLES = {
    "data": DATA, "probs": PROBS, "model": MODEL, "surrogates": SURROGATES, "fits": FITS,
    "settings": SETTINGS, "dynamics": DYNAMICS,
}  # fmt: skip


@pytest.mark.parametrize(
    ("misuse", "words"),
    [pytest.param(c.misuse, c.words, id=f"{t}: {c.name}") for t in TABLES for c in TABLES[t]],
)
def test_bad_input_is_refused_in_words(misuse: Callable[[], Any], words: tuple[str, ...]) -> None:
    with pytest.raises(fsgld.InputError) as caught:
        misuse()
    check(str(caught.value), words)


def test_the_two_exceptions_are_the_usual_ones() -> None:
    """Callers may catch ValueError and RuntimeError."""
    assert issubclass(fsgld.InputError, ValueError)
    assert issubclass(fsgld.CheckpointError, RuntimeError)


# --- files


@pytest.mark.parametrize("place", ["a file", "below a file", "/proc/fsgld", "/dev/null"])
def test_unwritable_checkpoint_folder(place: str, tmp_path: Path) -> None:
    """Folders that even root cannot make."""
    file = tmp_path / "notes.txt"
    file.write_text("keep me")
    folder = {"a file": file, "below a file": file / "run"}.get(place, Path(place))
    with pytest.raises(fsgld.CheckpointError) as caught:
        run(checkpoint=folder)
    check(str(caught.value), ("cannot write the checkpoint folder", str(folder), "another folder"))
    assert file.read_text() == "keep me"


FOREIGN = {
    "other files": ({"thesis.tex": "years of work"}, ("not empty", "fingerprint.json")),
    "not JSON": ({"fingerprint.json": "{broken"}, ("fingerprint.json", "damaged")),
    "not text": ({"fingerprint.json": "\udcff\udcfe"}, ("fingerprint.json", "damaged")),
    "a list": ({"fingerprint.json": "[1, 2]"}, ("fingerprint.json",)),
    "a number": ({"fingerprint.json": "3"}, ("fingerprint.json",)),
    "another program's": ({"fingerprint.json": '{"version": 3}'}, ("belongs to another run",)),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_checkpoint_folder_is_left_untouched(name: str, tmp_path: Path) -> None:
    files, words = FOREIGN[name]
    for file, text in files.items():
        (tmp_path / file).write_text(text, errors="surrogateescape")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(fsgld.CheckpointError) as caught:
        run(checkpoint=tmp_path)
    check(str(caught.value), (str(tmp_path), "left untouched", "another folder", *words))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_checkpoint_of_another_run_says_what_differs(tmp_path: Path) -> None:
    run(checkpoint=tmp_path, seed=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    changes = {
        "seed": {"seed": 2},
        "alpha": {"alpha": 0.5},
        "rounds": {"rounds": 17},
        "probs": {"probs": [0.25, 0.75]},
        "step_size": {"dynamics": fsgld.langevin(2e-3)},
        "data": {"data": [ROWS[:8], ROWS[8:] + 1e-3]},
        "model": {"model": fsgld.Model(normal_prior, lambda p, x: 2 * normal_likelihood(p, x), np.zeros(2))},
    }  # fmt: skip
    for word, change in changes.items():
        with pytest.raises(fsgld.CheckpointError) as caught:
            run(**({"checkpoint": tmp_path, "seed": 1} | change))
        check(str(caught.value), (str(tmp_path), "another run", word, "left untouched"))
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_message_about_many_clients_is_short(tmp_path: Path) -> None:
    """A setting that is a list of 300 numbers is not printed in full, nor are 60 columns."""
    many = [np.zeros((2, 2))] * 300
    weights = np.arange(1.0, 301)
    quiet = {"checkpoint": tmp_path, "rounds": 6000, "local_steps": 1, "batch_size": 1}
    run(many, **quiet)
    with pytest.raises(fsgld.CheckpointError) as caught:
        run(many, probs=weights / weights.sum(), **quiet)
    check(str(caught.value), ("probs",))
    with pytest.raises(fsgld.InputError) as refused:
        run([{f"column{i:03}": np.zeros(2) for i in range(60)}], model=model(log_likelihood=age))
    check(str(refused.value), ("log_likelihood", "agee", "column000"))


def pickled(folder: Path) -> bytes:
    """Give a NumPy file that holds a pickle."""
    np.save(folder / "other.npy", np.array([{"a": 1}], object), allow_pickle=True)
    return (folder / "other.npy").read_bytes()


@pytest.mark.parametrize("kind", ["text", "npz", "npy", "folder", "half", "later format"])
def test_foreign_result_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "result.npz"
    meta = {"format": "fsgld result 1" if kind == "half" else "fsgld result 999"}
    write: dict[str, Callable[[], Any]] = {
        "text": lambda: file.write_text("hello"),
        "npz": lambda: np.savez(file, draws=np.zeros(3)),
        "npy": lambda: file.write_bytes(pickled(tmp_path)),
        "folder": file.mkdir,
        "half": lambda: np.savez(file, meta=np.array(json.dumps(meta))),
        "later format": lambda: np.savez(file, meta=np.array(json.dumps(meta))),
    }
    write[kind]()
    with pytest.raises(fsgld.InputError) as caught:
        fsgld.Result.load(file)
    check(str(caught.value), (str(file), "fsgld.Result.save"))


# --- results


@pytest.fixture(scope="module")
def result() -> fsgld.Result:
    return run()


def add_up(params: Any, row: Any) -> Any:
    return params @ row


RESULTS: dict[str, tuple[Callable[[fsgld.Result], Any], tuple[str, ...]]] = {
    "predict: no data": (lambda r: r.predict(add_up, None), ("data", "no array")),
    "predict: lists": (lambda r: r.predict(add_up, ROWS.tolist()), ("data", "use np.array")),
    "predict: columns of several lengths": (
        lambda r: r.predict(add_up, {"a": ROWS, "b": np.zeros(3)}),
        ("column b has 3 rows", "column a has 20"),
    ),
    "predict: rows of another width": (
        lambda r: r.predict(add_up, np.zeros((3, 5))),
        ("function(params, row) fails", "[2]", "[5]"),
    ),
    "predict: NumPy": (lambda r: r.predict(lambda p, x: np.exp(p), ROWS), ("function(params, row)", "jax.numpy")),
    "posterior_predictive: no data": (lambda r: r.posterior_predictive(add_up, None), ("data", "no array")),
    "posterior_predictive: seed": (
        lambda r: r.posterior_predictive(lambda k, p, x: x, ROWS, seed=-1),
        ("seed must be a whole number", "-1"),
    ),
    "posterior_predictive: order": (
        lambda r: r.posterior_predictive(lambda p, k, x: p @ x, ROWS),
        ("simulate(key, params, row) fails",),
    ),
    "interval in percent": (lambda r: r.summary(94), ("interval", "between 0 and 1", "94")),
    "no interval": (lambda r: r.summary(0.0), ("interval", "between 0 and 1", "0")),
    "no draws": (lambda r: r.predict(jnp.dot, ROWS, draws=0), ("draws", "at least 1", "0")),
    "negative draws": (lambda r: r.predict(jnp.dot, ROWS, draws=-5), ("draws", "at least 1", "-5")),
    "no simulated draws": (
        lambda r: r.posterior_predictive(lambda key, p, x: p @ x, ROWS, draws=0),
        ("draws", "at least 1", "0"),
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_result_refuses_bad_arguments(name: str, result: fsgld.Result) -> None:
    misuse, words = RESULTS[name]
    with pytest.raises(fsgld.InputError) as caught:
        misuse(result)
    check(str(caught.value), words)


# --- unusual, but right


def draws(*arguments: Any, **changes: Any) -> np.ndarray:
    return np.asarray(run(*arguments, **changes).draws)


def bernoulli(p: Any, y: Any) -> Any:
    return jnp.where(y, p[0], 0.0) - jnp.logaddexp(0.0, p[0])


def listed(p: Any, x: Any) -> Any:
    return normal_likelihood(jnp.stack(p), x)


def by_column(p: Any, row: Any) -> Any:
    return normal_likelihood(p, jnp.stack([row["a"], row["b"]]))


USUAL: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "JAX arrays": (lambda: draws([*map(jnp.asarray, SHARDS)]), draws),
    "JAX and NumPy arrays": (lambda: draws([jnp.asarray(SHARDS[0]), SHARDS[1]]), draws),
    "names": (lambda: draws(NAMED), draws),
    "Fortran order": (lambda: draws([*map(np.asfortranarray, SHARDS)]), draws),
    "read-only": (lambda: draws([np.broadcast_to(x, x.shape) for x in SHARDS]), draws),
    "big-endian numbers": (lambda: draws([x.astype(">f8") for x in SHARDS]), draws),
    "data frames": (lambda: draws([*map(pd.DataFrame, SHARDS)]), draws),
    "columns of data frames": (
        lambda: draws([dict(pd.DataFrame(x, columns=["a", "b"])) for x in SHARDS],
                      model=model(log_likelihood=by_column)),
        draws,
    ),
    "columns in another order": (
        lambda: draws([{"a": SHARDS[0][:, 0], "b": SHARDS[0][:, 1]},
                       {"b": SHARDS[1][:, 1], "a": SHARDS[1][:, 0]}],
                      model=model(log_likelihood=by_column)),
        draws,
    ),
    "booleans": (
        lambda: draws([np.arange(9) % 3 == 0], model=model(log_likelihood=bernoulli)),
        lambda: draws([(np.arange(9) % 3 == 0) * 1.0], model=model(log_likelihood=bernoulli)),
    ),
    "NumPy whole numbers": (
        lambda: draws(batch_size=np.int64(2), rounds=np.int32(16), chains=np.uint8(1), seed=np.int64(0)),
        draws,
    ),
    "NumPy share of burn-in": (
        lambda: draws(burn_in=np.float32(0.5)), lambda: draws(burn_in=0.5)
    ),
    "probabilities as a JAX array": (
        lambda: draws(probs=jnp.array([0.25, 0.75])), lambda: draws(probs=[0.25, 0.75])
    ),
    "whole-number parameters": (lambda: draws(model=model(init=np.zeros(2, int))), draws),
    "Python parameters": (
        lambda: np.stack(run(model=model(init=[0, 0], log_likelihood=listed)).draws, -1),
        draws,
    ),
    "surrogates as a tuple": (
        lambda: draws(surrogates=(UNIT, UNIT)), lambda: draws(surrogates=[UNIT, UNIT])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_unusual_input_gives_the_usual_draws(name: str) -> None:
    unusual, usual = USUAL[name]
    ours, theirs = unusual(), usual()
    assert ours.dtype == theirs.dtype == np.float64
    np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_double_precision_data_run_in_single_precision() -> None:
    """JAX's default: rows are rounded once, and draws are float32."""
    with jax.enable_x64(False):
        ours, theirs = draws(), draws([x.astype(np.float32) for x in SHARDS])
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, theirs)


def test_thin_may_leave_one_draw() -> None:
    assert draws(thin=32).shape == (1, 1, 2)


def test_more_random_numbers_a_visit_than_can_be_counted_are_refused():
    model = fsgld.Model(lambda p: -jnp.sum(p**2), lambda p, x: -jnp.sum((x - p) ** 2), jnp.zeros(1))
    with pytest.raises(fsgld.InputError, match=r"2000000 × 4000 random numbers, more than 2\*\*32; use fewer"):
        fsgld.sample(model, [np.zeros((3, 1))], local_steps=2_000_000, rounds=2, batch_size=4000)


def test_predictions_take_rows_with_missing_values_and_data_frames(result: fsgld.Result) -> None:
    """What is missing may be what is predicted; names of columns count, not their order."""
    rows = np.where(np.arange(2) == 1, np.nan, ROWS)
    first = result.predict(lambda p, x: p[0] * x[0], rows)
    assert np.isfinite(first).all()
    frame = pd.DataFrame(rows, columns=["x", "y"])[["y", "x"]]
    np.testing.assert_array_equal(result.predict(lambda p, row: p[0] * row["x"], frame), first)


def test_arviz_refuses_names_that_it_would_lose() -> None:
    """ArviZ has dimensions chain and draw, and one array a name."""
    for init in ({"draw": 0.0}, {"a": {"b": 0.0}, "a.b": 0.0}):
        found = run([ROWS[:, 0]], model=model(log_likelihood=lambda p, x: -(x**2), init=init))
        with pytest.raises(fsgld.InputError, match="different names, none of them chain or draw"):
            found.to_arviz()


def test_poor_surrogates_leave_draws_and_a_warning() -> None:
    """Nothing was given, so nothing that was given is at fault: the pre-flight says which surrogate is."""
    weak = fsgld.Model(lambda p: -0.5 * jnp.sum(p**2) / 1e4, normal_likelihood, np.zeros(2))
    shards = [RNG.normal(size=(500, 2)), RNG.normal(size=(700, 2)) + 1]
    with pytest.warns(UserWarning):
        found = fsgld.sample(weak, shards, [fsgld.Gaussian(jnp.zeros(2), 0.1 * jnp.eye(2))] * 2)
    assert found.draws.shape[1] >= 10
    assert found.settings["notes"]
