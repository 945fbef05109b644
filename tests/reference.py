"""Algorithm 1 in plain NumPy, for linear regression with unit noise and a N(0, I) prior.

It is fed the same random numbers as the library (clients, rows, noise) and shares no other code with it.
"""

import numpy as np


def algorithm_1(shards, surrogates, f, theta, visits, *, h, m, alpha, step, anchor=None):
    """Run the visits of one chain; a visit is (client, rows (T, m), noise (T, d)). Give θ after every step."""
    q_shift = sum(shift for shift, _ in surrogates)
    q_precision = sum(precision for _, precision in surrogates)
    memory, thetas = None, []
    for s, rows, noise in visits:  # the server passes the chain on to client s
        X, y = shards[s]
        N, (shift, precision) = len(X), surrogates[s]
        for batch, xi in zip(rows, noise, strict=True):  # for t = 0 … T−1
            grad = lambda t, i: X[i].T @ (y[i] - X[i] @ t)  # noqa: E731, B023
            likelihood = N / m * grad(theta, batch)
            if anchor is not None:
                likelihood += grad(anchor, np.arange(N)) - N / m * grad(anchor, batch)
            d_s = -theta + likelihood / f[s]
            g_s = -(shift - precision @ theta) / f[s] + q_shift - q_precision @ theta
            theta, memory = step(h, theta, memory, d_s + alpha * g_s, xi)
            thetas.append(theta)
    return np.array(thetas)


def langevin(h, theta, memory, v, xi):
    return theta + h / 2 * v + np.sqrt(h) * xi, None


def whitened(covariance):
    L = np.linalg.cholesky(covariance[::-1, ::-1])[::-1, ::-1]  # any root of M does; the library's is upper

    def step(h, theta, memory, v, xi):
        rho = np.exp(-h / 2)
        return theta + (1 - rho) * covariance @ v + np.sqrt(1 - rho**2) * L @ xi, None

    return step


def sghmc(friction):
    def step(h, theta, p, v, xi):
        p = (1 - friction) * (0 if p is None else p) + h / 2 * v + np.sqrt(friction * h) * xi
        return theta + p, p

    return step


def psgld(decay, floor):
    def step(h, theta, V, v, xi):
        V = v**2 if V is None else decay * V + (1 - decay) * v**2
        G = 1 / (floor + np.sqrt(V))
        return theta + h / 2 * G * v + np.sqrt(h * G) * xi, V

    return step
