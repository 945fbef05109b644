"""BlackJAX's SGLD kernel with FSGLD written by hand around it: one jitted scan over rounds of a scan over steps."""

from functools import partial

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from ..workloads import log_prior


def blackjax_sgld(w):
    """One chain of FSGLD. A step of BlackJAX is step·g + √(2·step)·ξ, so step = h/2."""
    kernel = blackjax.sgld.build_kernel()
    m, f = w.batch_size, jnp.full(w.num_clients, 1 / w.num_clients)
    init, data, surrogates = jax.device_put((w.init, w.data, (w.shift, w.precision)))
    total = jax.tree.map(lambda a: a.sum(0), surrogates)

    def log_posterior(params, batch, s, conducive):
        log_likelihood = jnp.sum(jax.vmap(w.log_likelihood, (None, 0))(params, batch))
        return log_prior(params) + w.num_rows / (f[s] * m) * log_likelihood + log_gaussian(params, *conducive)

    def step(data, s, conducive, params, key):
        key_batch, key_noise = jax.random.split(key)
        rows = jax.random.randint(key_batch, (m,), 0, w.num_rows)
        batch = jax.tree.map(lambda a: a[s, rows], data)
        gradient = partial(jax.grad(log_posterior), s=s, conducive=conducive)
        return kernel(key_noise, params, gradient, batch, w.step_size / 2), None

    def one_round(data, surrogates, total, params, key):
        key_client, key_steps = jax.random.split(key)
        s = jax.random.choice(key_client, w.num_clients, p=f)
        conducive = jax.tree.map(lambda q, q_s: q - q_s[s] / f[s], total, surrogates)
        keys = jax.random.split(key_steps, w.local_steps)
        params, _ = jax.lax.scan(partial(step, data, s, conducive), params, keys)
        return params, ravel_pytree(params)[0]

    @jax.jit
    def chain(init, data, surrogates, total, keys):
        return jax.lax.scan(partial(one_round, data, surrogates, total), init, keys)[1]

    return lambda rounds: np.asarray(chain(init, data, surrogates, total, jax.random.split(jax.random.key(0), rounds)))


def log_gaussian(params, shift, precision):
    """⟨shift, θ⟩ − ½ θᵀΛθ with a dense or a diagonal Λ."""
    theta, _ = ravel_pytree(params)
    product = precision @ theta if precision.ndim == 2 else precision * theta
    return shift @ theta - 0.5 * theta @ product
