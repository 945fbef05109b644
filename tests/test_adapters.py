"""Models from elsewhere: a NumPyro program against NumPyro itself, a network against the model written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import potential_energy

import fsgld
from fsgld import InputError, diagnostics
from fsgld.adapters import from_network

with np.errstate(all="ignore"):
    import equinox as eqx


def mixture(x, y):
    """A regression with a positive, an interval and a simplex constraint."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    df = numpyro.sample("lift", dist.Uniform(-1.0, 2.0 + sigma))  # its support depends on another latent
    share = numpyro.sample("share", dist.Dirichlet(jnp.full(3, 2.0)))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(x @ (beta * share[:2]) + df, sigma), obs=y)


def data(n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return {"x": x, "y": 0.5 * x[:, 0] + 0.3 + rng.normal(0, 0.4, n)}


@pytest.mark.slow
def test_densities_are_numpyros_potential_energy():
    rows = data()
    adapted = fsgld.from_numpyro(mixture, rows)
    start = adapted.model.start()
    assert {name: leaf.shape for name, leaf in start.items()} == {"beta": (2,), "sigma": (), "lift": (), "share": (2,)}
    ours = jax.jit(
        lambda u: adapted.model.log_prior(u) + jax.vmap(adapted.model.log_likelihood, (None, 0))(u, rows).sum()
    )
    for seed in range(3):
        keys = dict(zip(start, jax.random.split(jax.random.key(seed), 4), strict=True))
        u = {name: jax.random.normal(keys[name], leaf.shape) for name, leaf in start.items()}
        assert -float(ours(u)) == pytest.approx(float(potential_energy(mixture, (), rows, u)), rel=1e-9)
        values = adapted.constrain(u)
        assert values["sigma"] > 0 and -1 < values["lift"] < 2 + values["sigma"]
        assert values["share"].shape == (3,) and float(values["share"].sum()) == pytest.approx(1)


@pytest.mark.slow
def test_sampling_across_sites_agrees_with_nuts():
    """Means and sds of constrained parameters; 5 Monte Carlo errors, and 0.05 sds for the step size."""

    def program(x, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)

    rows = data(90)
    shards = [{name: column[i] for name, column in rows.items()} for i in (slice(0, 20), slice(20, 50), slice(50, 90))]
    ours = fsgld.from_numpyro(program, rows).sample(shards, progress=False)
    mcmc = MCMC(
        NUTS(program), num_warmup=500, num_samples=2000, num_chains=2, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(jax.random.key(0), **rows)
    nuts = mcmc.get_samples(group_by_chain=True)
    assert (ours.draws["sigma"] > 0).all()
    for name in ("beta", "sigma"):
        a, b = (np.asarray(d[name], float).reshape(*d[name].shape[:2], -1) for d in (ours.draws, nuts))
        sd = b.std((0, 1))
        mean_error = np.abs(a.mean((0, 1)) - b.mean((0, 1))) / sd
        allowed = 0.05 + 5 * np.hypot(diagnostics.mcse_mean(a), diagnostics.mcse_mean(b)) / sd
        assert (mean_error < allowed).all()
        allowed = 0.05 + 5 * np.hypot(diagnostics.mcse_sd(a), diagnostics.mcse_sd(b)) / sd
        assert (np.abs(a.std((0, 1)) / sd - 1) < allowed).all()


def local(y):
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def discrete(y):
    k = numpyro.sample("k", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(k * 1.0, 1.0), obs=y)


def nothing(y):
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def together(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("mean", dist.Normal(mu, 1.0), obs=y.sum())


def broken(y):
    raise RuntimeError("out of order")


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (local, "the latent 'z' has one value a row"), (discrete, "the latent 'k' is discrete"),
        (nothing, "no latent statement"), (together, "rows must be independent"), (broken, "out of order"),
    ],
)  # fmt: skip
def test_programs_that_cannot_be_used(program, sentence):
    with pytest.raises(InputError, match=sentence):
        fsgld.from_numpyro(program, {"y": np.array([0.5, -1.0, 2.0])})


def log_likelihood(network, row):
    return jax.nn.log_softmax(network(row["x"]))[row["y"]]


@pytest.mark.slow
def test_a_network_is_the_model_written_by_hand():
    network = eqx.nn.Linear(2, 3, key=jax.random.key(0))
    adapted = from_network(network, log_likelihood, prior_scale=0.7)

    def by_hand(p, row):
        return jax.nn.log_softmax(p["weight"] @ row["x"] + p["bias"])[row["y"]]

    hand = fsgld.Model(
        lambda p: -0.5 * (jnp.sum(p["weight"] ** 2) + jnp.sum(p["bias"] ** 2)) / 0.7**2, by_hand,
        {"weight": network.weight, "bias": network.bias},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    shards = [{"x": rng.normal(size=(n, 2)), "y": rng.integers(0, 3, n)} for n in (30, 50)]
    draws = [
        fsgld.sample(model, shards, rounds=40, local_steps=5, chains=2, step_size=0.05, progress=False).draws
        for model in (adapted.model, hand)
    ]
    assert draws[0].keys() == draws[1].keys() == {"weight", "bias"}
    for name in draws[0]:
        np.testing.assert_allclose(draws[0][name], draws[1][name], rtol=1e-6, atol=1e-8)


def test_a_deep_network_keeps_what_is_not_learnt():
    network = eqx.nn.MLP(2, 3, width_size=4, depth=1, key=jax.random.key(0))
    adapted = from_network(network, log_likelihood)
    params = adapted.model.start()
    assert sum(leaf.size for leaf in params.values()) == 2 * 4 + 4 + 4 * 3 + 3
    row = {"x": jnp.array([0.3, -1.0]), "y": jnp.array(2)}
    assert float(adapted.model.log_likelihood(params, row)) == pytest.approx(float(log_likelihood(network, row)))
    for given, sentence in [
        ((jnp.tanh, log_likelihood), "no floating-point"),
        ((network, log_likelihood, -1.0), "positive"),
    ]:
        with pytest.raises(InputError, match=sentence):
            from_network(*given)
