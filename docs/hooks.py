"""For mkdocs: pages that the navigation does not name are added, and links out of this folder are put into words."""

import re
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Leave out pages that are not there, and put those that are not named before the API reference."""
    there = sorted(page.name for page in Path(config.docs_dir).glob("*.md"))
    names = [page if isinstance(page, str) else next(iter(page.values())) for page in config.nav]
    nav = [page for page, name in zip(config.nav, names, strict=True) if name in there]
    config.nav = [*nav[:-1], *(name for name in there if name not in names), nav[-1]]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files of the repository that are no pages instead of linking to them."""
    return re.sub(r"\[([^\]]*)\]\(\.\./([^)#]*)[^)]*\)", r"\1 (`\2` in the repository)", markdown)
