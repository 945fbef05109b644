"""Write NUTS references for the gold cases: python tests/make_references.py [case ...] (all by default).

Each goes to tests/references/<case>.json: mean and sd of every parameter with their Monte Carlo errors, effective
sample size (the smaller of bulk and tail), R-hat, and the mode. NumPyro's NUTS draws from the posterior of the case's
own `fsgld.Model` on the rows of all clients together, in float64. Its mass matrix is the precision of the Laplace
approximation, so that few leapfrogs are enough; it starts at draws from it. What has not converged is not written.
"""

import argparse
import json
import time
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from fsgld import diagnostics, newton
from fsgld.derivatives import prior_taylor
from fsgld.experiments.cases_build import CASES, SAME_POSTERIOR, Case
from fsgld.rows import gather

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numpyro
    from numpyro.infer import MCMC, NUTS

FOLDER = Path(__file__).parent / "references"
RHAT = 1.005


class Settings(NamedTuple):
    """How long NUTS runs, and how many effective draws a parameter must have."""

    chains: int = 4
    warmup: int = 500
    draws: int = 8000  # a chain
    ess: int = 10_000
    seed: int = 0


LARGE = {"covertype": Settings(draws=3000, ess=2000)}  # 43 s on an H200, more than an hour on one core


class Run(NamedTuple):
    """Draws of all chains, shape (chains, draws, d), and what came with them."""

    names: tuple[str, ...]
    draws: np.ndarray
    mode: np.ndarray
    sweeps: int  # of Newton
    divergences: int
    leapfrogs: float  # a draw, on average
    seconds: float


def run_nuts(case: Case, settings: Settings) -> Run:
    """Draw from a case's posterior."""
    begin = time.perf_counter()
    table, flat = gather(case.shards), case.model.flatten()
    mode = newton.find_mode(flat, ravel_pytree(case.model.start())[0], table)
    precision = np.asarray(prior_taylor(flat, mode.theta).precision + mode.surrogates.total().precision)
    L = jnp.asarray(np.linalg.inv(np.linalg.cholesky(precision)).T)
    rows = jax.tree.map(lambda column: column.astype(float), table.rows)

    def potential(rows, z):
        theta = mode.theta + L @ z
        return -flat.log_prior(theta) - jnp.sum(flat.log_likelihood(theta, rows))

    # In these coordinates the mass matrix is the identity; one learned from a short warmup would be worse
    kernel = NUTS(potential_fn=partial(potential, rows), adapt_mass_matrix=False)
    mcmc = MCMC(
        kernel, num_warmup=settings.warmup, num_samples=settings.draws, num_chains=settings.chains,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    starts = np.random.default_rng(settings.seed).normal(size=(settings.chains, len(L)))
    mcmc.run(jax.random.key(settings.seed), init_params=jnp.asarray(starts), extra_fields=("diverging", "num_steps"))
    draws = np.asarray(mode.theta) + np.asarray(mcmc.get_samples(group_by_chain=True)) @ np.asarray(L).T
    extra = {name: np.asarray(values) for name, values in mcmc.get_extra_fields().items()}
    seconds = time.perf_counter() - begin
    divergences, leapfrogs = int(extra["diverging"].sum()), float(extra["num_steps"].mean())
    return Run(_names(case), draws, np.asarray(mode.theta), mode.sweeps, divergences, leapfrogs, seconds)


def make_reference(run: Run, settings: Settings) -> dict:
    """Summarise draws as a reference."""
    columns = {
        "mean": run.draws.mean((0, 1)), "sd": run.draws.std((0, 1), ddof=1),
        "mcse_mean": diagnostics.mcse_mean(run.draws), "mcse_sd": diagnostics.mcse_sd(run.draws),
        "ess": np.minimum(diagnostics.ess_bulk(run.draws), diagnostics.ess_tail(run.draws)),
        "rhat": diagnostics.rhat(run.draws), "mode": run.mode,
    }  # fmt: skip
    parameters = {
        name: {key: float(f"{column[i]:.8g}") for key, column in columns.items()} for i, name in enumerate(run.names)
    }
    versions = {"numpyro": numpyro.__version__, "jax": jax.__version__, "device": jax.default_backend()}
    facts = {"divergences": run.divergences, "leapfrogs": round(run.leapfrogs, 2), "seconds": round(run.seconds, 1)}
    return {"parameters": parameters, "settings": settings._asdict() | versions, "run": facts}


def problems(reference: dict) -> list[str]:
    """Say in words why a reference cannot be trusted; empty if it can."""
    parameters, lines = reference["parameters"], []
    rhat = max(p["rhat"] for p in parameters.values())
    ess, wanted = min(p["ess"] for p in parameters.values()), reference["settings"]["ess"]
    if not rhat < RHAT:
        lines.append(f"R-hat is {rhat:.4f}, not below {RHAT}")
    if not ess > wanted:
        lines.append(f"the smallest effective sample size is {ess:.0f}, not above {wanted}")
    if reference["run"]["divergences"]:
        lines.append(f"{reference['run']['divergences']} divergent transitions")
    return lines


def _names(case: Case) -> tuple[str, ...]:
    """Name every scalar parameter as `Result.flat_draws` does."""
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(case.model.start()):
        stem = jax.tree_util.keystr(path, simple=True, separator=".") or "theta"
        names += [stem + (str(list(i)) if leaf.shape else "") for i in np.ndindex(*leaf.shape)]
    return tuple(names)


def main() -> None:
    """Run NUTS on the cases named and write what has converged."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [name for name in CASES if name not in SAME_POSTERIOR]
    parser.add_argument("case", nargs="*", choices=[*names, []], help="all by default")
    jax.config.update("jax_enable_x64", True)
    failed = False
    for name in parser.parse_args().case or names:
        settings = LARGE.get(name, Settings())
        run = run_nuts(CASES[name](), settings)
        reference = make_reference(run, settings)
        lines = problems(reference)
        failed |= bool(lines)
        if not lines:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{name}.json").write_text(json.dumps(reference, indent=1) + "\n")
        values = reference["parameters"].values()
        print(f"{name}: ESS {min(p['ess'] for p in values):.0f}, R-hat {max(p['rhat'] for p in values):.5f},"
              f" {run.leapfrogs:.1f} leapfrogs, {run.sweeps} Newton sweeps, {run.seconds:.0f} s"
              + "".join(f"; NOT WRITTEN: {line}" for line in lines), flush=True)  # fmt: skip
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
