"""One leg of a run, at the coordinator: from the last checkpoint as far as it goes.

`run_leg` calls `fsgld.sample` with the sites as its table and `Travel` as its engine. Whatever ends a leg (a kill, an
aborted job, a lost network), the next one does the same again: answers that were given before the first round
are on the disk, finished rounds are in the checkpoint, so it goes on where the last one stopped, with the same draws.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fsgld import diagnostics
from fsgld.engines.flare.agreeing import add_evidence, agree
from fsgld.engines.flare.arguments import arguments
from fsgld.engines.flare.disk import write_json
from fsgld.engines.flare.post import LegOver, Post, SiteGone, Transport, account
from fsgld.engines.flare.server import Travel
from fsgld.engines.flare.sites import Sites, check_software
from fsgld.errors import CheckpointError, InputError
from fsgld.results import Result
from fsgld.sample import sample
from fsgld.study import Study

LOCK_SECONDS = 60.0  # for the leg before to let go


def run_leg(study: Study, members: Collection[str], transport: Transport, every: float = 5.0) -> Result:
    """Go on with a study's run, with the sites that are there.

    Parameters
    ----------
    members
        The sites that take part in this leg; the others are away, if the run has come to its first round already.
    transport
        Carries bytes to a site and back (see `fsgld.engines.flare.post`).
    every
        Seconds between looks for sites that are away.
    """
    folder = run_folder(study)
    with _alone(folder):
        post = Post(study.digest, folder, transport, study.patience["message"], int(study.patience["retries"]))
        post.book(event="leg", members=sorted(members))
        try:
            result = _go_on(study, post, members, every)
        except (InputError, CheckpointError) as error:
            write_json(folder / "error.json", {"message": str(error)})
            raise
        except SiteGone as error:
            write_json(folder / "waiting.json", {"site": error.site, "why": error.why})
            raise LegOver(f"{error.site} did not answer before the first round: {error.why}") from None
        finally:
            post.pool.shutdown(wait=False)
        result.save(folder / "result.partial")
        os.replace(folder / "result.partial", folder / "result.npz")
        return result


def run_folder(study: Study) -> Path:
    """Give the folder of a study's run; another study, or the same one changed, has another."""
    folder = study.folder / "runs" / study.digest[:12]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _go_on(study: Study, post: Post, members: Collection[str], every: float) -> Result:
    begun = study
    study, about = agree(begun, post, members)
    model, where = study.model(), post.folder / "checkpoint"
    post.turn_to(study)
    greeted, silent = post.each({site: partial(post.call, site, "hello", {}, first=True) for site in members})
    for site, answer in greeted.items():
        check_software(site, answer["software"])
    sites = Sites.meet(post, study.sites)
    for s, site in enumerate(study.sites):
        if site in greeted and greeted[site]["data"] != sites.data[s]:
            raise InputError(f"{site}: its data have changed since the run began; restore them, or change the study")
    progress = Progress(post.folder, study)
    engine = Travel(sites, set(greeted), progress.hear, (post.folder / "stop").exists, every)
    progress.finish()
    for site, error in silent.items():
        progress.hear({"away": site, "why": error.why})
    table: Any = sites
    result = sample(model, table, **arguments(study, sites), engine=engine, checkpoint=where, progress=False)
    add_evidence(study, about, result, post, engine.present)
    result.settings["study"] = {"name": study.name, "digest": begun.digest}
    result.settings["federation"] = account(post.folder, study.sites)
    progress.finish()
    return result


class Progress:
    """Tells `fsgld run` through a file how far the run is: rounds, R-hat, who is away."""

    def __init__(self, folder: Path, study: Study) -> None:
        self.folder, self.away, self.written, self.round, self.moving = folder, dict[str, str](), 0.0, 0, False
        self.took = 0.0
        self.sites, self.thetas = study.sites, [_draws(file) for file in sorted(folder.glob("checkpoint/calls/*.npz"))]

    def hear(self, news: dict[str, Any]) -> None:
        """Take news of the engine."""
        if "away" in news:
            self.away[news["away"]] = news["why"]
        if "back" in news:
            self.away.pop(news["back"], None)
        if "theta" in news:
            self.round, self.moving = news["round"], True
            self.thetas.append(news["theta"][:, None])
            self.away = {site: self.away.get(site, "not connected")
                         for site, there in zip(self.sites, news["there"], strict=True) if not there}  # fmt: skip
        if time.monotonic() > self.written + max(1.0, 10 * self.took) or "theta" not in news:
            self.finish()

    def finish(self) -> None:
        """Write down where the run is; long runs take longer to sum up, so it is done less often."""
        begin = time.monotonic()
        draws = [theta for theta in self.thetas if theta.shape[1]]
        rhat = ess = None
        if draws and len(draws) >= 8:
            late = np.concatenate(draws, axis=1)[:, len(draws) // 10 :]
            rhat, ess = float(np.max(diagnostics.rhat(late))), float(np.min(diagnostics.ess_bulk(late)))
            rhat, ess = (x if np.isfinite(x) else None for x in (rhat, ess))
        facts = {
            "round": self.round,
            "rhat": rhat,
            "ess": ess,
            "away": self.away,
            "moving": self.moving,  # in this leg
            "time": time.time(),
            "pid": os.getpid(),
        }
        write_json(self.folder / "progress.json", facts)
        self.written = time.monotonic()
        self.took = self.written - begin


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the run's lock: two legs at once would write one checkpoint."""
    with (folder / "lock").open("w") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise LegOver(f"another leg still runs after {LOCK_SECONDS:.0f} seconds") from None
                time.sleep(0.2)
        for name in ("stop", "error.json", "waiting.json", "progress.json"):
            with suppress(FileNotFoundError):
                (folder / name).unlink()
        yield


def _draws(file: Path) -> np.ndarray:
    """Read the chains' places from a finished round; nothing if it cannot be read (the checkpoint says why later)."""
    try:
        with np.load(file, allow_pickle=False) as archive:
            return np.asarray(archive["state_0"])[:, None]
    except Exception:
        return np.zeros((1, 0, 1))
