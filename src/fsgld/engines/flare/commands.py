"""What the commands `fsgld study`, `coordinator`, `site` and `run` do; `fsgld.study_commands` reads their arguments."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsgld.engines.flare import kits, messages
from fsgld.engines.flare.arguments import arguments
from fsgld.engines.flare.collab import open_site
from fsgld.engines.flare.journey import MOST_IDLE_LEGS, START_SECONDS, Journey, silence
from fsgld.engines.flare.leg import LOCK_SECONDS
from fsgld.engines.flare.post import FIRST
from fsgld.engines.flare.processes import DATA, HEARTBEAT, KIT, STUDY, Contact, Program, until_signal, wait_for_port
from fsgld.engines.flare.site import Limits
from fsgld.errors import InputError
from fsgld.results import Result
from fsgld.study import Study

Say = Callable[[str], None]
PORT_SECONDS = 30.0  # for a server that was killed to let go of its port


def say(line: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def check(folder: Path, data: Path | None) -> list[str]:
    """Say what a study will run and what may leave a site; with a data file, try the model on it."""
    study = Study.read(folder)
    lines = [
        f"study {study.name}, digest {study.digest[:12]}: sites {', '.join(study.sites)}",
        f"coordinator {study.host}:{study.port}, {study.precision}; sampling {study.settings}",
        "what may leave a site (and nothing else):",
    ]
    for kind, fields in messages.REPLIES.items():
        lines.append(f"  {kind:18}" + ", ".join(f"{name} {spec}" for name, spec in fields.items()))
    study.check()
    arguments(study)
    if study.agreement is not None:
        lines += study.agreement.words()
        if data is not None:
            desk = study.agreement.desk(study.sites[0], study.sites, study.agreement.read(data), Limits().min_count)
            lines.append(f"{data}: {desk.rows} complete rows; the site can describe its columns")
    elif data is not None:
        from tempfile import TemporaryDirectory

        from fsgld.engines.flare.processes import keep_programs
        from fsgld.engines.flare.site import Site
        from fsgld.study import read_columns

        with TemporaryDirectory() as place:
            keep_programs(None, study.precision)
            site = Site("this site", study, study.rows(read_columns(data), study.sites[0]), Path(place))
            lines.append(f"{data}: {site.rows} rows, {len(site.theta)} parameters; the model takes them")
    return lines


def coordinate(folder: Path, say: Say = say) -> None:
    """Provision on first use, then serve until Ctrl-C."""
    study = Study.read(folder)
    study.check()
    arguments(study)
    for kit in kits.provision(study):
        say(f"kit for {kit.name}: {kit}")
    server = study.folder / "coordinator" / "server"
    program = Program("server", server, {"org": "centre"}, {STUDY: str(study.folder)})
    stopped = until_signal()
    wait_for_port(study.port, PORT_SECONDS, say)
    say(f"serving {study.name} on {study.host}:{study.port}; give each site its kit, then: fsgld run {folder}")
    program.keep(stopped, say)
    say("stopped")


def serve_site(kit: Path, data: Path, say: Say = say) -> None:
    """Check data and study here, then answer the coordinator until Ctrl-C."""
    kit, data = kit.resolve(), data.resolve()
    if not (kit / "startup" / "fed_client.json").is_file():
        raise InputError(f"{kit} is not a start-up kit; fsgld coordinator makes them, in STUDY/kits")
    site = open_site(kit, data)
    say(
        f"{site.name}: study {site.study.name}, digest {site.study.digest[:12]}, {site.rows} rows; limits {site.limits}"
    )
    settings = {"uid": site.name, "org": kits.organisation(site.name), "heart_beat_interval": str(HEARTBEAT)}
    program = Program("site", kit, settings, {KIT: str(kit), DATA: str(data)})
    program.keep(until_signal(), say, Contact(kits.target(kit), site.study.patience["absence"], say))
    say(f"{site.name}: stopped")


def travel(folder: Path, say: Say = say) -> Result:
    """Run a study across its sites; progress on the screen."""
    study = Study.read(folder)
    arguments(study)
    if not (study.folder / "coordinator" / "admin").is_dir():
        raise InputError(f"{folder} has no kits yet; start fsgld coordinator {folder} first")
    patience = study.patience
    say(
        f"study {study.name}, digest {study.digest[:12]}; a message may take {patience['message']:g} s, with"
        f" {patience['retries']} retries (a first one {FIRST:g} times as long); sites and coordinator have"
        f" {patience['join']:g} s to join; a leg has {START_SECONDS:.0f} s to begin, {LOCK_SECONDS:.0f} s to let go and"
        f" {silence(study):.0f} s from one sign of life to the next; {MOST_IDLE_LEGS} legs may come to nothing"
    )
    result = study.finish(Journey(study, say, _shower(study)).travel())
    result.save(folder / "result.npz")
    return result


def _shower(study: Study) -> Callable[[dict[str, Any]], None]:
    """Show progress: one line that changes on a terminal, a line now and then elsewhere."""
    seconds = 0.5 if sys.stderr.isatty() else 10.0
    last = [0.0]

    def show(progress: dict[str, Any]) -> None:
        if not progress or time.monotonic() < last[0] + seconds:
            return
        last[0] = time.monotonic()
        numbers = [f"{name} {progress[key]:.3g}" for name, key in (("R-hat", "rhat"), ("ess", "ess")) if progress[key]]
        sites = [f"{site} {'away' if site in progress['away'] else 'present'}" for site in study.sites]
        line = ", ".join([f"round {progress['round']}", *numbers, *sites])
        print(f"\r{line}\x1b[K" if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n",
              file=sys.stderr, flush=True)  # fmt: skip

    return show
