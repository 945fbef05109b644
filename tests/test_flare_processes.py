"""A federation of real processes on loopback, with mutual TLS: it is killed again and again, and nothing is lost."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import ssl
import sys
import time
from collections import Counter

import numpy as np
import psutil
import pytest

import fsgld
from flare_problem import NAMES, columns, needles, shards, write_study
from fsgld.engines.flare import kits
from fsgld.engines.flare.arguments import arguments
from fsgld.engines.flare.leg import run_folder
from fsgld.engines.flare.messages import MAGIC
from fsgld.engines.flare.post import read_ledger
from fsgld.engines.flare.processes import Program
from fsgld.study import Study
from relay import Relay, Sniffer

KILLS = 20
LONGEST = 900.0  # seconds for all of it; on two idle cores it takes a third of that
ROUNDS = 220
SETTINGS = {
    "chains": 4, "seed": 3, "rounds": ROUNDS, "local_steps": 6000, "batch_size": 8, "step_size": 0.002,
    "thin": 6000, "probs": [0.2, 0.5, 0.3],
}  # fmt: skip


class World:
    """The commands of a federation, as their owners would run them: a command that was killed is started again."""

    def __init__(self, folder, study):
        self.folder, self.study, self.commands, self.relays, self.sniffer = folder, study, {}, {}, None
        self.deadline = time.monotonic() + LONGEST

    def start(self, name):
        words = {"coordinator": ["coordinator", str(self.study.folder)], "run": ["run", str(self.study.folder)]}.get(
            name, ["site", str(self.study.folder / "kits" / name), "--data", str(self.folder / f"{name}.npz")]
        )
        with (self.folder / f"{name}.out").open("ab") as out:
            self.commands[name] = psutil.Popen([sys.executable, "-m", "fsgld", *words], stdout=out, stderr=out)

    def start_all(self):
        """Start everything, with a server that allows its administrator all: what is refused, sites refuse.

        There is a fourth site with a certificate that is not in the study; sites reach the server through relays.
        """
        write_study(self.study.folder, self.study.port, PATIENCE, sites=[*NAMES, "south"], **SETTINGS)
        kits.provision(Study.read(self.study.folder))
        write_study(self.study.folder, self.study.port, PATIENCE, **SETTINGS)
        mark = self.study.folder / "coordinator" / "provisioned.json"
        mark.write_text(mark.read_text().replace(', "south"', ""))
        kits.provision(self.study)
        for name in NAMES:
            self.relays[name] = Relay(self.study.port, self.folder / f"{name}.capture")
            file = self.study.folder / "kits" / name / "startup" / "fed_client.json"
            file.write_text(file.read_text().replace(f"localhost:{self.study.port}", self.relays[name].address))
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

    def victims(self, what, site):
        who, level = what.split(" ")
        return self.tree(site if who == "site" else who)[("command", "program", "job").index(level)]

    def visiting(self, site):
        """Whether chains are at a site right now: the last line of its audit log is a request without an answer."""
        file = self.study.folder / "kits" / site / "fsgld" / "audit.jsonl"
        try:
            if time.time() > file.stat().st_mtime + 3:
                return False  # left so by a kill
            with file.open("rb") as stream:
                stream.seek(-min(stream.seek(0, 2), 2000), 2)
                line = json.loads(stream.read().splitlines()[-1])
            return line.get("way") == "in" and line["kind"] == "update"
        except (OSError, ValueError, IndexError):
            return False

    def aim(self, group, rng, found):
        """Find the processes to kill, of different sites, the first one's with chains there; say whether all are."""
        sites = sorted(rng.sample(NAMES, 3), key=self.visiting, reverse=True)
        found[:] = [process for what, site in zip(group, sites, strict=False) for process in self.victims(what, site)]
        return len(found) == len(group) and self.visiting(sites[0])

    def slow_down(self, seconds):
        for relay in self.relays.values():
            relay.delay = seconds

    def rounds(self):
        return sum(1 for _ in (run_folder(self.study) / "checkpoint" / "calls").glob("*.npz"))

    def wait(self, condition, what, seconds):
        end = min(time.monotonic() + seconds, self.deadline)
        while not condition():
            assert time.monotonic() < end, f"{what} took too long\n" + self.story()
            self.mend()
            time.sleep(0.02)

    def log(self):
        return (self.study.folder / "coordinator" / "server" / "flare.log").read_text()

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
        for relay in self.relays.values():
            relay.stop()
        if self.sniffer:
            self.sniffer.stop()


def free_port():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return s.getsockname()[1]


PATIENCE = {"message": 10.0, "retries": 0, "join": 200.0}


@pytest.fixture
def world(tmp_path):
    study = write_study(tmp_path / "study", free_port(), PATIENCE, **SETTINGS)
    for s, name in enumerate(NAMES):
        np.savez(tmp_path / f"{name}.npz", **columns(s, marked=True))
    world = World(tmp_path, study)
    with contextlib.suppress(PermissionError):  # only the super-user may
        world.sniffer = Sniffer(tmp_path / "loopback.capture")
    yield world
    world.stop()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # long visits
def test_a_federation_survives_twenty_kills_and_intruders_with_the_same_draws(world, tmp_path):
    world.start_all()
    world.wait(lambda: world.rounds() >= 10, "the first ten rounds", 240)
    world.slow_down(0.5)
    intruders_are_refused(world, tmp_path / "other")
    impostors_are_refused(world)
    code_and_commands_are_refused_by_sites(world)
    world.slow_down(0.05)
    a_network_that_is_cut_leaves_its_site_away_until_it_is_mended(world)
    into_a_round = twenty_kills(world)
    world.slow_down(0.0)
    world.wait(lambda: world.commands["run"].poll() == 0, "the end of the run", 300)

    result = fsgld.Result.load(world.study.folder / "result.npz")
    files = sorted(run_folder(world.study).glob("checkpoint/calls/*.npz"))
    assert [int(file.stem) for file in files] == list(range(ROUNDS))  # no round is lost or doubled
    there = np.concatenate([np.load(file)["there"] for file in files])
    data = shards(world.study, marked=True)
    expected = fsgld.sample(world.study.model(), data, **arguments(world.study), present=there)
    np.testing.assert_array_equal(result.visited, expected.visited)
    for name in ("w", "b"):
        np.testing.assert_allclose(result.draws[name], expected.draws[name], rtol=1e-10, atol=1e-10)
    assert result.settings["away"] == pytest.approx(1 - there.mean(0))
    table = result.settings["federation"]
    again = rounds_begun_again(world)
    print(f"legs {table['legs']}, kills with chains at a site {into_a_round}, rounds begun again {len(again)}, rounds"
          f" with a site away {(~there.all(1)).sum()}, {table['sites']}")  # fmt: skip
    assert table["legs"] > 5 and into_a_round >= 15 and len(again) >= 6  # of 13 moments, two of them harmless
    world.stop()
    nothing_leaked(world)


def twenty_kills(world):
    """Kill every kind of process, one by one and then several at once; count the kills that fell into a round."""
    kinds = [
        "site job", "site program", "coordinator command", "coordinator program", "coordinator job", "run command",
        "site command",
    ]  # fmt: skip
    rng = random.Random(7)
    plan = [*([kind] for kind in kinds), *([*rng.sample(kinds, 2)] for _ in range(5)), [*rng.sample(kinds, 3)]]
    killed = into = 0
    for group in plan:
        before, found = world.rounds(), []
        world.wait(lambda b=before: world.rounds() > b + 1, "progress", 120)
        world.wait(lambda g=group, f=found: world.aim(g, rng, f), f"a visit, with all of {group} there", 120)
        for process in found:
            with contextlib.suppress(ProcessLookupError):  # it went with its parent
                os.kill(process.pid, signal.SIGKILL)
        killed, into = killed + len(group), into + sum(what != "run command" for what in group)
        print(f"{time.strftime('%H:%M:%S')} killed {group} at round {world.rounds()}", flush=True)
        assert not (run_folder(world.study) / "result.npz").is_file(), f"over after {killed} kills"
        world.mend()
    assert killed >= KILLS
    return into


def rounds_begun_again(world):
    """Rounds that a site was asked for more than once: a kill (or the cut) fell into them."""
    again = set()
    for name in NAMES:
        asked = Counter()
        for text in (world.study.folder / "kits" / name / "fsgld" / "audit.jsonl").read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that a kill cut short
                line = json.loads(text)
                asked[line.get("round")] += line.get("way") == "in" and line["kind"] == "update"
        again |= {number for number, times in asked.items() if times > 1}
    return again


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


def a_network_that_is_cut_leaves_its_site_away_until_it_is_mended(world):
    """Nothing passes between north and the server, and nobody is told; the run goes on without it, and then with it."""

    begin = time.time()

    def happened(event):
        lines = [line for line in read_ledger(run_folder(world.study)) if line["time"] > begin]
        return any(line.get("event") == event and line["site"] == "north" for line in lines)

    world.relays["north"].cut = True
    try:
        world.wait(lambda: happened("away"), "noticing that north is cut off", 90)
        before = world.rounds()
        world.wait(lambda: world.rounds() > before + 5, "the run goes on without north", 60)
    finally:
        world.relays["north"].cut = False
    world.wait(lambda: happened("back"), "the return of north", 120)


def impostors_are_refused(world):
    """A site's certificate under another site's name, and a certificate of the same authority not in the study."""
    for name, uid, reason in (
        ("west", "east", "authenticated as 'west' but claimed endpoint 'east'"),
        ("south", "south", "'south' is not a site of this study"),
    ):  # fmt: skip
        kit = world.folder / f"impostor-{name}"
        shutil.copytree(world.study.folder / "kits" / name, kit, ignore=shutil.ignore_patterns("fsgld", "*.log"))
        file = kit / "startup" / "fed_client.json"
        file.write_text(re.sub(r"localhost:\d+", f"localhost:{world.study.port}", file.read_text()))
        program = Program("site", kit, {"uid": uid, "org": kits.organisation(uid)}, {})
        program.start()
        try:
            told = lambda r=reason: r in (world.folder / "coordinator.out").read_text()  # noqa: E731
            world.wait(lambda r=reason, t=told: r in world.log() and t(), f"refusing {name} as {uid}", 60)
        finally:
            program.stop()
    before = world.rounds()
    world.wait(lambda: world.rounds() > before + 2, "the run goes on", 120)


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
    for reason in ("WRONG_VERSION_NUMBER", "PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED"):
        world.wait(lambda r=reason: r in world.log(), f"a line in the log about {reason}", 20)
        told = lambda r=reason: r in (world.folder / "coordinator.out").read_text()  # noqa: E731
        world.wait(told, f"word of {reason} to the owner", 20)
    before = world.rounds()
    world.wait(lambda: world.rounds() > before + 2, "the run goes on", 60)


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
    """No marked row is in the traffic, which is all TLS, nor in any file outside of the sites' own folders."""
    marks = needles()
    sought = b"".join((world.folder / f"{name}.npz").read_bytes() for name in NAMES)
    assert sum(needle in sought for needle in marks) >= 18  # they can be found where they are
    for name, relay in world.relays.items():
        capture = (world.folder / f"{name}.capture").read_bytes()
        assert len(capture) > 100_000 and len(relay.first) > 5
        assert {first[:2] for first in relay.first} == {b"\x16\x03"}  # every connection begins with TLS' handshake
        assert not [word for word in (MAGIC, b"all_clients", b"PRI * HTTP", *marks) if word in capture]
    if world.sniffer:  # FLARE's program and its job talk without TLS on one machine: messages before encryption
        capture = (world.folder / "loopback.capture").read_bytes()
        assert capture.count(MAGIC) > ROUNDS
        assert not [needle for needle in marks if needle in capture]
    own = [world.study.folder / "kits" / name for name in NAMES]
    looked = 0
    for file in world.folder.rglob("*"):
        if not file.is_file() or file.parent == world.folder or any(folder in file.parents for folder in own):
            continue
        looked += 1
        content = file.read_bytes()
        assert not [needle for needle in marks if needle in content], file
    assert looked > ROUNDS
    for file in world.folder.glob("*.out"):
        assert not [needle for needle in marks if needle in file.read_bytes()], file
    for folder in own:
        lines = [
            json.loads(line)
            for line in (folder / "fsgld" / "audit.jsonl").read_text().splitlines()
            if line.endswith("}")
        ]
        assert {line["kind"] for line in lines if line.get("way") == "out"} >= {"hello", "setup", "update"}
