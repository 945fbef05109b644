"""Write NUTS references for the cases of `fsgld glm`: python tests/make_glm_references.py [case ...]."""

import json
import sys
import time
import warnings

import jax
import numpy as np

from fsgld import diagnostics
from glm_cases import CASES, program
from make_references import FOLDER, problems

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numpyro
    from numpyro.infer import MCMC, NUTS

SETTINGS = {"chains": 4, "warmup": 2000, "draws": 8000, "ess": 5000, "seed": 0, "target_accept_prob": 0.99}


def make_reference(case):
    begin = time.perf_counter()
    kernel = NUTS(program(case), dense_mass=True, target_accept_prob=SETTINGS["target_accept_prob"])
    mcmc = MCMC(
        kernel, num_warmup=SETTINGS["warmup"], num_samples=SETTINGS["draws"], num_chains=SETTINGS["chains"],
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(SETTINGS["seed"]), extra_fields=("diverging", "num_steps"))
    found = {name: np.asarray(leaf) for name, leaf in mcmc.get_samples(group_by_chain=True).items()}
    draws = {"Intercept": found["Intercept"]}
    draws |= {name: found["coefficients"][..., j] for j, name in enumerate(case.columns)}
    draws |= {f"site[{name}]": found["site"][..., s] for s, name in enumerate(case.tables)}
    draws |= {name: found[name] for name in ("tau", "sigma", "phi") if name in found}
    stacked = np.stack(list(draws.values()), -1)
    columns = {
        "mean": stacked.mean((0, 1)), "sd": stacked.std((0, 1), ddof=1), "mcse_mean": diagnostics.mcse_mean(stacked),
        "mcse_sd": diagnostics.mcse_sd(stacked), "rhat": diagnostics.rhat(stacked),
        "ess": np.minimum(diagnostics.ess_bulk(stacked), diagnostics.ess_tail(stacked)),
    }  # fmt: skip
    extra = mcmc.get_extra_fields()
    facts = {"divergences": int(extra["diverging"].sum()), "seconds": round(time.perf_counter() - begin, 1)}
    parameters = {name: {k: float(f"{v[i]:.8g}") for k, v in columns.items()} for i, name in enumerate(draws)}
    return {"parameters": parameters, "settings": SETTINGS | {"numpyro": numpyro.__version__}, "run": facts}


def doubts(reference):
    """Say why a reference cannot be trusted; near tau = 0 a few divergences in 32,000 draws remain at any step."""
    few = reference["run"]["divergences"] <= 8
    return [line for line in problems(reference) if not (few and "divergent" in line)]


def main():
    jax.config.update("jax_enable_x64", True)
    for name in sys.argv[1:] or CASES:
        reference = make_reference(CASES[name]())
        lines = doubts(reference)
        if not lines:
            (FOLDER / f"{name}.json").write_text(json.dumps(reference, indent=1) + "\n")
        ess = min(p["ess"] for p in reference["parameters"].values())
        print(name, reference["run"], f"ESS {ess:.0f}", *lines, flush=True)


if __name__ == "__main__":
    main()
