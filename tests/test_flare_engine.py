"""The federation's mathematics in one process: same draws as the compiled engine, whatever goes wrong on the way."""

import json
import random
import re
import time
from dataclasses import replace

import numpy as np
import pytest

import fsgld
from flare_problem import NAMES, QUICK, SIZES, Wire, columns, make_sites, needles, shards, write_study
from fsgld.engines.flare import messages
from fsgld.engines.flare.arguments import arguments
from fsgld.engines.flare.leg import run_folder, run_leg
from fsgld.engines.flare.messages import REPLIES, Message
from fsgld.engines.flare.post import LegOver, read_ledger
from fsgld.engines.flare.site import Limits, Site

pytestmark = pytest.mark.filterwarnings("ignore:variances may be")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A study, its sites, and the undisturbed run of the compiled engine."""
    folder = tmp_path_factory.mktemp("base")
    study = write_study(folder / "study")
    return study, make_sites(study, folder), compiled(study)


@pytest.fixture(scope="module")
def alike(base, tmp_path_factory):
    """Sites with as many rows each, so that they share compiled programs, and their data."""
    data = {name: base[0].rows(columns(s, 40), name) for s, name in enumerate(NAMES)}
    folder = tmp_path_factory.mktemp("alike")
    return {name: Site(name, base[0], rows, folder / name) for name, rows in data.items()}, data


@pytest.fixture
def study(base, tmp_path):
    """The same study in a folder of its own; compiled programs are shared."""
    return replace(base[0], folder=tmp_path, patience={"message": 5.0, "retries": 1, "join": 5.0})


def compiled(study, **more):
    return fsgld.sample(study.model(), shards(study), **(arguments(study) | more))


def same(one, other):
    np.testing.assert_array_equal(one.visited, other.visited)
    for name in ("w", "b"):
        np.testing.assert_allclose(one.draws[name], other.draws[name], rtol=1e-10, atol=1e-10)


def kind_of(data):
    return json.loads(data[12 : data.index(b"}", 12) + 1].split(b', "fields"')[0] + b"}")["kind"]


def no_round_lost_or_doubled(study, result):
    """Every round of every chain is in the checkpoint once, and was answered at least once."""
    rounds = sorted(int(file.stem) for file in run_folder(study).glob("checkpoint/calls/*.npz"))
    assert rounds == list(range(result.settings["rounds"]))


def test_the_federation_draws_the_same_chain_as_the_compiled_engine(base, study):
    result = run_leg(study, NAMES, Wire(base[1]))
    same(result, base[2])
    assert result.settings["away"] == [0, 0, 0]
    assert result.settings["rows"] == list(SIZES)
    table = result.settings["federation"]["sites"]
    for s, name in enumerate(NAMES):
        assert table[name]["visits"] == len({r for _, r in zip(*np.nonzero(result.visited == s), strict=True)})
        assert table[name]["bytes_sent"] > 0 and table[name]["failed"] == 0
    fsgld.Result.load(run_folder(study) / "result.npz")


SHORT = {"rounds": 6, "chains": 2, "batch_size": 8, "local_steps": 4, "probs": [0.2, 0.5, 0.3]}
PARTS = {
    "defaults": {"rounds": 6, "chains": 3},  # everything else is the pre-flight's choice
    "leverage, plain": SHORT | {"mini_batches": "leverage", "likelihood": "plain", "thin": 1, "burn_in": 0},
    "dsgld, cosine": SHORT
    | {"surrogates": "none", "schedule": {"name": "cosine", "step_size": 1e-2, "steps": 20, "final": 1e-4}},
    "langevin, polynomial": SHORT | {"dynamics": "langevin", "schedule": {"name": "polynomial", "a": 1e-2}, "thin": 2},
    "whitened, cyclical, diagonal": SHORT
    | {"schedule": {"name": "cyclical", "step_size": 0.02, "period": 10}, "surrogates": "diagonal"},
    "sghmc": SHORT | {"dynamics": "sghmc", "step_size": 1e-2, "friction": 0.3},
    "psgld, plain": SHORT
    | {"dynamics": "psgld", "step_size": 1e-2, "decay": 0.9, "floor": 1e-4, "likelihood": "plain"},
    "langevin, diagonal": SHORT | {"dynamics": "langevin", "step_size": 1e-2, "surrogates": "diagonal"},
    "on visit": SHORT | {"refresh": "on_visit", "rounds": 12},
    "on visit, diagonal, sghmc": SHORT
    | {"refresh": "on_visit", "surrogates": "diagonal", "dynamics": "sghmc", "step_size": 1e-2},
    "on visit, linear, plain": SHORT
    | {
        "refresh": "on_visit",
        "surrogates": "linear",
        "likelihood": "plain",
        "dynamics": "langevin",
        "step_size": 1e-2,
    },
}
FITS = {"diagonal": {"diagonal": True}, "linear": {"order": 1}}


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_all_kinds_travel_and_give_the_same_chain(alike, study, name):
    """Dynamics with their memory, schedules, forms of surrogates, slots, refresh; half-way the leg is cut."""
    sites, data = alike
    settings = {"seed": 5} | PARTS[name]
    study, cut = replace(study, settings=settings), [True]
    fit = FITS.get(settings.get("surrogates"))
    more = {"surrogates": fsgld.fit(study.model(), data, fsgld.anchored, **fit)} if fit else {}

    def once(site, data, answer):
        if cut and b'"round": 3' in data[:200]:
            cut.clear()
            raise LegOver("network")
        return answer()

    wire = Wire(sites, once)
    with pytest.raises(LegOver):
        run_leg(study, NAMES, wire)
    result = run_leg(study, NAMES, wire)
    expected = fsgld.sample(study.model(), data, **(arguments(study) | more))
    same(result, expected)
    known = ("step_size", "batch_size", "local_steps", "mini_batches", "surrogates", "thin", "dynamics", "likelihood")
    assert {name: result.settings[name] for name in known} == {name: expected.settings[name] for name in known}
    replies = [messages.decode(reply, True) for _, _, reply in wire.sent]
    updates = [reply.fields for reply in replies if reply.kind == "update"]
    renewed = settings.get("refresh") == "on_visit"
    assert updates and all(("shift" in fields) == renewed for fields in updates)
    if settings.get("surrogates") == "diagonal":  # no matrix is sent either way
        shapes = [array.shape for _, data, reply in wire.sent for array in arrays(data, False) + arrays(reply, True)]
        assert len(shapes) > 100 and not any(shape[-2:] == (3, 3) for shape in shapes)


def arrays(data, reply):
    return [value for value in messages.decode(data, reply).fields.values() if isinstance(value, np.ndarray)]


def test_a_chain_that_runs_away_is_a_result_and_no_fault_of_a_site(base, study):
    """Divergence is told as the compiled engine tells it; nobody is away."""
    settings = SHORT | {"dynamics": "langevin", "step_size": 60.0, "surrogates": "none", "rounds": 60}
    study = replace(study, settings=settings)
    with pytest.warns(UserWarning, match="diverged"):
        expected = compiled(study)
    result = run_leg(study, NAMES, Wire(base[1]))
    assert result.status == expected.status and "diverged" in str(result.settings["notes"])
    assert max(result.settings["away"]) == 0


def test_whoever_answers_first_the_result_is_the_same(base, study):
    def late(site, data, answer):
        time.sleep(random.Random(data).uniform(0, 0.02))
        return answer()

    same(run_leg(study, NAMES, Wire(base[1], late)), base[2])


def test_legs_that_end_anywhere_lose_and_double_nothing(base, study):
    rng, legs = random.Random(1), 0

    def cut(site, data, answer):
        if rng.random() < 0.02:
            raise LegOver("killed before the message went out")
        reply = answer()
        if rng.random() < 0.02:
            raise LegOver("killed before the reply came in")
        return reply

    while True:
        legs += 1
        assert legs < 60
        try:
            result = run_leg(study, NAMES, Wire(base[1], cut))
            break
        except LegOver:
            continue
    assert legs > 3
    same(result, base[2])
    no_round_lost_or_doubled(study, result)
    assert result.settings["federation"]["legs"] == legs


def test_a_site_that_starts_again_recalls_the_run_from_its_disk(base, study, tmp_path):
    sites = make_sites(study, tmp_path / "sites")
    seen = []

    def restart(site, data, answer):
        seen.append(kind_of(data))
        if seen.count("update") == 9:
            name = "north"
            sites[name] = Site(name, study, sites[name].study.rows(columns(1), name), sites[name].folder)
        return answer()

    same(run_leg(study, NAMES, Wire(sites, restart)), base[2])


GARBAGE = {
    "not bytes": lambda reply: "a word",
    "short": lambda reply: reply[:-9],
    "long": lambda reply: reply + b"0" * 8,
    "not a message": lambda reply: b"\x80\x04pickled" + reply,
    "too large": lambda reply: reply + bytes(messages.LARGEST),
    "NaN": lambda reply: change(reply, theta=lambda x: x * np.nan),
    "fewer chains": lambda reply: change(reply, theta=lambda x: x[:-1], t=lambda x: x[:-1], memory=lambda x: x[:-1]),
    "another shape": lambda reply: change(reply, theta=lambda x: x[:, :-1]),
    "another round": lambda reply: change(reply, t=lambda x: x + 5),
    "another round's envelope": lambda reply: change(reply, round=7),
    "another study": lambda reply: change(reply, study="0" * 64),
    "another request": lambda reply: change(reply, to="0" * 64),
}


def change(reply, round=None, study=None, to=None, **fields):
    m = messages.decode(reply, True)
    changed = {name: fields[name](value) if name in fields else value for name, value in m.fields.items()}
    number = m.round if round is None else round
    return messages.encode(Message(m.kind, study or m.study, number, changed, to or m.to))


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_refused_and_asked_for_again(base, study, name):
    done = []

    def spoil(site, data, answer):
        reply = answer()
        if site == "north" and kind_of(data) == "update" and not done:
            done.append(1)
            return GARBAGE[name](reply)
        return reply

    result = run_leg(study, NAMES, Wire(base[1], spoil))
    same(result, base[2])
    assert done and result.settings["federation"]["sites"]["north"]["failed"] == 1


@pytest.mark.parametrize(
    ("how", "refresh"), [("cut", "never"), ("raises", "never"), pytest.param("cut", "on_visit", marks=pytest.mark.slow)]
)
def test_a_site_that_fails_is_away_stays_through_its_surrogate_and_comes_back(base, study, monkeypatch, how, refresh):
    study = replace(study, settings=study.settings | {"refresh": refresh})
    failing = {"on": False}
    updates = []
    handlers = base[1]["north"]._handlers
    healthy = handlers["update"]
    monkeypatch.setitem(handlers, "update", lambda r: 1 / 0 if failing["on"] and how == "raises" else healthy(r))

    def fault(site, data, answer):
        if kind_of(data) == "update":
            updates.append(json.loads(data[12 : data.index(b'"fields"') - 2] + b"}")["round"])
            failing["on"] = 3 <= updates[-1] < 7
        if site == "north" and failing["on"] and how == "cut":
            raise ConnectionError("cut")
        return answer()

    result = run_leg(study, NAMES, Wire(base[1], fault), every=0.0)
    away = result.settings["away"]
    assert away[0] == away[2] == 0 and (4 if how == "cut" else 1) / 12 <= away[1] < 1
    events = [
        (line["event"], line["site"]) for line in read_ledger(run_folder(study)) if line.get("site") and "event" in line
    ]
    assert ("away", "north") in events and ("back", "north") in events
    there = np.concatenate([np.load(f)["there"] for f in sorted(run_folder(study).glob("checkpoint/calls/*.npz"))])
    assert (how == "raises" or not there[3:7, 1].any()) and there[:, [0, 2]].all() and there[-1].all()
    same(result, compiled(study, present=there))  # the law of `present`, to the bit of who was there when
    assert result.settings["federation"]["sites"]["north"]["seconds_away"] >= 0


def test_a_site_that_is_not_in_a_leg_is_away_and_in_the_next_it_is_back(base, study):
    def stop(site, data, answer):
        if b'"round": 4' in data[:200]:
            raise LegOver("network")
        return answer()

    with pytest.raises(LegOver):
        run_leg(study, NAMES, Wire(base[1], stop))
    two = {name: base[1][name] for name in NAMES[:2]}

    def stop_later(site, data, answer):
        if b'"round": 8' in data[:200]:
            raise LegOver("west is back")
        return answer()

    with pytest.raises(LegOver):
        run_leg(study, NAMES[:2], Wire(two, stop_later))
    result = run_leg(study, NAMES, Wire(base[1]))
    there = np.ones((12, 3), bool)
    there[4:8, 2] = False
    same(result, compiled(study, present=there))
    assert "west was away in 33 % of the rounds" in str(result.summary())


def test_before_the_first_round_all_sites_are_needed(base, study):
    with pytest.raises(LegOver, match="west did not answer before the first round"):
        run_leg(study, NAMES[:2], Wire({name: base[1][name] for name in NAMES[:2]}))
    asked = Wire(base[1])
    same(run_leg(study, NAMES, asked), base[2])


def test_without_surrogates_a_lost_site_stops_the_run_and_the_checkpoint_is_kept(base, study):
    settings = {"surrogates": "none", "step_size": 1e-3, "rounds": 8, "batch_size": 9, "local_steps": 4, "chains": 1}
    study, sites = replace(study, settings=settings), base[1]

    def fault(site, data, answer):
        if site == "east" and b'"kind": "update"' in data[:200] and b'"round": 0' not in data[:200]:
            raise TimeoutError("slow")
        return answer()

    with pytest.raises(fsgld.InputError, match="east is away, and without surrogates its data would be missing"):
        run_leg(study, NAMES, Wire(sites, fault))
    assert json.loads((run_folder(study) / "error.json").read_text())["message"].startswith("east is away")
    same(run_leg(study, NAMES, Wire(sites)), compiled(study))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(min_rows=21), "min_rows"),
        (Limits(min_rows_per_parameter=7), "min_rows_per_parameter"),
        (Limits(min_sites=4), "min_sites"),
        (Limits(min_batch_size=9), "min_batch_size"),
        (Limits(largest_message=250), "more than 250 that are allowed"),
    ],
)
def test_a_sites_limits_are_enforced_there_and_the_refusal_says_which(base, study, tmp_path, limits, reason):
    sites = make_sites(study, tmp_path / "sites")
    sites["west"].limits = limits
    with pytest.raises(fsgld.InputError, match=f"west: .*{reason}"):
        run_leg(study, NAMES, Wire(sites))
    audit = [json.loads(line) for line in (tmp_path / "sites" / "west" / "audit.jsonl").read_text().splitlines()]
    assert reason in audit[-1]["reason"]


def test_data_that_change_between_legs_are_noticed(base, study, tmp_path):
    sites = make_sites(study, tmp_path / "sites")

    def stop(site, data, answer):
        if b'"round": 4' in data[:200]:
            raise LegOver("network")
        return answer()

    with pytest.raises(LegOver):
        run_leg(study, NAMES, Wire(sites, stop))
    sites["east"] = Site("east", study, study.rows(columns(0, 31), "east"), sites["east"].folder)
    with pytest.raises(fsgld.InputError, match="east: its data have changed since the run began"):
        run_leg(study, NAMES, Wire(sites))


def test_a_site_with_another_version_is_refused(base, study, monkeypatch):
    """Another version may draw other random numbers."""
    monkeypatch.setattr("fsgld.engines.flare.site.__version__", "0.1.0")
    ours = re.escape(fsgld.__version__)
    with pytest.raises(fsgld.InputError, match=f"{NAMES[0]} runs fsgld 0.1.0, the coordinator fsgld {ours}; install"):
        run_leg(study, NAMES, Wire(base[1]))


def test_a_message_for_another_study_or_round_is_refused_by_the_site_and_logged(base, tmp_path):
    study, sites, _ = base
    site = Site("west", study, study.rows(columns(2), "west"), tmp_path)
    other = messages.encode(Message("hello", "f" * 64, -1, {}))
    assert "for study ffffffffffff" in messages.decode(site.answer(other), True).fields["reason"]
    wire = Wire(sites)
    run_leg(replace(study, folder=tmp_path / "run"), NAMES, wire)
    setup = next(data for name, data, _ in wire.sent if name == "west" and kind_of(data) == "setup")
    update = next(data for name, data, _ in wire.sent if name == "west" and kind_of(data) == "update")
    assert messages.decode(site.answer(update), True).fields["reason"] == "west: unknown setup"
    site.answer(setup)
    first = site.answer(update)
    assert messages.decode(first, True).kind == "update" and site.answer(update) == first  # again: the same bytes
    m = messages.decode(update, False)
    wrong = messages.encode(m._replace(round=m.round + 1))
    assert "not at the beginning of round" in messages.decode(site.answer(wrong), True).fields["reason"]
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", update[:-1], update + b"0"):
        assert messages.decode(site.answer(data), True).kind == "refusal"
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert sum("reason" in line for line in lines) == 7
    assert all({"way", "kind", "bytes", "digest", "fields"} <= set(line) for line in lines)


def test_nothing_of_the_rows_is_in_the_messages_or_in_files_outside_of_the_site(base, study, tmp_path):
    """Plant values that can be recognised, and look for them in all bytes and all text that leave the sites."""
    study = replace(study, settings=QUICK | {"thin": 1, "rounds": 4, "mini_batches": "leverage"})
    sites, values = {}, []
    for s, name in enumerate(NAMES):
        table = columns(s, marked=True)
        values += [float(value) for key in ("x1", "x2") for value in table[key]]
        sites[name] = Site(name, study, study.rows(table, name), tmp_path / "sites" / name)
    wire = Wire(sites)
    run_leg(study, NAMES, wire)
    outside = [file.read_bytes() for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    sent = [data for _, request, reply in wire.sent for data in (request, reply)] + outside
    sought = {f(v) for v in values for f in (lambda v: np.float64(v).tobytes(), lambda v: repr(v).encode())}
    sought |= set(needles())
    given = b"".join(np.stack([sites[name].table.rows["x"]]).tobytes() for name in NAMES)
    assert sum(needle in given for needle in sought) >= len(values)  # they would be found
    assert len(sent) > 50 and len(sought) > 400
    for blob in sent:
        assert not [needle for needle in sought if needle in blob]
    inside = b"".join(file.read_bytes() for file in (tmp_path / "sites").rglob("*") if file.is_file())
    assert not [needle for needle in sought if needle in inside]  # the audit log does not quote data either


def test_what_may_leave_a_site_is_this_list():
    """Anyone who lets more leave has to change this test, and docs/federation.md with it."""
    assert REPLIES == {
        "describe": {
            "read": "whole",
            "rows": "whole",
            "missing": "i[V]",
            "text": "i[V]",
            "levels": "words",
            "places": "i[L]",
            "counts": "i[L]",
            "learns": "f[M,3]",
        },
        "moments": {"columns": "words", "x": "f[P,3]", "y": "f[3]", "exposure": "number"},
        "design": {"study": "word"},
        "outcomes": {
            "observed": "i[B]",
            "replicated": "i[K,B]",
            "mean": "number",
            "sd": "number",
            "means": "f[K]",
            "sds": "f[K]",
        },
        "alone": {"mean": "f[P]?", "sd": "f[P]?"},
        "pull": {"gradient": "f[1,D]", "curvature": "f[1,D,D]"},
        "hello": {"rows": "whole", "columns": "words", "data": "word", "software": "word"},
        "all_clients": {"value": "f[1]", "gradient": "f[1,d]", "curvature": "f[1,d]|f[1,d,d]?"},
        "mean_derivatives": {"gradient": "f[1,d]", "curvature": "f[1,d,d]"},
        "residuals": {"value": "f[1,K,d]", "growth": "f[1,K,d]"},
        "excess_by_products": {"ends": "f[1,2]"},
        "by_leverage": {"lots": "whole"},
        "noise_of_some": {"variance": "f[1,K,d]", "leverage": "f[1]"},
        "setup": {"setup": "word"},
        "update": {
            "theta": "f[C,d]",
            "memory": "i[C]|f[C,d]?",
            "t": "i[C]",
            "draws": "f[C,kept,d]?",
            "shift": "f[C,d]?",
            "precision": "f[C,d]|f[C,d,d]?",
            "anchor": "f[C,d]?",
            "gradient": "f[C,d]?",
        },
        "refusal": {"reason": "word"},
    }


def test_an_error_in_the_model_tells_the_coordinator_nothing_but_its_kind(base, tmp_path):
    study = base[0]
    site = Site("west", study, study.rows(columns(2), "west"), tmp_path)
    site._handlers["hello"] = lambda request: 1 / 0
    reply = messages.decode(site.answer(messages.encode(Message("hello", study.digest, -1, {}))), True)
    assert reply.fields["reason"] == "west: ZeroDivisionError at the site; its audit log has the text"
    assert "division by zero" in (tmp_path / "audit.jsonl").read_text()
