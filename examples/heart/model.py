"""Logistic regression of a narrowed artery (num > 0) on five findings. These two functions come to the rows."""

import jax.numpy as jnp
import numpy as np

import fsgld

# Centre and scale are fixed beforehand: no site has to tell the mean of its columns
SCALES = {"age": (54, 9), "sex": (0.8, 0.4), "thalach": (138, 25), "exang": (0.4, 0.5), "oldpeak": (0.9, 1.1)}


def model(priors):
    """Give the model: independent normal priors, the log-likelihood of ONE patient, and a start."""
    return fsgld.Model(
        log_prior=lambda p: -0.5 * (jnp.sum(p["beta"] ** 2) + p["intercept"] ** 2) / priors["sd"] ** 2,
        log_likelihood=lambda p, row: -jnp.logaddexp(0.0, (1 - 2 * row["y"]) * (row["x"] @ p["beta"] + p["intercept"])),
        init={"beta": jnp.zeros(len(SCALES)), "intercept": jnp.zeros(())},
    )


def rows(table):
    """Take the columns that the model needs, scaled; patients with a missing value are left out."""
    x = np.stack([(table[name] - centre) / scale for name, (centre, scale) in SCALES.items()], axis=1)
    y = (table["num"] > 0) * 1.0
    known = np.isfinite(x).all(1) & np.isfinite(table["num"])
    return {"x": x[known], "y": y[known]}
