"""Cases of `fsgld glm`: one table a site, and the same model written by hand in NumPyro, on the pooled rows."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from fsgld import data


class Case(NamedTuple):
    """A formula and its tables; the NumPyro program needs the design's columns made by hand."""

    formula: str
    family: str
    tables: dict[str, pd.DataFrame]
    columns: dict[str, np.ndarray]  # of all rows, pooled, in the design's names
    outcome: np.ndarray
    site: np.ndarray
    offset: np.ndarray
    centred: bool  # how NUTS mixes better


def heart():
    """Heart disease at four hospitals; the Swiss one has 46 patients, of whom one is healthy."""
    raw = pd.DataFrame(data.load("heart_disease")).assign(disease=lambda t: (t["num"] > 0) * 1.0)
    numbers, flags = ["age", "trestbps", "chol", "thalach", "oldpeak"], ["sex", "fbs", "exang"]
    used = [*numbers, *flags, "cp", "restecg", "disease"]
    whole = raw.dropna(subset=used)
    columns = {name: whole[name].to_numpy() for name in (*numbers, *flags)}
    for name in ("cp", "restecg"):
        for level in np.unique(whole[name])[1:]:
            columns[f"C({name})[T.{level:.0f}]"] = (whole[name] == level).to_numpy(float)
    formula = f"disease ~ {' + '.join([*numbers, *flags])} + C(cp) + C(restecg)"
    return _case(formula, "bernoulli", raw[[*used, "site"]], whole, columns, "disease", centred=True)


def concrete():
    """Concrete's strength at five mixers of different cement content, who measure with different offsets."""
    columns = {name.replace(" ", "_"): column for name, column in data.load("concrete").items()}
    raw = pd.DataFrame(columns)
    rng = np.random.default_rng(0)
    raw["site"] = np.array(list("abcde"))[
        np.argsort(np.argsort(raw["cement"].to_numpy(), kind="stable")) * 5 // len(raw)
    ]
    raw["strength"] = raw["compressive_strength"] + raw["site"].map(
        dict(zip("abcde", rng.normal(0, 4, 5), strict=True))
    )
    names = ["cement", "water", "age", "superplasticizer"]
    formula = "strength ~ cement + water + age + superplasticizer"
    made = {name: raw[name].to_numpy() for name in names}
    return _case(formula, "gaussian", raw[[*names, "strength", "site"]], raw, made, "strength", centred=True)


def counts(family):
    """Counts with an exposure at six sites that hardly differ: tau may be zero, which is hard for a hierarchy."""
    rng = np.random.default_rng(3 if family == "poisson" else 4)
    sizes = (40, 60, 80, 50, 30, 70)
    site = np.repeat(list("uvwxyz"), sizes)
    n = len(site)
    age, dose, exposure = rng.normal(60, 9, n), rng.choice(["high", "low", "none"], n), rng.uniform(0.5, 4, n)
    shift = dict(zip("uvwxyz", rng.normal(0, 0.15, 6), strict=True))
    eta = -1.2 + 0.03 * (age - 60) + 0.6 * (dose == "low") - 0.4 * (dose == "none")
    mu = np.exp(eta + np.array([shift[s] for s in site]) + 1.0) * exposure
    y = rng.poisson(mu if family == "poisson" else mu * rng.gamma(2.0, 1 / 2.0, n))
    raw = pd.DataFrame({"y": y * 1.0, "age": age, "dose": dose, "exposure": exposure, "site": site})
    raw.loc[[3, 90], "age"] = np.nan
    whole = raw.dropna()
    columns = {"age": whole["age"].to_numpy()}
    columns |= {f"dose[T.{level}]": (whole["dose"] == level).to_numpy(float) for level in ("low", "none")}
    formula = "y ~ age + dose + offset(log(exposure))"
    return _case(formula, family, raw, whole, columns, "y", np.log(whole["exposure"].to_numpy()), centred=False)


def _case(formula, family, raw, whole, columns, outcome, offset=None, centred=False):
    names = list(dict.fromkeys(raw["site"]))
    tables = {str(name): raw[raw["site"] == name].drop(columns="site") for name in names}
    site = np.array([names.index(name) for name in whole["site"]])
    offset = np.zeros(len(whole)) if offset is None else offset
    return Case(formula, family, tables, columns, whole[outcome].to_numpy(), site, offset, centred)


def program(case):
    """Write the model with the default priors that docs/glm.md states, in NumPyro, with nothing from fsgld.glm."""
    import jax.numpy as jnp
    import numpyro
    from numpyro import distributions as dist

    x, y, S = np.stack(list(case.columns.values()), 1), case.outcome, case.site.max() + 1
    mean, scale = x.mean(0), x.std(0, ddof=1)
    gaussian, count = case.family == "gaussian", case.family in ("poisson", "negative_binomial")
    unit = y.std(ddof=1) if gaussian else 1.0
    middle = y.mean() if gaussian else np.log(y.sum() / np.exp(case.offset).sum()) if count else 0.0
    z = (x - mean) / scale

    def model():
        b = numpyro.sample("b", dist.Normal(middle, 2.5 * unit))
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.5 * unit).expand([x.shape[1]]))
        tau = numpyro.sample("tau", dist.HalfNormal(unit))
        if case.centred:
            a = numpyro.sample("a", dist.Normal(b, tau).expand([S]))
        else:
            a = b + tau * numpyro.sample("z", dist.Normal(0.0, 1.0).expand([S]))
        eta = a[case.site] + z @ beta + case.offset
        if gaussian:
            sigma = numpyro.sample("sigma", dist.Exponential(1 / unit))
            numpyro.sample("y", dist.Normal(eta, sigma), obs=y)
        elif case.family == "bernoulli":
            numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)
        elif case.family == "poisson":
            numpyro.sample("y", dist.Poisson(jnp.exp(eta)), obs=y)
        else:
            phi = numpyro.sample("phi", dist.Exponential(1.0))
            numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(eta), phi), obs=y)
        raw = beta / scale
        numpyro.deterministic("coefficients", raw)
        numpyro.deterministic("Intercept", b - raw @ mean)
        numpyro.deterministic("site", a - b)

    return model


CASES = {
    "glm-heart": heart,
    "glm-gaussian": concrete,
    "glm-poisson": lambda: counts("poisson"),
    "glm-negative-binomial": lambda: counts("negative_binomial"),
}
