"""The report: one HTML file that answers first and then shows why to trust it. `fsgld report RESULT` calls `write`.

`content` finds what a result holds, `figures` draws it, `template.html` lays it out. A section appears when its data
exist, so any saved `Result` has a report; those of `fsgld glm` have all sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsgld.errors import InputError

if TYPE_CHECKING:
    from fsgld.results import Result

__all__ = ["render", "write"]


def render(result: Result, pooled: Mapping[str, Any] | None = None) -> str:
    """Give the report as HTML that asks nothing of any network.

    Parameters
    ----------
    result
        Any result; one of `fsgld glm` has a formula, each site alone, predictive checks and pulls as well.
    pooled
        From parameter to mean and sd with all rows in one place, as `fsgld.report.pooled.pool` gives them.
    """
    try:
        from jinja2 import Environment, PackageLoader

        from fsgld.report import figures
    except ImportError:
        raise ImportError("reports need ArviZ, matplotlib and Jinja2: pip install 'fsgld[report]'") from None
    from fsgld.report.content import collect

    content = collect(result, pooled)
    page = Environment(loader=PackageLoader("fsgld.report", ""), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return page.get_template("template.html").render(figures=figures.draw(content), **content)


def write(result: Result, file: str | Path, pooled: Mapping[str, Any] | None = None) -> None:
    """Write the report to a file."""
    text = render(result, pooled)
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror}; choose another file") from None
