"""`fsgld report`: read arguments, call the library, print. What is heavy is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    result: Annotated[Path, typer.Argument(help="What fsgld glm, or Result.save, wrote.", show_default=False)],
    tables: Annotated[
        list[Path] | None,
        typer.Argument(help="The sites' tables, where they may lie in one place: adds the pooled fit."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The HTML file; RESULT.html by default.")] = None,
) -> None:
    """Write a report to read and to send: one HTML file with the answer, its checks, and what left each site."""
    from fsgld.cli import one_sentence

    with one_sentence():
        from fsgld.errors import InputError
        from fsgld.report import write
        from fsgld.results import Result

        if not result.is_file():
            raise InputError(f"there is no file {result}; give what fsgld glm wrote")
        loaded, pooled = Result.load(result), None
        if tables:
            from fsgld.report.pooled import pool

            pooled = pool(loaded, tables)
        target = out or result.with_suffix(".html")
        write(loaded, target, pooled)
        typer.echo(f"wrote {target}")
