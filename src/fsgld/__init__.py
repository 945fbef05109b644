"""Bayesian inference on data that cannot leave its owners.

`fsgld` implements Federated Stochastic Gradient Langevin Dynamics (el Mekkaoui, Mesquita,
Blomstedt and Kaski, UAI 2021). Start with `Model` and `sample`. The modules `fsgld.shards` (splitting
helpers), `fsgld.schedules` (step sizes) and `fsgld.theory` (the paper's bounds) complete the names below;
`fsgld.data` has the paper's data sets, `fsgld.adapters` takes models from elsewhere, `fsgld.errors` has what is raised.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fsgld.xla import set_flags as _set_flags

if TYPE_CHECKING:
    from fsgld import adapters, data, diagnostics, errors, schedules, shards, theory  # noqa: F401
    from fsgld.adapters import from_numpyro
    from fsgld.approximate import approximate
    from fsgld.diagnostics import Converged
    from fsgld.dynamics import langevin, psgld, sghmc, whitened
    from fsgld.errors import CheckpointError, InputError  # noqa: F401
    from fsgld.fit import analytic, anchored, fit, from_draws, laplace
    from fsgld.glm import glm
    from fsgld.likelihood import control_variate, plain
    from fsgld.model import Model
    from fsgld.preflight import preflight
    from fsgld.results import Result
    from fsgld.sample import sample
    from fsgld.surrogates import Gaussian

__version__ = "0.2.2"

_set_flags()  # before JAX starts

__all__ = [
    "Converged",
    "Gaussian",
    "Model",
    "Result",
    "analytic",
    "anchored",
    "approximate",
    "control_variate",
    "fit",
    "from_draws",
    "from_numpyro",
    "glm",
    "langevin",
    "laplace",
    "plain",
    "preflight",
    "psgld",
    "sample",
    "sghmc",
    "whitened",
]

# Names are fetched from their modules when first used, so that `fsgld --help` need not wait for JAX.
_HOMES = {
    "adapters": ("from_numpyro",),
    "approximate": ("approximate",),
    "diagnostics": ("Converged",),
    "dynamics": ("langevin", "psgld", "sghmc", "whitened"),
    "errors": ("CheckpointError", "InputError"),
    "fit": ("analytic", "anchored", "fit", "from_draws", "laplace"),
    "glm": ("glm",),
    "likelihood": ("control_variate", "plain"),
    "model": ("Model",),
    "preflight": ("preflight",),
    "results": ("Result",),
    "sample": ("sample",),
    "surrogates": ("Gaussian",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("adapters", "data", "diagnostics", "errors", "schedules", "shards", "theory")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"fsgld.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'fsgld' has no attribute {name!r}")
    value = getattr(import_module(f"fsgld.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


class _Package(ModuleType):
    """Keeps `fsgld.fit` and `fsgld.sample` the functions: importing their modules would bind those instead."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
