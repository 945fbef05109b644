"""The models of `workloads.py` in PyTorch, as functions of a list of parameters and a mini-batch."""

import jax
import torch
from torch.distributions import Bernoulli, Categorical, Normal


def log_prior(params):
    return sum(Normal(0.0, 1.0).log_prob(p).sum() for p in params)


def toy(params, x):
    (mu,) = params
    return Normal(mu, 1.0).log_prob(x).sum()


def regression(params, batch):
    (beta,), (x, y) = params, batch
    return Normal(x @ beta, 1.0).log_prob(y).sum()


def metric(params, batch):
    (gamma, mu), (z, y) = params, batch
    # y = 1 (similar) with probability σ(μ − z·γ)
    return Bernoulli(logits=mu - z @ gamma).log_prob((y + 1) / 2).sum()


def network(params, batch):
    x, y = batch
    for weight, bias in zip(params[:-2:2], params[1:-2:2], strict=True):
        x = torch.relu(x @ weight + bias)
    return Categorical(logits=x @ params[-2] + params[-1]).log_prob(y).sum()


LOG_LIKELIHOOD = {"W1": toy, "W2": regression, "W3": metric, "W4": network}


def parameters(workload):
    """The initial parameters as a list, in the order in which JAX ravels them."""
    return [torch.tensor(leaf) for leaf in jax.tree.leaves(workload.init)]


def tensors(tree):
    return jax.tree.map(torch.from_numpy, tree)


def flatten(params):
    return torch.cat([p.reshape(-1) for p in params])


def log_gaussian(theta, shift, precision):
    """⟨shift, θ⟩ − ½ θᵀΛθ with a dense or a diagonal Λ."""
    product = precision @ theta if precision.ndim == 2 else precision * theta
    return shift @ theta - 0.5 * theta @ product
