"""The few lines that FLARE calls: the job names these two classes, and they come from the installed `fsgld`."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_exception import NotAuthenticated
from nvflare.collab import CollabCallError, collab
from nvflare.collab.api.context import get_call_context
from nvflare.collab.api.exceptions import RunAborted

from fsgld.engines.flare.processes import DATA, KIT, STUDY, keep_programs
from fsgld.watched import watch_parent

ABORT_SECONDS = 3.0
STRANGER = "{!r} is not a site of this study"


class Coordinator:
    """Runs at the FLARE server, in the job's process: one leg of the run."""

    @collab.main  # type: ignore[untyped-decorator]
    def main(self) -> str:
        """Carry chains between the sites of this job until the run, or the leg, is over."""
        watch_parent()
        from fsgld.engines.flare.leg import run_leg
        from fsgld.engines.flare.post import LegOver
        from fsgld.study import Study

        study = Study.read(os.environ[STUDY])
        keep_programs(study.folder / "coordinator" / "programs", study.precision)
        members = {client.name: client for client in collab.clients}
        context = get_call_context()

        def transport(site: str, data: bytes, timeout: float) -> bytes:
            if site not in members:
                raise ConnectionError("not connected")
            begin = time.monotonic()
            try:
                return bytes(members[site](timeout=timeout).call(message=data))
            except RunAborted as error:
                raise LegOver("the FLARE job has ended") from error
            except CollabCallError as error:
                if time.monotonic() > begin + timeout - 0.5:
                    raise ConnectionError(f"no answer within {timeout:g} seconds") from error
                end = time.monotonic() + ABORT_SECONDS  # a job that is about to end breaks its connections first
                while time.monotonic() < end:
                    if context.is_aborted():
                        raise LegOver("the FLARE job has ended") from error
                    time.sleep(0.1)
                raise ConnectionError("a broken connection") from error

        try:
            run_leg(study, set(members) & set(study.sites), transport)
        except LegOver as over:
            return f"leg over: {over}"
        return "finished"


class Doorkeeper(FLComponent):  # type: ignore[misc]
    """Stands at the FLARE server: who has a certificate, but is not on the study's list, is refused and logged."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Look at a site when it asks to join, and once more, by its certificate's name, when FLARE has let it in."""
        from fsgld.study import Study

        if event_type == EventType.CLIENT_REGISTER_RECEIVED and fl_ctx.get_prop(FLContextKey.CLIENT_TYPE) != "admin":
            peer = fl_ctx.get_peer_context()
            name = peer.get_identity_name() if peer else None
            if name not in Study.read(os.environ[STUDY]).sites:
                raise NotAuthenticated(STRANGER.format(str(name)[:60]))
        if event_type == EventType.CLIENT_REGISTER_PROCESSED:
            manager, sites = fl_ctx.get_engine().client_manager, Study.read(os.environ[STUDY]).sites
            for name in {client.name for client in manager.get_clients().values()} - set(sites):
                manager.disable_client(name)
                self.logger.error(f"Failed to authenticate the register_client: {STRANGER.format(name)}")


class Member:
    """Runs at a site, in the job's process; data and compiled programs stay hot in it."""

    def __init__(self) -> None:
        self.site: Any = None
        self.opening = threading.Lock()

    @collab.publish  # type: ignore[untyped-decorator]
    def call(self, message: bytes) -> bytes:
        """Decode, do, encode."""
        with self.opening:
            if self.site is None:
                watch_parent()
                self.site = open_site(Path(os.environ[KIT]), Path(os.environ[DATA]))
                logging.getLogger(__name__).info("the site's data are loaded")
        return bytes(self.site.answer(message))


def open_site(kit: Path, data: Path) -> Any:
    """Load a site's study and data."""
    from fsgld.engines.flare.kits import owner
    from fsgld.engines.flare.site import Limits, Site
    from fsgld.study import Study, read_columns

    name, study = owner(kit), Study.read(kit / "study")
    keep_programs(kit / "fsgld" / "programs", study.precision)
    rows = study.rows(read_columns(data), name) if study.agreement is None else study.agreement.read(data)
    return Site(name, study, rows, kit / "fsgld", Limits.read(kit / "limits.toml"))
