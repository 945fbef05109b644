"""The rewritten gradient is the gradient, and XLA computes its products itself."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import fsgld
from fsgld import rewrite
from fsgld.engines import compiled
from fsgld.programs import OWN_PRODUCTS, may_set

RNG = np.random.default_rng(0)
M, P = 50, 6
X, LABEL, Y = RNG.standard_normal((M, P)), RNG.integers(0, 3, M).astype(np.int32), RNG.standard_normal(M)
WEIGHTS = {"a": RNG.standard_normal((P, 7)) / 2, "b": RNG.standard_normal(7), "c": RNG.standard_normal((7, 3)) / 2}


def network(p, row):
    """A classifier as most people write it."""
    x, label, _ = row
    return jax.nn.log_softmax(jnp.tanh(x @ p["a"] + p["b"]) @ p["c"])[label]


def from_the_left(p, row):
    """Weights to the left of the activations."""
    x, _, y = row
    return -jnp.sum((y - p["c"].T @ jax.nn.relu(p["a"].T @ x + p["b"])) ** 2)


def tied(p, row):
    """A weight matrix that is used twice, once transposed."""
    x = row[0]
    return -jnp.sum((x - jax.nn.gelu(x @ p["a"] + p["b"]) @ p["a"].T) ** 2) - jnp.sum(jnp.sin(p["c"]))


def jitted(p, row):
    """A part that the user has compiled, and a derivative that the user gives."""

    @jax.custom_jvp
    def twice(z):
        return 2 * z

    twice.defjvp(lambda primals, tangents: (twice(*primals), 2 * tangents[0]))
    h = jax.jit(lambda x: jnp.tanh(x @ p["a"] + p["b"]))(row[0])
    return -jax.nn.logsumexp(twice(h @ p["c"]))


def no_product(p, row):
    """No matrix product at all, but rows to add up."""
    return -jnp.sum((row[0][:, None] - p["a"]) ** 2) - jnp.sum(p["b"] ** 2) + p["c"][0, 0] * row[2]


def gradients(log_likelihood, rows=(X, LABEL, Y), weights=WEIGHTS):
    """Give the flat gradient, plain and rewritten, as functions of θ, and a θ."""
    theta, unravel = ravel_pytree(weights)
    flat = fsgld.model.FlatModel(lambda p: 0.0, log_likelihood, unravel)
    rows = jax.tree.map(jnp.asarray, rows)
    both = [lambda t, f=f: f.grad_log_likelihood(t, rows) for f in (flat, flat._replace(rewritten=True))]
    return *both, theta


def primitives(function, *args):
    """Count the equations of a function by name."""
    return [eqn.primitive.name for eqn in rewrite._equations(jax.make_jaxpr(function)(*args).jaxpr)]


def whole_numbers(p, row):
    """Sums of whole numbers, which wrap around: 36 × 100 in eight bits."""
    many = jnp.tile(jnp.round(100 + p["a"]).astype(jnp.int8), (6, 1))
    return -jnp.sum((row[0] @ p["a"] - jnp.sum(many, axis=0, dtype=jnp.int8)) ** 2)


def not_turned(p, row):
    """A transpose that leaves the axes where they are."""
    same = jax.lax.transpose_p.bind(p["a"].T @ p["a"], permutation=(0, 1))
    return jnp.sum(jnp.sin(same) * jnp.arange(49.0).reshape(7, 7)) * row[2]


LIKELIHOODS = {f.__name__: f for f in (network, from_the_left, tied, jitted, no_product, whole_numbers, not_turned)}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_rewritten_gradient_is_the_gradient(name):
    plain, rewritten, theta = gradients(LIKELIHOODS[name])
    np.testing.assert_allclose(rewritten(theta), plain(theta), rtol=1e-11, atol=1e-11)
    assert rewrite.suits(plain, theta)


def test_weighted_rows_have_the_same_gradient():
    theta, unravel = ravel_pytree(WEIGHTS)
    flat = fsgld.model.FlatModel(lambda p: 0.0, network, unravel)
    rows, w = jax.tree.map(jnp.asarray, (X, LABEL, Y)), jnp.linspace(0.1, 3, M)
    ours = flat._replace(rewritten=True).grad_log_likelihood(theta, rows, w)
    np.testing.assert_allclose(ours, flat.grad_log_likelihood(theta, rows, w), rtol=1e-12, atol=1e-12)
    by_row = [w[i] * flat.grad_log_likelihood(theta, (X[i : i + 1], LABEL[i : i + 1], Y[i : i + 1])) for i in range(M)]
    np.testing.assert_allclose(ours, sum(by_row), rtol=1e-10, atol=1e-10)


def test_products_are_straight_and_slow_code_is_gone():
    plain, rewritten, theta = gradients(network)
    before, after = primitives(plain, theta), primitives(rewritten, theta)
    assert {"scatter-add", "concatenate"} <= set(before) and not {"scatter-add", "concatenate"} & set(after)
    count = before.count("dot_general")
    assert count == after.count("dot_general") == 5  # two layers forward, two weights, one activation
    straight = [
        eqn.params["dimension_numbers"] == rewrite.STRAIGHT
        for eqn in rewrite._equations(jax.make_jaxpr(rewritten)(theta).jaxpr)
        if eqn.primitive.name == "dot_general"
    ]
    assert all(straight)


PICKS = {
    "clip": lambda logits, y: logits.at[y].get(mode="clip"),
    "fill": lambda logits, y: logits.at[y].get(mode="fill", fill_value=0),
    "take": lambda logits, y: jnp.take(logits, y),
    "along": lambda logits, y: jnp.take_along_axis(logits, y[..., None], axis=-1)[..., 0],
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("label", [-100, -1, 0, 2, 3, 100])
def test_labels_out_of_range_count_as_before(label, pick, dtype):
    """For an index out of range JAX takes the nearest entry or none, by mode; so does the rewritten gradient."""
    log_likelihood = lambda p, row: PICKS[pick](row[0] @ p["a"] @ p["c"], row[1])  # noqa: E731
    plain, rewritten, theta = gradients(log_likelihood, (X, np.full(M, label).astype(dtype), Y))
    assert "scatter-add" in primitives(plain, theta) and "scatter-add" not in primitives(rewritten, theta)
    np.testing.assert_allclose(rewritten(theta), plain(theta), rtol=1e-12, atol=1e-12)


WIDE = {"a": np.ones((P, 200)), "b": np.ones(200), "c": np.ones((200, 3))}


@pytest.mark.parametrize(
    ("log_likelihood", "weights"),
    [
        pytest.param(network, WIDE, id="wide"),
        pytest.param(lambda p, row: -((row[2] - row[0] @ p["b"][:P]) ** 2), WEIGHTS, id="vector"),
        pytest.param(
            lambda p, row: jax.lax.fori_loop(0, 2, lambda i, h: jnp.tanh(h @ p["a"] @ p["a"].T), row[0]).sum(),
            WEIGHTS, id="loop",
        ),
        pytest.param(lambda p, row: jnp.sum(jnp.outer(row[0], p["b"]) @ p["c"] @ p["c"].T), WEIGHTS, id="batched"),
    ],
)  # fmt: skip
def test_what_libraries_do_better_is_left_alone(log_likelihood, weights):
    plain, _, theta = gradients(log_likelihood, weights=weights)
    assert not rewrite.suits(plain, theta)


def test_a_function_that_cannot_be_traced_is_left_alone():
    assert not rewrite.suits(lambda x: float(x), jnp.ones(()))


def test_xla_computes_the_products_itself(tmp_path):
    """The reason for all this. XLA writes a file for every product that it computes; for a library's there is none."""
    code = """
import sys, jax, test_rewrite
from fsgld import programs
plain, rewritten, theta = test_rewrite.gradients(test_rewrite.network)
theta = theta.astype("float32")
libraries = jax.jit(plain).lower(theta).compile()
own = jax.jit(lambda t: rewritten(t), compiler_options=programs.OWN_PRODUCTS).lower(theta).compile()
"""
    flags = f"--xla_dump_to={tmp_path} --xla_dump_hlo_module_re=jit__lambda.*"
    environ = os.environ | {"XLA_FLAGS": flags, "FSGLD_XLA_FLAGS": "off", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", code], env=environ, cwd=Path(__file__).parent, check=True)
    modules = sorted({path.name.split(".")[0] for path in tmp_path.glob("module_*.jit__lambda*")})
    products = [len(list(tmp_path.glob(f"{module}.*dot_general*_kernel_module.ir-with-opt.ll"))) for module in modules]
    assert products == [0, 5]


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("slot", [fsgld.plain, fsgld.control_variate], ids=lambda slot: slot.name)
def test_chains_are_those_of_the_reference_engine(chains, slot, monkeypatch):
    """The reference engine never rewrites."""
    model = fsgld.Model(lambda p: -sum(jnp.sum(v**2) for v in p.values()), network, WEIGHTS)
    shards = [(X[:30], LABEL[:30], Y[:30]), (X[30:], LABEL[30:], Y[30:])]
    settings = {"dynamics": fsgld.langevin(1e-3), "likelihood": slot, "batch_size": 4, "local_steps": 3, "rounds": 12,
                "chains": chains, "thin": 1, "burn_in": 0}  # fmt: skip
    used = []
    monkeypatch.setitem(
        compiled.PROGRAMS, True, lambda *a, p=compiled.PROGRAMS[True]: used.append(a[0].model.rewritten) or p(*a)
    )
    ours, theirs = (fsgld.sample(model, shards, None, engine=e, **settings) for e in ("compiled", "reference"))
    assert (used and all(used)) or not may_set(OWN_PRODUCTS)
    for a, b in zip(jax.tree.leaves(ours.draws), jax.tree.leaves(theirs.draws), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_the_answer_is_not_kept_for_another_precision():
    """The same model of float32 data is looked at anew where JAX's default precision is another."""
    weights, rows = jax.tree.map(jnp.float32, WEIGHTS), (np.float32(X), LABEL, np.float32(Y))
    model = fsgld.Model(lambda p: -sum(jnp.sum(v**2) for v in p.values()), network, weights)
    compiled._suits_shapes.cache_clear()
    for x64 in (False, True):
        for _ in range(2):
            with jax.enable_x64(x64):
                fsgld.sample(model, [rows], None, dynamics=fsgld.langevin(1e-3), batch_size=4, local_steps=3, rounds=4)
    assert compiled._suits_shapes.cache_info().misses == 2 or not may_set(OWN_PRODUCTS)
