"""`fsgld study`, `coordinator`, `site` and `run`: read arguments, call `fsgld.engines.flare`, print."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

study_app = typer.Typer(no_args_is_help=True, help="A study across sites: a folder with study.toml and model.py.")

Folder = Annotated[Path, typer.Argument(help="The study's folder.", show_default=False)]
Kit = Annotated[Path, typer.Argument(help="The start-up kit that the coordinator made.", show_default=False)]


@study_app.command("new")
def new(folder: Folder) -> None:
    """Write a small study to begin with."""
    with _one_sentence():
        from fsgld import study

        print(f"wrote {study.new(folder)}; edit study.toml and model.py, then: fsgld study check {folder}")


@study_app.command("check")
def check(
    folder: Folder,
    data: Annotated[Path | None, typer.Option(help="A site's file to try the model on.")] = None,
) -> None:
    """Say what will run at the sites, and what may leave them."""
    with _one_sentence():
        from fsgld.engines.flare import commands

        print("\n".join(commands.check(folder, data)))


def coordinator(folder: Folder) -> None:
    """Serve a study at the centre; on first use this makes the sites' start-up kits."""
    with _one_sentence():
        from fsgld.engines.flare import commands

        commands.coordinate(folder)


def site(
    kit: Kit,
    data: Annotated[Path, typer.Option(help="This site's data: .csv, .parquet or .npz.", show_default=False)],
) -> None:
    """Take part in a study with a file that stays here."""
    with _one_sentence():
        from fsgld.engines.flare import commands

        commands.serve_site(kit, data)


def run(folder: Folder) -> None:
    """Run a study across its sites; the result is in its folder."""
    with _one_sentence():
        from fsgld.engines.flare import commands

        result = commands.travel(folder)
        if "glm" in result.settings:
            from fsgld.glm_commands import print_summary

            print_summary(result)
        else:
            print(result.summary())
        for name, row in result.settings["federation"]["sites"].items():
            print(f"{name}: {', '.join(f'{what} {value:g}' for what, value in row.items())}")
        print(f"wrote {folder / 'result.npz'}")


def _one_sentence() -> AbstractContextManager[None]:
    from fsgld.cli import one_sentence

    return one_sentence()
