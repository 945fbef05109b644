"""Studies, their files, kits and commands; nothing here starts a process of FLARE."""

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import fsgld
from flare_problem import NAMES, columns, toml, write_study
from fsgld import study as studies
from fsgld.cli import app
from fsgld.engines.flare import journey, kits, processes
from fsgld.engines.flare.arguments import arguments
from fsgld.engines.flare.collab import Doorkeeper
from fsgld.engines.flare.journey import Journey, silence
from fsgld.engines.flare.leg import run_folder
from fsgld.engines.flare.processes import Contact, Program, wait_for_port
from fsgld.engines.flare.site import Limits
from fsgld.study import Study, read_columns

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_new_study_passes_its_check_with_a_file(tmp_path):
    runner = CliRunner()
    assert runner.invoke(app, ["study", "new", str(tmp_path / "my-study")]).exit_code == 0
    np.savez(tmp_path / "data.npz", **columns(0))
    done = runner.invoke(app, ["study", "check", str(tmp_path / "my-study"), "--data", str(tmp_path / "data.npz")])
    assert done.exit_code == 0, done.output
    assert "30 rows, 3 parameters; the model takes them" in done.output
    assert "update            theta f[C,d], memory i[C]|f[C,d]?, t i[C], draws f[C,kept,d]?" in done.output
    again = runner.invoke(app, ["study", "new", str(tmp_path / "my-study")])
    assert again.exit_code == 2 and "is not empty" in again.output


def test_the_digest_changes_with_either_file(tmp_path):
    first = write_study(tmp_path / "a").digest
    assert write_study(tmp_path / "b").digest == first
    (tmp_path / "a" / "model.py").write_text((tmp_path / "a" / "model.py").read_text() + "\n")
    assert Study.read(tmp_path / "a").digest != first
    assert write_study(tmp_path / "b", seed=9).digest != first


def test_the_example_takes_a_hospitals_columns():
    study = Study.read(EXAMPLES / "heart")
    table = {name: np.ones(20) for name in ("age", "sex", "thalach", "exang", "oldpeak", "num")}
    table["oldpeak"][3] = np.nan
    rows = study.rows(table, "va")
    assert rows["x"].shape == (19, 5) and np.isfinite(rows["x"]).all()
    assert np.isfinite(study.model().log_likelihood(study.model().start(), {k: v[0] for k, v in rows.items()}))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_files_of_all_kinds_give_the_same_columns(tmp_path, suffix):
    table, file = columns(1), tmp_path / f"data{suffix}"
    if suffix == ".csv":
        lines = [",".join(table), *(",".join(repr(float(v)) for v in row) for row in zip(*table.values(), strict=True))]
        file.write_text("\n".join(lines) + "\n")
    elif suffix == ".npz":
        np.savez(file, **table)
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(table), file)
    for name, column in read_columns(file).items():
        np.testing.assert_array_equal(column, table[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seed = 3", "sead = 3"), "unknown name 'sead'"),
        (('"east", "north"', '"east", "east"'), "sites must be different names"),
        (('"east"', '"../east"'), "sites are named with small letters"),
        (('precision = "float64"', 'precision = "half"'), "precision must be"),
        (("port = 8002", "port = 0"), "port must be a whole number"),
        (("message = 20.0", "message = -1"), "patience.message must be a number of seconds"),
        (('host = "localhost"', 'host = "local host"'), "host must be a host name"),
        (("[priors]", "[priors"), "is not TOML"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused_with_a_reason(tmp_path, change, message):
    write_study(tmp_path)
    file = tmp_path / "study.toml"
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(fsgld.InputError, match=message):
        Study.read(tmp_path)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def model(priors): return 1\ndef rows(table): return table", "must return a fsgld.Model; it returns 1"),
        ("def model(priors): return priors['mean']\ndef rows(table): return table", "asks for 'mean'"),
        ("def model(priors): raise ValueError('no')\ndef rows(table): return table", "model in model.py fails"),
        ("import nothing_of_this_name", "fails: ModuleNotFoundError"),
        ("def model(priors): pass", "must have a function rows"),
    ],
)
def test_a_model_file_that_fails_is_refused_with_a_reason(tmp_path, code, message):
    write_study(tmp_path)
    (tmp_path / "model.py").write_text(code)
    with pytest.raises(fsgld.InputError, match=message):
        Study.read(tmp_path).model()


def test_kits_are_locked_down_and_hold_what_a_site_needs(tmp_path):
    study = write_study(tmp_path / "study")
    made = kits.provision(study)
    assert [kit.name for kit in made] == list(NAMES)
    before = {kit: (kit / "startup" / "client.crt").read_bytes() for kit in made}
    assert len(set(before.values())) == 3
    for kit in made:
        rights = json.loads((kit / "local" / "authorization.json").read_text())["permissions"]
        assert set(rights) == {"project_admin"}
        refused = {name for name, whom in rights["project_admin"].items() if whom == "none"}
        assert refused >= {"byoc", "shell_commands", "operate", "download_job"}
        resources = json.loads((kit / "local" / "resources.json").read_text())
        assert resources["class_allow_list"] == ["fsgld.engines.flare.collab.", "nvflare.collab.runtime."]
        assert resources["class_list_enforcement_mode"] == "enforce" and resources["allow_log_streaming"] is False
        assert "log" not in json.dumps(resources["components"])
        assert json.loads((kit / "startup" / "fed_client.json").read_text())["client"]["connection_security"] == "mtls"
        assert Study.read(kit / "study").digest == study.digest
        assert kits.owner(kit.rename(kit.with_name("renamed"))) == kit.name
        kit.with_name("renamed").rename(kit)
        assert Limits.read(kit / "limits.toml") == Limits()
        assert kits.target(kit) == "localhost:8002"
        assert not list(kit.rglob("*server.key")) and not list(kit.rglob("*admin*"))
    assert kits.provision(study) == made
    assert {kit: (kit / "startup" / "client.crt").read_bytes() for kit in made} == before  # made once
    job = kits.write_job(study, ["east", "west"])
    assert not list(job.rglob("*.py"))  # no code travels
    assert json.loads((job / "meta.json").read_text())["deploy_map"] == {"app": ["server", "east", "west"]}
    moved = write_study(tmp_path / "study", port=8003)
    with pytest.raises(fsgld.InputError, match="was provisioned for other sites, another name, host or port"):
        kits.provision(moved)


def test_limits_that_are_misspelt_or_negative_are_refused(tmp_path):
    file = tmp_path / "limits.toml"
    assert Limits.read(file) == Limits()
    file.write_text("min_rows = 50\n")
    assert Limits.read(file).min_rows == 50
    for text, message in (("min_row = 50", "unknown limit 'min_row'"), ("min_rows = -1", "min_rows must be a whole")):
        file.write_text(text)
        with pytest.raises(fsgld.InputError, match=message):
            Limits.read(file)


def test_commands_say_in_one_sentence_what_is_missing(tmp_path):
    runner = CliRunner()
    write_study(tmp_path / "study")
    for words, message in (
        (["run", str(tmp_path / "study")], "has no kits yet"),
        (["site", str(tmp_path), "--data", "x.csv"], "is not a start-up kit"),
        (["coordinator", str(tmp_path)], "has no study.toml"),
        (["study", "check", str(tmp_path / "study"), "--data", str(tmp_path / "no.csv")], "there is no file"),
    ):
        done = runner.invoke(app, words)
        assert done.exit_code == 2, (words, done.output)
        assert message in done.output


def test_a_program_ends_when_its_parent_is_killed(tmp_path):
    code = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-m', 'fsgld.watched', 'timeit', '-n1', '-r1', 'import time; time.sleep(60)']); print(p.pid, flush=True); time.sleep(60)"  # noqa: E501
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        process = psutil.Process(child)
        time.sleep(2.0)  # it watches from its first moments on
        assert process.is_running()
        parent.kill()
    assert not psutil.wait_procs([process], timeout=20)[1]


def test_a_program_that_dies_is_started_again_and_stopped_in_the_end(tmp_path):
    program = Program("site", tmp_path, {}, {})
    program.command = [sys.executable, "-c", "import time; time.sleep(0.1)"]
    told = []
    program.keep(lambda: len(told) >= 1, told.append)
    assert "starting it again" in told[0]
    program.command = [sys.executable, "-c", "import time; time.sleep(60)"]
    program.start()
    program.stop()
    assert program.process.returncode is not None
    assert studies.FILES == ("study.toml", "model.py")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dynamics": "sghmc"}, "dynamics in a study need step_size, or else schedule"),
        ({"schedule": {"name": "polynomial", "a": 1e-3}, "step_size": 0.1}, "need step_size, or else schedule"),
        ({"schedule": {"name": "linear"}}, "schedule must be a table with a name, one of constant, polynomial"),
        ({"schedule": {"name": "cosine", "a": 1.0}}, "cosine takes step_size, steps, final"),
        ({"dynamics": "langevin", "step_size": 0.1, "friction": 0.2}, "langevin takes step_size"),
        ({"dynamics": "sghmc", "step_size": 0.1, "friction": 2.0}, "friction must be in"),
        ({"dynamics": "hmc", "step_size": 0.1}, "dynamics must be one of langevin, whitened, sghmc, psgld"),
        ({"refresh": 5}, "refresh must be one of never, on_visit in a study; got 5"),
        ({"surrogates": "laplace"}, "surrogates must be one of auto, none, diagonal, linear"),
        ({"surrogates": "none"}, "need step_size, or else schedule"),
    ],
)
def test_what_cannot_travel_is_refused_before_anything_is_sent(tmp_path, settings, message):
    write_study(tmp_path)
    file = tmp_path / "study.toml"
    lines = [f"{name} = {toml(value)}" for name, value in settings.items()]
    text = file.read_text()
    file.write_text(text[: text.index("[sampling]")] + "\n".join(["[sampling]", *lines]) + "\n")
    with pytest.raises(fsgld.InputError, match=message):
        arguments(Study.read(tmp_path))
    for command in ("coordinator", "run"):
        done = CliRunner().invoke(app, [command, str(tmp_path)])
        assert done.exit_code == 2 and not (tmp_path / "coordinator").exists()
        assert re.sub(r"\s+", " ", message)[:30] in re.sub(r"[│\s]+", " ", done.output)


def test_a_site_says_whether_it_is_connected_and_gives_up(tmp_path):
    with socket.create_server(("localhost", 0)) as door:
        told = []
        contact = Contact(f"localhost:{door.getsockname()[1]}", 0.3, told.append)
        assert "at most 0 s" in told[0]
        with socket.create_connection(door.getsockname()):
            contact(os.getpid())
            assert told[-1].startswith("connected to localhost")
            time.sleep(0.4)
            contact(os.getpid())
        contact(os.getpid())
        assert told[-1].startswith("lost localhost") and len(told) == 3
        time.sleep(0.4)
        with pytest.raises(fsgld.InputError, match="was not reached for 0 s"):
            contact(os.getpid())


def test_a_port_that_is_taken_is_waited_for_and_then_refused():
    with socket.create_server(("", 0)) as door:
        told = []
        with pytest.raises(fsgld.InputError, match="is not free"):
            wait_for_port(door.getsockname()[1], 0.5, told.append)
        assert "waiting at most 0 s" in told[0] or "waiting at most 1 s" in told[0]
        port = door.getsockname()[1]
    wait_for_port(port, 0.5, told.append)


def test_a_program_that_never_lives_is_given_up_and_refusals_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "MOST_SHORT_LIVES", 2)
    program, told = Program("site", tmp_path, {}, {}), []
    line = "E - Error: connection CN1 authenticated as 'west' but claimed endpoint 'east' requires identity 'east'"
    program.command = [sys.executable, "-c", f"import time; print({line!r}, flush=True); time.sleep(1.5)"]
    with pytest.raises(fsgld.InputError, match="ended 2 times in a row"):
        program.keep(lambda: False, told.append)
    assert told[0] == f"refused a connection: {line.split('connection ')[1]}"
    assert "at most 2 times in a row" in told[1]


def test_a_leg_without_a_sign_of_life_is_given_up(tmp_path, monkeypatch):
    study = write_study(tmp_path)
    assert silence(study) == 120 + 2 * 4 * 20 * 2
    monkeypatch.setattr(journey, "silence", lambda study: 1.0)
    with (run_folder(study) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(fsgld.InputError, match="no sign of life for 1 s"):
            Journey(study, print, lambda progress: None)._watch()


@pytest.mark.parametrize("claimed", ["south", "east"])
def test_a_stranger_with_a_certificate_is_refused_whatever_name_it_claims(tmp_path, monkeypatch, claimed):
    from nvflare.apis.client import Client
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_exception import NotAuthenticated
    from nvflare.private.fed.server.client_manager import ClientManager

    monkeypatch.setenv(processes.STUDY, str(write_study(tmp_path).folder))
    manager = ClientManager(project_name="small")
    context = SimpleNamespace(
        get_prop=lambda name: "regular",
        get_peer_context=lambda: SimpleNamespace(get_identity_name=lambda: claimed),
        get_engine=lambda: SimpleNamespace(client_manager=manager),
    )
    door = Doorkeeper()
    with pytest.raises(NotAuthenticated, match="'south' is not a site") if claimed == "south" else nullcontext():
        door.handle_event(EventType.CLIENT_REGISTER_RECEIVED, context)
    manager.clients = {"t1": Client("east", "t1"), "t2": Client("south", "t2")}
    door.handle_event(EventType.CLIENT_REGISTER_PROCESSED, context)
    assert [client.name for client in manager.get_clients().values()] == ["east"]
    assert manager.is_client_disabled("south") and not manager.is_client_disabled("east")
