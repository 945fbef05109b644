"""FLARE's programs as child processes: what is started here is watched, started again if it dies, and stopped.

A program whose parent has died ends itself within a second (`fsgld.watched`), so that killing a command leaves
nothing behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STUDY, KIT, DATA = "FSGLD_STUDY", "FSGLD_KIT", "FSGLD_TABLE"  # environment variables for the jobs' processes
PROGRAMS = {
    "server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
    "site": ("nvflare.private.fed.app.client.client_train", "fed_client.json"),
}
HEARTBEAT = 3.0  # seconds between signs of life of a site
STOP_SECONDS = 5.0  # for a program to end when asked to


class Program:
    """One of FLARE's programs, started again whenever it dies."""

    def __init__(self, role: str, workspace: Path, settings: dict[str, str], environment: dict[str, str]) -> None:
        module, config = PROGRAMS[role]
        words = [f"{name}={value}" for name, value in settings.items()]
        self.command = [sys.executable, "-u", "-m", "fsgld.watched", module, "-m", str(workspace)]
        self.command += ["-s", config, "--set", "secure_train=true", "config_folder=config", *words]
        self.environment = os.environ | environment | {"PYTHONUNBUFFERED": "1"}
        self.log = workspace / "flare.log"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the program; what it prints goes to `flare.log` in its folder."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def keep(self, stopped: Callable[[], bool], announce: Callable[[str], None]) -> None:
        """Watch the program until `stopped`, starting it again when it dies; then stop it."""
        pause = 1.0
        try:
            while not stopped():
                begin = time.monotonic()
                self.start()
                assert self.process is not None
                while self.process.poll() is None and not stopped():
                    time.sleep(0.2)
                if not stopped():
                    pause = 1.0 if time.monotonic() > begin + 30 else min(2 * pause, 10.0)
                    announce(f"FLARE's program ended ({self.process.returncode}); starting it again in {pause:g} s")
                    time.sleep(pause)
        finally:
            self.stop()

    def stop(self) -> None:
        """Ask the program to end, then make it; its jobs' processes end when it has."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_SECONDS)


def until_signal() -> Callable[[], bool]:
    """Give a function that says whether Ctrl-C or a request to end has come."""
    event = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: event.set())
    return event.is_set


def keep_programs(folder: Path | None, precision: str) -> None:
    """Choose the precision, and keep compiled programs in a folder, if one is given: the next leg finds them again."""
    import jax

    update: Any = jax.config.update
    update("jax_enable_x64", precision == "float64")
    if folder is not None:
        update("jax_compilation_cache_dir", str(folder))
        update("jax_persistent_cache_min_compile_time_secs", 0.0)
        update("jax_persistent_cache_min_entry_size_bytes", -1)
