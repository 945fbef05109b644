"""Eager PyTorch with autograd, as the paper's authors would write FSGLD."""

import jax
import torch

from .torch_models import LOG_LIKELIHOOD, flatten, log_gaussian, log_prior, parameters, tensors


def eager(w):
    """One chain of FSGLD on one thread."""
    torch.set_num_threads(1)
    log_likelihood = LOG_LIKELIHOOD[w.name]
    data, shift, precision = tensors((w.data, w.shift, w.precision))
    total_shift, total_precision = shift.sum(0), precision.sum(0)
    h, m, f = w.step_size, w.batch_size, torch.full((w.num_clients,), 1 / w.num_clients)

    def client_update(params, s):
        shard = jax.tree.map(lambda a: a[s], data)
        scale = w.num_rows / (f[s] * m)
        g_shift, g_precision = total_shift - shift[s] / f[s], total_precision - precision[s] / f[s]
        for _ in range(w.local_steps):
            rows = torch.randint(w.num_rows, (m,))
            batch = jax.tree.map(lambda a, rows=rows: a[rows], shard)
            log_density = log_prior(params) + scale * log_likelihood(params, batch)
            log_density = log_density + log_gaussian(flatten(params), g_shift, g_precision)
            gradients = torch.autograd.grad(log_density, params)
            with torch.no_grad():
                for p, g in zip(params, gradients, strict=True):
                    p += h / 2 * g + h**0.5 * torch.randn_like(p)

    def run(rounds):
        torch.manual_seed(0)
        params = [p.requires_grad_() for p in parameters(w)]
        draws = []
        for _ in range(rounds):
            client_update(params, torch.multinomial(f, 1).item())
            draws.append(flatten(params).detach())
        return torch.stack(draws).numpy()

    return run
