"""The `posteriors` library: its SGLD transform, with FSGLD in the log-posterior it is given."""

import warnings

import jax
import torch

from .torch_models import LOG_LIKELIHOOD, flatten, log_gaussian, log_prior, parameters, tensors

with warnings.catch_warnings(action="ignore"):  # tensordict on the defaults of posteriors' own classes
    import posteriors


def posteriors_sgld(w):
    """One chain of FSGLD. A step of `posteriors` is lr·g + √(2·lr)·ξ, so lr = h/2."""
    torch.set_num_threads(1)
    log_likelihood = LOG_LIKELIHOOD[w.name]
    data, shift, precision = tensors((w.data, w.shift, w.precision))
    total_shift, total_precision = shift.sum(0), precision.sum(0)
    m, f = w.batch_size, torch.full((w.num_clients,), 1 / w.num_clients)

    def log_posterior(state, batch):
        params, (rows, scale, g_shift, g_precision) = list(state.values()), batch
        conducive = log_gaussian(flatten(params), g_shift, g_precision)
        return log_prior(params) + scale * log_likelihood(params, rows) + conducive, torch.tensor([])

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=w.step_size / 2)

    def client_update(state, s):
        shard = jax.tree.map(lambda a: a[s], data)
        scale = w.num_rows / (f[s] * m)
        g_shift, g_precision = total_shift - shift[s] / f[s], total_precision - precision[s] / f[s]
        for _ in range(w.local_steps):
            index = torch.randint(w.num_rows, (m,))
            rows = jax.tree.map(lambda a, index=index: a[index], shard)
            state, _ = transform.update(state, (rows, scale, g_shift, g_precision))
        return state

    def run(rounds):
        torch.manual_seed(0)
        state, draws = transform.init({str(i): p for i, p in enumerate(parameters(w))}), []
        for _ in range(rounds):
            state = client_update(state, torch.multinomial(f, 1).item())
            draws.append(flatten(list(state.params.values())))
        return torch.stack(draws).numpy()

    return run
