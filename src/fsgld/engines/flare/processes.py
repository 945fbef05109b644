"""FLARE's programs as child processes: what is started here is watched, started again if it dies, and stopped.

A program whose parent has died ends itself within a second (`fsgld.watched`), so that killing a command leaves
nothing behind.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsgld.errors import InputError

STUDY, KIT, DATA = "FSGLD_STUDY", "FSGLD_KIT", "FSGLD_TABLE"  # environment variables for the jobs' processes
PROGRAMS = {
    "server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
    "site": ("nvflare.private.fed.app.client.client_train", "fed_client.json"),
}
HEARTBEAT = 3.0  # seconds between signs of life of a site
STOP_SECONDS = 5.0  # for a program to end when asked to
SHORT_LIFE = 30.0  # seconds
MOST_SHORT_LIVES = 20  # in a row, then it is given up
# What FLARE and gRPC write when they refuse: TLS, a name that is not the certificate's, a stranger
REFUSALS = re.compile(
    r"Handshake failed with error (.*)|Error: connection (\S+ authenticated as .*)"
    r"|failed to verify client identity: (.*)|Failed to authenticate the register_client: (.*)"
)


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
        self.read = 0  # bytes of the log

    def start(self) -> None:
        """Start the program; what it prints goes to `flare.log` in its folder."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def keep(
        self, stopped: Callable[[], bool], announce: Callable[[str], None],
        look: Callable[[int], None] = lambda pid: None,
    ) -> None:  # fmt: skip
        """Watch the program until `stopped`, starting it again when it dies; then stop it.

        `look(pid)` is called once a second and may raise. What the program's log says was refused is announced.
        """
        pause, short, self.read = 1.0, 0, self.log.stat().st_size if self.log.is_file() else 0
        try:
            while not stopped():
                begin = looked = time.monotonic()
                self.start()
                assert self.process is not None
                while self.process.poll() is None and not stopped():
                    time.sleep(0.2)
                    if time.monotonic() > looked + 1:
                        looked = time.monotonic()
                        self._tell_refusals(announce)
                        look(self.process.pid)
                if not stopped():
                    brief = time.monotonic() < begin + SHORT_LIFE
                    pause, short = (min(2 * pause, 10.0), short + 1) if brief else (1.0, 0)
                    if short >= MOST_SHORT_LIVES:
                        raise InputError(f"FLARE's program ended {short} times in a row; {self.log} says why")
                    announce(
                        f"FLARE's program ended ({self.process.returncode}); starting it again in {pause:g} s, at most"
                        f" {MOST_SHORT_LIVES} times in a row"
                    )
                    time.sleep(pause)
        finally:
            self.stop()

    def _tell_refusals(self, announce: Callable[[str], None]) -> None:
        """Announce what was refused since the last look."""
        with self.log.open("rb") as log:
            log.seek(self.read)
            new = log.read()
        new = new[: new.rfind(b"\n") + 1]  # whole lines
        self.read += len(new)
        found = [next(filter(None, match)) for match in REFUSALS.findall(new.decode(errors="replace"))]
        for reason in found[:5]:
            announce(f"refused a connection: {reason.strip()[:200]}")
        if len(found) > 5:
            announce(f"refused {len(found) - 5} more")

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


class Contact:
    """Tells a site's owner whether the coordinator is reached, and gives up after `limit` seconds without."""

    def __init__(self, address: str, limit: float, announce: Callable[[str], None]) -> None:
        self.address, self.port, self.limit, self.announce = address, int(address.rsplit(":", 1)[1]), limit, announce
        self.connected, self.since = False, time.monotonic()
        announce(f"connecting to {address}; at most {limit:.0f} s without a connection")

    def __call__(self, pid: int) -> None:
        """Look at the connections of FLARE's program."""
        import psutil  # type: ignore[import-untyped]

        try:
            found = psutil.Process(pid).net_connections("tcp")
        except psutil.Error:
            return
        connected = any(c.status == "ESTABLISHED" and c.raddr and c.raddr.port == self.port for c in found)
        if connected != self.connected:
            self.connected, self.since = connected, time.monotonic()
            self.announce(
                f"connected to {self.address}" if connected
                else f"lost {self.address}; trying to reach it for {self.limit:.0f} s at most"
            )  # fmt: skip
        if not connected and time.monotonic() > self.since + self.limit:
            raise InputError(f"{self.address} was not reached for {self.limit:.0f} s; start again when it is there")


def wait_for_port(port: int, seconds: float, announce: Callable[[str], None]) -> None:
    """Wait until nobody listens on a port: FLARE would share it with another server without a word."""
    end, told = time.monotonic() + seconds, False
    while True:
        with socket.socket() as test:
            test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                return test.bind(("", port))
            except OSError as error:
                if time.monotonic() > end:
                    raise InputError(f"port {port} is not free ({error.strerror}); stop what uses it") from None
        if not told:
            announce(f"port {port} is in use; waiting at most {seconds:.0f} s")
            told = True
        time.sleep(0.2)


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
