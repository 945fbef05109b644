"""A federation of real processes on loopback, with mutual TLS: it is killed again and again, and nothing is lost."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import ssl
import sys
import time

import numpy as np
import psutil
import pytest

import fsgld
from flare_problem import NAMES, columns, shards, write_study
from fsgld.engines.flare import kits
from fsgld.engines.flare.leg import arguments, run_folder
from fsgld.engines.flare.post import read_ledger

KILLS = 20
LONGEST = 900.0  # seconds for all of it; on two idle cores it takes a third of that
SETTINGS = {
    "chains": 4, "seed": 3, "rounds": 3000, "local_steps": 5, "batch_size": 8, "step_size": 0.1, "thin": 25,
    "probs": [0.2, 0.5, 0.3],
}  # fmt: skip


class World:
    """The commands of a federation, as their owners would run them: a command that was killed is started again."""

    def __init__(self, folder, study):
        self.folder, self.study, self.commands = folder, study, {}
        self.deadline = time.monotonic() + LONGEST

    def start(self, name):
        words = {"coordinator": ["coordinator", str(self.study.folder)], "run": ["run", str(self.study.folder)]}.get(
            name, ["site", str(self.study.folder / "kits" / name), "--data", str(self.folder / f"{name}.npz")]
        )
        with (self.folder / f"{name}.out").open("ab") as out:
            self.commands[name] = psutil.Popen([sys.executable, "-m", "fsgld", *words], stdout=out, stderr=out)

    def start_all(self):
        """Start everything, with a server that allows its administrator all: what is refused, sites refuse."""
        kits.provision(self.study)
        rights = self.study.folder / "coordinator" / "server" / "local" / "authorization.json"
        rights.write_text(rights.read_text().replace('"none"', '"any"'))
        for name in ("coordinator", *NAMES, "run"):
            self.start(name)

    def mend(self):
        """Start again what was killed; `run` only while it has not come to its end."""
        for name, process in list(self.commands.items()):
            if process.poll() is not None and not (name == "run" and process.returncode == 0):
                assert process.returncode == -signal.SIGKILL, (self.folder / f"{name}.out").read_text()[-2000:]
                self.start(name)

    def tree(self, name):
        """The processes of a command: itself, FLARE's program, the job's process."""
        top = self.commands[name]
        try:
            programs = top.children()
            return [top], programs, [job for program in programs for job in program.children()]
        except psutil.NoSuchProcess:
            return [], [], []

    def victims(self, what):
        who, level = what.split(" ")
        name = random.choice(NAMES) if who == "site" else who
        return self.tree(name)[("command", "program", "job").index(level)]

    def rounds(self):
        return sum(1 for _ in (run_folder(self.study) / "checkpoint" / "calls").glob("*.npz"))

    def wait(self, condition, what, seconds):
        end = min(time.monotonic() + seconds, self.deadline)
        while not condition():
            assert time.monotonic() < end, f"{what} took too long\n" + self.story()
            self.mend()
            time.sleep(0.1)

    def story(self):
        return "\n".join(f"== {file.name}\n{file.read_text()[-1500:]}" for file in sorted(self.folder.glob("*.out")))

    def stop(self):
        for process in self.commands.values():
            if process.poll() is None:
                process.terminate()
        for process in self.commands.values():
            try:
                process.wait(20)
            except psutil.TimeoutExpired:
                process.kill()


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


@pytest.fixture
def world(tmp_path):
    study = write_study(tmp_path / "study", free_port(), {"message": 10.0, "retries": 0, "join": 200.0}, **SETTINGS)
    for s, name in enumerate(NAMES):
        np.savez(tmp_path / f"{name}.npz", **columns(s))
    world = World(tmp_path, study)
    yield world
    world.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:variances may be")
def test_a_federation_survives_twenty_kills_and_intruders_with_the_same_draws(world, tmp_path):
    world.start_all()
    world.wait(lambda: world.rounds() >= 100, "the first hundred rounds", 240)
    intruders_are_refused(world, tmp_path / "other")
    code_and_commands_are_refused_by_sites(world)
    a_site_that_hangs_is_away_and_comes_back(world)

    kinds = [
        "site job", "site program", "coordinator command", "coordinator program", "coordinator job", "run command",
        "site command",
    ]  # fmt: skip
    rng = random.Random(7)
    random.seed(7)
    plan = [*kinds, *rng.choices(["site job", "coordinator job", "coordinator program", "run command"], k=KILLS - 7)]
    killed = []
    while len(killed) < KILLS:
        begin, target, patience = time.monotonic(), world.rounds() + rng.choice([0, 1, 5, 20]), rng.uniform(5, 40)
        world.wait(lambda t=target, e=begin + patience: world.rounds() >= t or time.monotonic() > e, "progress", 90)
        assert (run_folder(world.study) / "result.npz").is_file() is False, f"over after {len(killed)} kills"
        victims = world.victims(plan[len(killed)])
        for process in victims:
            os.kill(process.pid, signal.SIGKILL)
        if victims:
            killed.append(plan[len(killed)])
            print(f"{time.strftime('%H:%M:%S')} killed {killed[-1]} at round {world.rounds()}", flush=True)
        world.mend()
    world.wait(lambda: world.commands["run"].poll() == 0, "the end of the run", 300)

    result = fsgld.Result.load(world.study.folder / "result.npz")
    files = sorted(run_folder(world.study).glob("checkpoint/calls/*.npz"))
    assert [int(file.stem) for file in files] == list(range(SETTINGS["rounds"]))  # no round is lost or doubled
    there = np.concatenate([np.load(file)["there"] for file in files])
    expected = fsgld.sample(world.study.model(), shards(world.study), **arguments(world.study), present=there)
    np.testing.assert_array_equal(result.visited, expected.visited)
    for name in ("w", "b"):
        np.testing.assert_allclose(result.draws[name], expected.draws[name], rtol=1e-10, atol=1e-10)
    assert result.settings["away"] == pytest.approx(1 - there.mean(0))
    table = result.settings["federation"]
    print(f"legs {table['legs']}, rounds with a site away {(~there.all(1)).sum()}, {table['sites']}")
    assert table["legs"] > 5

    world.stop()
    nothing_leaked(world)


def code_and_commands_are_refused_by_sites(world):
    """A coordinator that turned bad can neither read files at a site nor run anything there but fsgld."""
    from nvflare.fuel.flare_api.api_spec import AuthorizationError
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    study, trace = world.study, world.folder / "trace"
    session = new_secure_session(kits.admin(study), str(study.folder / "coordinator" / "admin"), timeout=20.0)
    try:
        for command in (
            lambda: session.ls_target("west"),
            lambda: session.cat_target("west", file="startup/fed_client.json"),
        ):
            with pytest.raises(AuthorizationError):
                command()
        for name, change in {"code": {"path": "own.Member"}, "class": {"path": "subprocess.Popen"}}.items():
            job = world.folder / name
            shutil.copytree(kits.write_job(study, ["west"]), job)
            file = job / "app" / "config" / "config_fed_client.json"
            config = json.loads(file.read_text())
            config["components"][0] |= change | ({"args": {"args": ["touch", str(trace)]}} if name == "class" else {})
            file.write_text(json.dumps(config))
            if name == "code":
                (job / "app" / "custom").mkdir()
                (job / "app" / "custom" / "own.py").write_text(
                    f"open({str(trace)!r}, 'w').close()\nclass Member: pass\n"
                )
            number = session.submit_job(str(job))
            ended = lambda n=number: str(session.get_job_meta(n).get("status")).startswith("FINISHED")  # noqa: E731
            world.wait(ended, "the end of a job that is refused", 90)
            assert "COMPLETED" not in session.get_job_meta(number)["status"]
    finally:
        session.close()
    assert not trace.exists()


def a_site_that_hangs_is_away_and_comes_back(world):
    """Stop a site's process, as a cut network would; the run goes on without it, and with it when it goes on."""

    begin = time.time()

    def happened(event):
        lines = [line for line in read_ledger(run_folder(world.study)) if line["time"] > begin]
        return any(line.get("event") == event and line["site"] == "north" for line in lines)

    (job,) = world.tree("north")[2]
    os.kill(job.pid, signal.SIGSTOP)
    try:
        world.wait(lambda: happened("away"), "noticing that north hangs", 90)
        before = world.rounds()
        world.wait(lambda: world.rounds() > before + 10, "the run goes on without north", 60)
    finally:
        os.kill(job.pid, signal.SIGCONT)
    world.wait(lambda: happened("back"), "the return of north", 120)


def intruders_are_refused(world, folder):
    """A plain-text client, a client without a certificate, one with another authority's, and a site without a name."""
    port = world.study.port
    with socket.create_connection(("localhost", port), 5) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        plain.settimeout(10)
        with contextlib.suppress(ConnectionResetError):
            assert plain.recv(100) == b""  # the server hangs up
    other = write_study(folder / "study", port, **SETTINGS)
    stranger, _, _ = kits.provision(other)
    for certificate in (None, stranger / "startup" / "client.crt"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if certificate:
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            talk(context, port)
    before = world.rounds()
    world.wait(lambda: world.rounds() > before + 20, "the run goes on", 60)


def talk(context, port):
    """Begin to speak gRPC's language; a server that hangs up is a refusal."""
    with socket.create_connection(("localhost", port), 5) as raw, context.wrap_socket(raw) as secure:
        secure.settimeout(10)
        secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        for _ in range(3):
            if secure.recv(1000) == b"":
                raise ConnectionError("the server hung up")
    raise AssertionError("the server talks to strangers")


def nothing_leaked(world):
    """No row is in any file outside of the sites' own folders."""
    own = [world.study.folder / "kits" / name for name in NAMES]
    needles = set()
    for s in range(len(NAMES)):
        for key in ("x1", "x2"):
            needles |= {
                f(float(v))
                for v in columns(s)[key]
                for f in (lambda v: repr(v).encode(), lambda v: np.float64(v).tobytes())
            }
    looked = 0
    for file in world.folder.rglob("*"):
        if (file.is_file() and file.suffix != ".npz") or "checkpoint" in file.parts:
            if not file.is_file() or any(folder in file.parents for folder in own):
                continue
            looked += 1
            content = file.read_bytes()
            assert not [needle for needle in needles if needle in content], file
    assert looked > 3000
    for folder in own:
        lines = [
            json.loads(line)
            for line in (folder / "fsgld" / "audit.jsonl").read_text().splitlines()
            if line.endswith("}")
        ]
        assert {line["kind"] for line in lines if line.get("way") == "out"} >= {"hello", "setup", "update"}
    assert any(line.get("event") == "leg" for line in read_ledger(run_folder(world.study)))
