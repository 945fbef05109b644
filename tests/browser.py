"""Headless Chromium, driven by its debugging protocol over a pipe: what a page logs, asks for and looks like."""

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe", "about:blank",
]  # fmt: skip


def find_chromium():
    """Find Chromium; install Debian's where that is possible, else skip and say why."""
    if found := shutil.which("chromium"):
        return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("Chromium is not installed, and only root on Debian can install it here: apt-get install chromium")
    with (Path(tempfile.gettempdir()) / "fsgld-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        return shutil.which("chromium") or _install()


def _install():
    """Install Debian's; what goes wrong is said in one line, with what to do."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "timeout": 400}
    settings = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "--option", "DPkg::Lock::Timeout=120", "--yes"]  # another apt may be at work
    command = [*apt, "install", "--no-install-recommends", "chromium", "fonts-dejavu-core"]
    try:
        done = subprocess.run(command, env=settings, **quiet)
        if done.returncode:  # the lists of packages may be old, or not there
            subprocess.run([*apt, "update"], env=settings, **quiet)
            done = subprocess.run(command, env=settings, **quiet)
        why = " ".join(line for line in done.stderr.splitlines() if line.startswith("E:"))[:300] or "apt-get failed"
    except subprocess.TimeoutExpired as error:
        why = f"apt-get took longer than {error.timeout:.0f} seconds"
    if found := shutil.which("chromium"):
        return found
    pytest.skip(f"Chromium could not be installed ({why}); install it yourself: apt-get install chromium")


class Browser:
    """One page. `requests` and `errors` are what it asked for and logged since it was opened."""

    def __init__(self, program):
        self.folder = tempfile.mkdtemp()
        (theirs, self.ours), (self.answers, back) = os.pipe(), os.pipe()
        shell = f'exec "$0" "$@" 3<&{theirs} 4>&{back}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, program, f"--user-data-dir={self.folder}", *FLAGS],
            pass_fds=(theirs, back), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs), os.close(back)
        self.numbers, self.buffer, self.events, self.session = itertools.count(1), b"", [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.ours, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self, seconds=60):
        until = time.monotonic() + seconds
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(0, until - time.monotonic()))
            assert ready, "Chromium does not answer"
            piece = os.read(self.answers, 1 << 20)
            assert piece, "Chromium has ended"
            self.buffer += piece
        one, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(one)

    def open(self, url, width=1280, dark=False, media=""):
        """Open a page at a width, as a screen or on paper, and wait until it is loaded."""
        self.events.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=scheme)
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script):
        """Evaluate JavaScript in the page; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    @property
    def requests(self):
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    @property
    def errors(self):
        wrong = {"Runtime.exceptionThrown", "Log.entryAdded"}
        loud = [e for e in self.events if e.get("method") in wrong]
        loud += [e for e in self.events if e.get("method") == "Runtime.consoleAPICalled"]
        return [json.dumps(e["params"])[:500] for e in loud]

    def screenshot(self, clip=None):
        """Give a PNG of the whole page, or of (x, y, width, height)."""
        if clip is None:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = (0, 0, size["width"], size["height"])
        area = dict(zip(("x", "y", "width", "height"), clip, strict=True)) | {"scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=area)
        return base64.b64decode(found["data"])

    def close(self):
        with contextlib.suppress(AssertionError, OSError):
            self.session = None
            self.call("Browser.close")
        self.process.wait(30)
        os.close(self.ours), os.close(self.answers)
        shutil.rmtree(self.folder, ignore_errors=True)
