"""The command line: each command reads its arguments, calls one public function and prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fsgld import __version__, glm_commands, study_commands
from fsgld.experiments import EXPERIMENTS
from fsgld.report import command as report_command

# What is heavy (JAX, the library) is imported inside the commands, so that help comes at once.

app = typer.Typer(
    name="fsgld", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="Bayesian inference on data that cannot leave its owners.",
)  # fmt: skip
data_app = typer.Typer(no_args_is_help=True, help="The paper's data sets, from UCI.")
app.add_typer(data_app, name="data")

Names = Annotated[list[str], typer.Argument(help="One or more data sets; `fsgld data list` has them.")]
Name = Annotated[str, typer.Argument(help=f"{', '.join(EXPERIMENTS)}; or all.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fsgld {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@data_app.command("list")
def list_data() -> None:
    """List the data sets and where they are."""
    from fsgld import data
    from fsgld.data.catalogue import CATALOGUE

    for name, dataset in CATALOGUE.items():
        rows = " or ".join(f"{n:,}" for n, _ in dataset.shapes)
        print(f"{name:18} {dataset.title:30} {rows + ' rows':26} {data.where(name) or 'not here'}")


@data_app.command("get")
def get_data(names: Names) -> None:
    """Download data sets from UCI into the cache; a broken download goes on where it stopped."""
    with one_sentence():
        from fsgld import data

        for name in names:
            print(data.get(name))


@app.command()
def reproduce(
    name: Name,
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes, with fewer draws.")] = False,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("reproduced"),
    seeds: Annotated[int | None, typer.Option(help="Repetitions; by default as in the paper.")] = None,
) -> None:
    """Run an experiment of the paper; write data, figures, and a table against what the paper says."""
    with one_sentence():
        from rich.console import Console

        from fsgld.experiments.reproduce import as_table, has_repetitions
        from fsgld.experiments.reproduce import reproduce as run

        for each in EXPERIMENTS if name == "all" else [name]:
            repeated = name != "all" or has_repetitions(each)
            with _progress() as announce:
                folder, lines = run(each, out, quick=quick, seeds=seeds if repeated else None, announce=announce)
            Console().print(as_table(EXPERIMENTS[each], lines))
            print(f"wrote {folder}")


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar on the standard error stream."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, text: bar.update(task, completed=done, total=total, description=text)


@contextmanager
def one_sentence() -> Iterator[None]:
    """End with exit code 2 and one sentence if the user can put it right."""
    from fsgld.errors import CheckpointError, InputError

    try:
        yield
    except (InputError, CheckpointError, ImportError) as error:
        typer.echo(f"fsgld: {error}", err=True)
        raise typer.Exit(2) from None


app.command("glm", no_args_is_help=True)(glm_commands.glm)
app.command("predict", no_args_is_help=True)(glm_commands.predict)
app.add_typer(study_commands.study_app, name="study")
for _command in (study_commands.coordinator, study_commands.site, study_commands.run):
    app.command(no_args_is_help=True)(_command)
app.command("report", no_args_is_help=True)(report_command.report)


def main() -> None:
    """Run the command line."""
    app()
