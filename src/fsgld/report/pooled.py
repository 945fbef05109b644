"""The same model with all rows in one place, for simulations: what the federated answer should agree with."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fsgld.errors import InputError
from fsgld.results import Result


def pool(result: Result, files: Sequence[Path], seed: int = 1) -> dict[str, tuple[float, float]]:
    """Fit the result's model to all rows as one client, and give each parameter's mean and sd.

    One client means f = 1 and no conducive gradients: nothing federated is left.
    """
    from fsgld.glm import Glm
    from fsgld.glm.agree import complete
    from fsgld.glm.build import build
    from fsgld.glm.predict import design_of
    from fsgld.glm.sites import as_table

    design = design_of(result)
    by_name = {file.stem: file for file in files} | {str(file): file for file in files}
    if lacking := [site for site in design.sites if site not in by_name]:
        raise InputError(f"the pooled fit needs the table of every site, but none is named {lacking[0]}; give all")
    rows = []
    for i, site in enumerate(design.sites):
        table = as_table(by_name[site], site, design.parsed.variables)
        whole = complete(table, design.parsed.variables, site)
        if len(whole) != design.rows[i]:
            raise InputError(
                f"{site}: {by_name[site]} has {len(whole)} complete rows, but the result was made with"
                f" {design.rows[i]}; give the same table"
            )
        rows.append(design.make_rows(whole, site, i))
    together = {key: np.concatenate([one[key] for one in rows]) for key in rows[0]}
    model = Glm(design, build(design).model(), {"pooled": together}, [])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.sample(probs="auto", seed=seed)
    names, draws = found.flat_draws()
    draws = draws[[not status.diverged for status in found.status]].reshape(-1, len(names))
    if not len(draws):
        raise InputError("the pooled fit diverged in all chains; leave the tables out")
    return {name: (float(m), float(sd)) for name, m, sd in zip(names, draws.mean(0), draws.std(0), strict=True)}
