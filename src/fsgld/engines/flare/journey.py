"""`fsgld run`: leg after leg until there is a result. Every wait has a limit, and says so.

A leg is a FLARE job. Whether it lives is seen by the lock that it holds on the run's folder, not by FLARE's word for
it: a server that was killed and came back still calls its dead jobs running.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from fsgld.engines.flare.disk import read_json
from fsgld.engines.flare.kits import admin, write_job
from fsgld.engines.flare.leg import run_folder
from fsgld.engines.flare.post import FIRST
from fsgld.engines.flare.processes import HEARTBEAT
from fsgld.errors import InputError
from fsgld.results import Result
from fsgld.study import Study

START_SECONDS = 120.0  # for a leg to begin after it was submitted
GRACE_SECONDS = 12.0  # for sites to come back before a leg begins without them
FRESH_SECONDS = 4 * HEARTBEAT  # a site with a sign of life in this time is connected
MOST_IDLE_LEGS = 15  # legs in a row without an answer or a round
FORGET_SECONDS = 120.0  # after which such a leg no longer counts
RETURN_SECONDS = 10.0  # until a leg is ended for a site that is connected again; doubled each time it was in vain


def silence(study: Study) -> float:
    """Give the seconds after which a leg without a sign of life is given up: no wait inside of one is so long."""
    return 120.0 + 2 * FIRST * study.patience["message"] * (1 + study.patience["retries"])


class Journey:
    """A run across sites, as its coordinator's owner sees it."""

    def __init__(self, study: Study, announce: Callable[[str], None], show: Callable[[dict[str, Any]], None]) -> None:
        self.study, self.announce, self.show = study, announce, show
        self.folder = run_folder(study)
        self.session: Any = None
        self.job: str | None = None
        self.idle, self.done, self.agreed = 0, -1, False
        self.since: dict[str, float] = {}  # since when a site is away
        self.waits: dict[str, tuple[float, float]] = {}  # how long to wait for a site, and when a leg was ended for it

    def travel(self) -> Result:
        """Submit legs until the result is there."""
        logging.getLogger().setLevel(logging.CRITICAL)  # FLARE's client tells every lost connection
        try:
            while not self._finished():
                if not self._held():
                    self._submit()
                self._watch()
                self._count()
        finally:
            self._abort()
            self._forget()
        return Result.load(self.folder / "result.npz")

    def _submit(self) -> None:
        """Wait for sites, bounded, and submit a leg with those that are there."""
        begun = any(self.folder.glob("checkpoint/calls/*.npz"))
        limit = GRACE_SECONDS if begun else float(self.study.patience["join"])
        members = self._wait_for_sites(limit, all_needed=not begun)
        self._abort()
        job, server = write_job(self.study, members), self._server_start()
        self.job = str(self._try("submit a leg", lambda session: session.submit_job(str(job))))
        self.announce(f"leg submitted with {', '.join(members)}; it has {START_SECONDS:.0f} s to begin")
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and not self._held() and not self._finished():
            if str(self._status()).startswith("FINISHED") or self._server_start() != server:
                self.announce("the leg could not begin")
                time.sleep(1.0)
                return
            time.sleep(0.5)

    def _watch(self) -> None:
        """Follow a leg while it holds the lock; end it when a site that is away is connected again."""
        begin, limit = time.time(), silence(self.study)
        while self._held() and not self._finished():
            self._tell_agreement()
            progress = read_json(self.folder / "progress.json")
            self.show(progress)
            if progress.get("moving"):
                self._consider_returns(progress["away"])
            ledger = self.folder / "ledger.jsonl"
            heard = max(begin, ledger.stat().st_mtime) if ledger.exists() else begin
            if time.time() > heard + limit:
                raise InputError(
                    f"the leg has shown no sign of life for {limit:.0f} s (process {progress.get('pid')} at the"
                    " coordinator); the checkpoint is kept: start fsgld coordinator again, then run again"
                )
            time.sleep(0.5)

    def _tell_agreement(self) -> None:
        """Say what the sites have settled on, once they have."""
        if not self.agreed and (about := read_json(self.folder / "agreed.json")):
            self.agreed = True
            for line in self.study.agreement.said(about):
                self.announce(line)

    def _consider_returns(self, away: Collection[str]) -> None:
        """End the leg for a site that has come back; wait longer each time, if the times are close."""
        now = time.monotonic()
        self.since = {site: self.since.get(site, now) for site in away}
        for site, since in list(self.since.items()):
            wait, last = self.waits.get(site, (RETURN_SECONDS, now))
            wait = RETURN_SECONDS if now > last + FORGET_SECONDS + wait else wait
            if now < since + wait:
                continue
            self.since[site] = now
            if site in self._connected():
                self.waits[site] = (2 * wait, now)
                self.announce(f"{site} is connected again: the next leg takes it in")
                (self.folder / "stop").touch()

    def _count(self) -> None:
        """Stop if legs achieve nothing."""
        if error := read_json(self.folder / "error.json").get("message"):
            raise InputError(error)
        done = len(list(self.folder.glob("checkpoint/calls/*.npz"))) + len(list(self.folder.glob("answers/*")))
        self.idle, self.done = (self.idle + 1, done) if done == self.done else (0, done)
        if self.idle >= MOST_IDLE_LEGS:
            waiting = read_json(self.folder / "waiting.json")
            why = f"; {waiting['site']}: {waiting['why']}" if waiting else ""
            raise InputError(
                f"{self.idle} legs in a row came no further{why}. The checkpoint is kept; look at flare.log in the"
                " coordinator's and the sites' folders, then run again"
            )

    def _wait_for_sites(self, limit: float, all_needed: bool) -> list[str]:
        """Wait until all sites are connected, at most for `limit` seconds; then go with those that are, if allowed."""
        begin = time.monotonic()
        told = False
        while True:
            connected = [site for site in self.study.sites if site in self._connected()]
            if len(connected) == len(self.study.sites):
                return connected
            missing = ", ".join(site for site in self.study.sites if site not in connected)
            if not told:
                self.announce(f"waiting for {missing}, at most {limit:.0f} s")
                told = True
            if time.monotonic() > begin + limit:
                if connected and not all_needed:
                    return connected
                if not all_needed and limit < self.study.patience["join"]:
                    limit, told = float(self.study.patience["join"]), False
                    continue
                raise InputError(
                    f"{missing} did not connect within {limit:.0f} s; start fsgld site there, then run again"
                )
            time.sleep(0.5)

    def _connected(self) -> list[str]:
        """Name the sites with a recent sign of life."""
        info = self._try("ask who is connected", lambda session: session.get_system_info())
        return [c.name for c in info.client_info if time.time() - c.last_connect_time < FRESH_SECONDS]

    def _server_start(self) -> Any:
        """Tell one life of the FLARE server from another: a leg that was submitted to the last one is lost."""
        return self._try("ask for the server", lambda session: session.get_system_info().server_info.start_time)

    def _try(self, what: str, action: Callable[[Any], Any]) -> Any:
        """Ask the FLARE server for something; reconnect, at most for so long as is allowed."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        limit, begin, told = float(self.study.patience["join"]), time.monotonic(), False
        kit = str(self.study.folder / "coordinator" / "admin")
        while True:
            try:
                if self.session is None:
                    with contextlib.redirect_stdout(io.StringIO()):
                        self.session = new_secure_session(admin(self.study), kit, timeout=5.0)
                    self.session.set_timeout(10.0)
                return action(self.session)
            except Exception as error:
                self._forget()
                if time.monotonic() > begin + limit:
                    raise InputError(
                        f"cannot {what}: the coordinator has not answered for {limit:.0f} s ({type(error).__name__}: "
                        f"{str(error)[:100]}); start fsgld coordinator, then run again"
                    ) from None
                if not told:
                    self.announce(f"no connection to the coordinator ({error}); trying for {limit:.0f} s at most")
                    told = True
                time.sleep(0.5)

    def _forget(self) -> None:
        with contextlib.suppress(Exception):
            self.session.close()
        self.session = None

    def _status(self) -> Any:
        with contextlib.suppress(Exception):
            return self.session.get_job_meta(self.job).get("status")
        return None

    def _abort(self) -> None:
        """End the job of the last leg, if it is still there."""
        if self.job is not None and self.session is not None:
            with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
                self.session.abort_job(self.job)
        self.job = None

    def _finished(self) -> bool:
        return (self.folder / "result.npz").is_file()

    def _held(self) -> bool:
        """Whether a leg is running: it holds the lock."""
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
            return False
