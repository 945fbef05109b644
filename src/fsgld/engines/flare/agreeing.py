"""Where a study leaves something to settle: the coordinator asks all sites before the first round, and tells them.

What was settled is on the coordinator's disk (`agreed.json`), so that every leg has the same, and in each site's folder
(`design.json`), where its owner can read it. From then on messages carry the digest of the settled study.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial
from typing import Any

from fsgld.engines.flare.disk import write_json
from fsgld.engines.flare.post import Post, Refused, SiteGone
from fsgld.engines.flare.sites import Sites
from fsgld.errors import InputError
from fsgld.results import Result
from fsgld.study import Study


class Asker:
    """Puts an agreement's questions to the sites: `fsgld.glm.remote.Asker`."""

    def __init__(self, study: Study, post: Post) -> None:
        self.study, self.post, self.sites = study, post, study.sites

    def all(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Ask every site; nothing is kept, so that a site's owner may mend the table and the run begin again."""
        answers, gone = self.post.each(
            {site: partial(self.post.call, site, kind, fields, first=True) for site in self.sites}
        )
        for error in gone.values():
            raise error
        return answers

    def some(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        """Ask those that are there, at the end of a run; the others, and whoever refuses, are left out."""

        def ask(site: str) -> Any:
            try:
                return self.post.ask(site, kind, fields)
            except Refused as refusal:
                raise SiteGone(site, str(refusal)) from None

        answers, gone = self.post.each({site: partial(ask, site) for site in self.sites})
        for site, error in gone.items():
            self.post.book(event="no answer", site=site, kind_asked=kind, why=error.why)
        return {site: answers[site] for site in self.sites if site in answers}

    def table(self, content: dict[str, Any]) -> Sites:
        """Tell all sites a design, and greet them as the study that follows from it."""
        return Sites.meet(self.post, tell(self.study, content, self.post, self.sites, needed=True).sites)


def agree(study: Study, post: Post, members: Collection[str]) -> tuple[Study, dict[str, Any]]:
    """Give the study with what its sites have settled on, and what is known of it."""
    if study.agreement is None:
        return study, {}
    file = post.folder / "agreed.json"
    if not file.is_file():
        about = study.agreement.settle(Asker(study, post))
        write_json(file, about)
    about = json.loads(file.read_text())
    try:
        return tell(study, about["design"], post, members), about
    except Refused as refusal:
        raise InputError(
            f"{refusal}. Has the table changed since the columns were agreed on? Restore it, or remove {post.folder} to"
            " begin anew"
        ) from None


def tell(study: Study, content: dict[str, Any], post: Post, members: Collection[str], needed: bool = False) -> Study:
    """Tell sites what was settled; from now on messages are about the study that follows from it."""
    settled = study.settled(content)
    fields = {"design": json.dumps(content)}
    post.study = study.digest
    answers, gone = post.each({site: partial(post.call, site, "design", fields, first=True) for site in members})
    for error in gone.values() if needed else ():
        raise error
    for site, answer in answers.items():
        if answer["study"] != settled.digest:
            raise Refused(f"{site} settles on another study; is its fsgld another version?")
    post.turn_to(settled)
    return settled


def add_evidence(study: Study, about: dict[str, Any], result: Result, post: Post, there: Collection[str]) -> None:
    """Ask the sites that are there for what a report shows beside the posterior."""
    if about:
        ask = Asker(study, post)
        ask.sites = tuple(site for site in study.sites if site in there)
        study.agreement.evidence(about, result, ask)
