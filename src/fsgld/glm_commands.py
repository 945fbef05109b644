"""`fsgld glm` and `fsgld predict`: read arguments, call the library, print. What is heavy is imported inside.

Exit codes: 0 done; 1 all chains diverged, so there is no result; 2 what was given cannot be used (one sentence says
why); 130 stopped by Ctrl-C, and the same command goes on from its checkpoint.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fsgld.glm import Glm
    from fsgld.results import Result

Formula = Annotated[str, typer.Argument(help='"outcome ~ a + b*c + C(d) + offset(log(e))"', show_default=False)]
Files = Annotated[
    list[Path],
    typer.Argument(help="One table a site, with a header; with --study, names of sites.", show_default=False),
]
FamilyName = Annotated[str, typer.Option(help="gaussian, bernoulli, binomial, poisson or negative_binomial.")]
Effects = Annotated[str, typer.Option(help="none, separate or hierarchical: intercepts of the sites.")]


def glm(
    formula: Formula,
    files: Files,
    family: FamilyName = "gaussian",
    site_effects: Effects = "none",
    trials: Annotated[str | None, typer.Option(help="Column with the number of trials (binomial).")] = None,
    offset: Annotated[str | None, typer.Option(help="Added to the linear predictor, as log(exposure).")] = None,
    prior: Annotated[
        list[str] | None, typer.Option(help='As "age=normal(0, 1)"; "coefficients=..." for all, Intercept, tau, ...')
    ] = None,
    out: Annotated[Path, typer.Option(help="The result.")] = Path("glm-result.npz"),
    skip_unusable: Annotated[
        bool, typer.Option("--skip-unusable", help="Leave out sites without usable rows.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Same seed, same draws.")] = 0,
    chains: Annotated[
        int | None, typer.Option(help="Chains; R-hat needs two at least. 4, or 8 in a study.", show_default=False)
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(help="Write a study for the federation here, and do not sample; names of sites are enough."),
    ] = None,
) -> None:
    """Fit a Bayesian GLM across sites: coefficients with honest intervals, no rows pooled.

    Exit codes: 0 done, 1 all chains diverged, 2 wrong input, 130 stopped by Ctrl-C (the same command goes on).
    """
    from fsgld.cli import one_sentence

    with one_sentence():
        if study is not None:
            given: dict[str, Any] = {
                "formula": formula,
                "family": family,
                "site_effects": site_effects,
                "offset": offset,
            }
            given |= {"trials": trials, "priors": _priors(prior or [])}
            _write_study(study, files, seed, 8 if chains is None else chains, skip_unusable, **given)
            return
        from fsgld.glm import glm as make
        from fsgld.glm.agree import said

        _check_out(out)
        names = _site_names(files)
        model = make(
            formula, family, dict(zip(names, files, strict=True)), site_effects=site_effects, trials=trials,
            offset=offset, priors=_priors(prior or []), skip=skip_unusable,
        )  # fmt: skip
        for line in said(model.sites, model.design.priors or {}):
            typer.echo(line)
        result = _run(model, out, seed, 4 if chains is None else chains)
        result.save(out)
        shutil.rmtree(_checkpoint(out), ignore_errors=True)
        print_summary(result)
        typer.echo(f"wrote {out}")
        if all(status.diverged for status in result.status):
            raise typer.Exit(1)


def predict(
    result: Annotated[Path, typer.Argument(help="What fsgld glm wrote.", show_default=False)],
    table: Annotated[Path, typer.Argument(help="New rows, with a header.", show_default=False)],
    site: Annotated[str | None, typer.Option(help="Whose intercept; by default that of a new site.")] = None,
    out: Annotated[Path | None, typer.Option(help="A CSV file; standard output by default.")] = None,
    interval: Annotated[float, typer.Option(help="Probability of the intervals.")] = 0.94,
) -> None:
    """Predict new rows with intervals; where the outcome is known, say how well predictions are calibrated."""
    from fsgld.cli import one_sentence

    with one_sentence():
        from fsgld.errors import InputError
        from fsgld.glm.predict import design_of
        from fsgld.glm.predict import predict as run
        from fsgld.glm.sites import as_table
        from fsgld.results import Result

        if not result.is_file():
            raise InputError(f"there is no file {result}; give what fsgld glm wrote")
        loaded = Result.load(result)
        variables = design_of(loaded).parsed.variables
        found = run(loaded, as_table(table, str(table), variables), site=site, interval=interval)
        found.table.insert(0, "row", range(1, len(found.table) + 1))
        text = found.table.to_csv(index=False, float_format="%.6g")
        if out is None:
            typer.echo(text, nl=False)
        else:
            try:
                out.write_text(text)
            except OSError as error:
                raise InputError(f"cannot write {out}: {error.strerror}") from None
        if found.left_out:
            typer.echo(f"{found.left_out} rows have missing predictors and no prediction", err=True)
        if found.scores:
            typer.echo(", ".join(f"{name} {value:.4g}" for name, value in found.scores.items()), err=True)


def print_summary(result: Result) -> None:
    """Print the table and the notes."""
    from rich.console import Console
    from rich.table import Table

    summary, console = result.summary(), Console()
    if not console.is_terminal:
        console = Console(width=80 + max(map(len, summary.names)))
    shown = {"mean": ".4g", "sd": ".4g", "3%": ".4g", "97%": ".4g", "r_hat": ".3f", "ess_bulk": ".0f", "mcse": ".2g"}
    names = {"r_hat": "R-hat", "ess_bulk": "ESS", "mcse": "MCSE"}
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True, overflow="fold")
    columns = [name for name in shown if name in summary.columns]
    for name in columns:
        table.add_column(names.get(name, name), justify="right", no_wrap=True)
    for i, parameter in enumerate(summary.names):
        table.add_row(parameter, *(format(summary.columns[name][i], shown[name]) for name in columns))
    console.print(table, markup=False, highlight=False)
    notes = result.settings.get("preflight", {}).get("notes", [])
    for note in dict.fromkeys([*notes, *summary.notes]):
        typer.echo(f"note: {note}")
    if not notes and not summary.notes:
        typer.echo("The chains agree, and there are enough effective draws; nothing speaks against the intervals.")


def _run(model: Glm, out: Path, seed: int, chains: int) -> Result:
    """Sample with a checkpoint beside the result; Ctrl-C says how to go on."""
    from fsgld.glm.evidence import Here, add_evidence
    from fsgld.sample import sample

    folder = _checkpoint(out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are in the result, and printed in the end
        try:
            found = sample(model.model, model.shards, seed=seed, chains=chains, checkpoint=folder, **model.options)
        except KeyboardInterrupt:
            typer.echo(f"\nstopped; what is done is in {folder}: give the same command again to go on", err=True)
            raise typer.Exit(130) from None
        result = model.in_units(found)
        add_evidence(result, model.design, found.draws, Here(model.design, model.shards))
    return result


def _write_study(folder: Path, files: list[Path], seed: int, chains: int, skip: bool, **given: Any) -> None:
    """Write a study; no table is needed, since its sites settle the columns when it runs."""
    from fsgld.errors import InputError
    from fsgld.glm.federated import Agreement, write

    if skip:
        raise InputError(
            "in a study all sites take part; leave those out that have no usable rows, not --skip-unusable"
        )
    agreement = Agreement(**given)
    made = write(agreement, _different([file.stem for file in files]), folder, seed, chains)
    for line in agreement.words():
        typer.echo(line)
    typer.echo(f"wrote {made}; its sites agree on the columns when it runs; go on with: fsgld study check {folder}")


def _checkpoint(out: Path) -> Path:
    """Name the checkpoint's folder."""
    return out.with_name(out.name + ".checkpoint")


def _check_out(out: Path) -> None:
    """Check before the run that its result can be written."""
    from fsgld.errors import InputError

    try:
        if out.is_dir():
            raise InputError(f"{out} is a folder; give the name of a file, as result.npz")
        with out.open("ab"):
            pass
        if out.stat().st_size == 0:
            out.unlink()
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}; choose another file") from None


def _site_names(files: list[Path]) -> list[str]:
    """Name sites by their files; by the paths if two files have one name."""
    names = [file.stem for file in files]
    return names if len(set(names)) == len(names) else _different([str(file) for file in files])


def _different(names: list[str]) -> list[str]:
    """Refuse a file that was given twice."""
    from fsgld.errors import InputError

    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{twice[0]} was given twice; give each site's file once")
    return names


def _priors(texts: list[str]) -> dict[str, Any]:
    """Read --prior "name=normal(0, 1)"."""
    from fsgld.errors import InputError

    for text in texts:
        if "=" not in text:
            raise InputError(f'--prior must read "name=normal(0, 1)"; got {text!r}')
    pairs = [text.rsplit("=", 1) for text in texts]
    return {name.strip(): prior.strip() for name, prior in pairs}
