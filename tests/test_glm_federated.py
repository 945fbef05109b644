"""A formula across sites: columns are agreed by messages, and the result is that of the same tables in one process."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fsgld
from flare_problem import Wire
from fsgld import InputError, cli
from fsgld.engines.flare import agreeing, demo, messages
from fsgld.engines.flare.leg import run_folder, run_leg
from fsgld.engines.flare.post import Post
from fsgld.engines.flare.site import Limits, Site
from fsgld.glm import evidence, glm
from fsgld.glm.federated import Agreement, write
from fsgld.study import Study

pytestmark = pytest.mark.filterwarnings("ignore:variances may be")
FORMULA = "y ~ x + g + scale(e)"
NAMES = ("north", "south", "west")


def tables(seed=0):
    """Three sites; "c" is absent in the west, two rows of the south lack x."""
    rng, found = np.random.default_rng(seed), {}
    for i, name in enumerate(NAMES):
        n = 52 if name == "south" else 50  # as many complete rows: compiled programs are shared
        t = pd.DataFrame({"x": rng.normal(100 + 5 * i, 3, n), "g": rng.choice(list("abc" if i < 2 else "ab"), n)})
        t["e"] = rng.uniform(1, 3, n)
        t["y"] = rng.poisson(np.exp(0.02 * t["x"] - 1 + 0.3 * i)).astype(float)
        found[name] = t
    found["south"].loc[[2, 7], "x"] = np.nan
    return found


def make_study(folder, rounds=6, **given):
    """Write a study by names of sites only, with few rounds."""
    given = {"formula": FORMULA, "family": "poisson", "site_effects": "hierarchical"} | given
    write(Agreement(**given), NAMES, folder, seed=5, chains=2)
    file = folder / "study.toml"
    file.write_text(file.read_text().split("[until]")[0].replace("[sampling]", f"[sampling]\nrounds = {rounds}"))
    return Study.read(folder)


def make_sites(study, folder, data=None, limits=None):
    found = {}
    for name, table in (data or tables()).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        table.to_csv(folder / name / "data.csv", index=False)
        read = study.agreement.read(folder / name / "data.csv")
        found[name] = Site(name, study, read, folder / name / "fsgld", limits)
    return found


def test_a_hierarchy_settles_on_the_same_design_and_settings_and_no_row_is_sent(tmp_path):
    study = make_study(tmp_path / "study", priors={"x": "normal(0, 0.5)"})
    sites = make_sites(study, tmp_path)
    wire = Wire(sites)
    settled, about = settle(study, wire)
    made = glm(FORMULA, "poisson", tables(), site_effects="hierarchical", priors={"x": "normal(0, 0.5)"})
    assert about["sites"] == made.sites
    agreed = json.loads(json.dumps(made.design.to_json()))
    for key in set(agreed) - {"pilot"}:
        assert about["design"][key] == agreed[key], key
    for key, value in agreed["pilot"].items():
        np.testing.assert_allclose(about["design"]["pilot"][key], value, rtol=1e-6, atol=1e-6)
    assert settled.settings == made.options | {"chains": 2, "seed": 5, "rounds": 6}
    assert all(site.study.digest == settled.digest != study.digest for site in sites.values())
    kinds = {messages.decode(reply, True).kind for _, _, reply in wire.sent}
    assert kinds == {"describe", "moments", "design", "hello", "all_clients"}
    sent = [data for _, request, reply in wire.sent for data in (request, reply)]
    marks = np.concatenate([table["x"].dropna() for table in tables().values()])
    nothing_leaked(marks, sent, tmp_path / "study", *(tmp_path / name / "fsgld" for name in NAMES))


def nothing_leaked(marks, sent, *folders):
    """No value of a row is in a message or in a file; x has digits enough to be found."""
    needles = {np.float64(mark).tobytes() for mark in marks} | {repr(float(mark)).encode() for mark in marks}
    files = [file.read_bytes() for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert len(needles) > 250 and len(files) > 5
    for blob in sent + files:
        assert not [needle for needle in needles if needle in blob]


def ask(site, kind, digest=None, **fields):
    """Put one question to a site."""
    data = messages.encode(messages.Message(kind, digest or site.begun.digest, -1, fields))
    return messages.decode(site.answer(data), True)


def test_a_site_checks_a_design_and_has_it_after_a_restart(tmp_path):
    study = make_study(tmp_path / "study", site_effects="none")
    site = make_sites(study, tmp_path)["south"]
    assert ask(site, "hello").fields["reason"] == "south: the sites have not settled on the columns yet"
    made = glm(FORMULA, "poisson", tables())
    content = made.design.to_json()
    assert ask(site, "moments", design=json.dumps(content)).fields["columns"] == list(made.design.columns)
    wrong = {
        "formula": "y ~ x", "levels": {"g": ["a", "b"]}, "columns": ["x"], "scale": [1.0, 0.0, 1.0, 1.0],
        "priors": content["priors"] | {"x": "normal(0.0, 1.0)"}, "rows": [50, 49, 50], "sites": ["a", "b", "c"],
        "learnt": {}, "centre": [float("nan")] * 4, "success": ["a", "b"], "pilot": {"theta": [1.0]},
    }  # fmt: skip
    for key, value in wrong.items():
        reply = ask(site, "design", design=json.dumps(content | {key: value}))
        assert reply.kind == "refusal" and "does not fit this site" in reply.fields["reason"], (key, reply)
    for text in ("", "[]", "{}", json.dumps(content)[:-9]):
        assert ask(site, "design", design=text).kind == "refusal"
    reply = ask(site, "design", design=json.dumps(content))
    settled = study.settled(content).digest
    assert reply.fields["study"] == settled != study.digest
    assert ask(site, "hello", settled).fields["rows"] == 50
    again = Site("south", study, site.file, site.folder)
    assert ask(again, "hello", settled).fields == ask(site, "hello", settled).fields
    assert json.loads((site.folder / "design.json").read_text())["columns"] == list(made.design.columns)
    lines = [json.loads(line) for line in (site.folder / "audit.jsonl").read_text().splitlines()]
    assert {line["kind"] for line in lines if line.get("way") == "in"} == {"hello", "moments", "design"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.assign(g=np.where(t.index == 3, "rare disease", t["g"])), "column g has a level with fewer"),
        (lambda t: t.drop(columns="x"), "it has no column 'x'"), (lambda t: t.assign(x=np.nan), "no rows are left"),
        (lambda t: t.assign(y=np.where(t.index == 3, -1.25, t["y"])), None),
    ],
)  # fmt: skip
def test_what_a_site_says_of_a_table_that_cannot_be_used(tmp_path, change, reason):
    study = make_study(tmp_path / "study", site_effects="none")
    data = tables()
    change(data["south"]).to_csv(tmp_path / "south.csv", index=False)
    with pytest.raises(InputError) as caught:  # the owner is told at once, with file and row
        Site("south", study, study.agreement.read(tmp_path / "south.csv"), tmp_path)
    assert "south.csv" in str(caught.value)
    assert caught.value.told == "" if reason is None else reason in caught.value.told
    assert "rare disease" not in caught.value.told and "1.25" not in caught.value.told


def test_a_refusal_ends_the_run_with_its_reason_and_sites_can_be_mended(tmp_path):
    study = make_study(tmp_path / "study", site_effects="none", formula="y ~ x + g", rounds=2)
    sites = make_sites(study, tmp_path)
    sites["west"].limits = Limits(min_rows=1000)
    with pytest.raises(InputError, match="west: min_rows"):
        run_leg(study, NAMES, Wire(sites))
    assert "west: min_rows" in (run_folder(study) / "error.json").read_text()
    data = tables()
    data["west"]["g"] = np.arange(50) % 2 * 1.0
    with pytest.raises(InputError, match="column g is numbers at west but text at north"):
        run_leg(study, NAMES, Wire(make_sites(study, tmp_path, data)))
    (first, about), (second, again) = (settle(study, Wire(make_sites(study, tmp_path))) for _ in range(2))
    assert first.digest == second.digest and about == again  # sites that start again have the same design
    data["west"] = tables()["west"][:-1]
    with pytest.raises(InputError, match=r"number of rows. Has the table changed"):
        settle(study, Wire(make_sites(study, tmp_path, data)))


def settle(study, wire):
    """Let sites settle, without a run."""
    return agreeing.agree(study, Post(study.digest, run_folder(study), wire, 5.0, 0), NAMES)


def test_answers_that_make_no_sense_are_refused(tmp_path):
    study = make_study(tmp_path / "study", site_effects="none")
    sites = make_sites(study, tmp_path)

    for field, change in {
        "places": lambda x: x + 9, "counts": lambda x: -x, "levels": lambda x: ["[1]"] * len(x), "rows": lambda x: -1,
        "text": lambda x: 1 - x, "read": lambda x: 1, "learns": lambda x: x * np.nan,
    }.items():  # fmt: skip

        def spoil(site, data, answer, field=field, change=change):
            reply = messages.decode(answer(), True)
            fields = reply.fields | {field: change(reply.fields[field])} if site == "north" else reply.fields
            return messages.encode(reply._replace(fields=fields))

        with pytest.raises(InputError, match="north: what it says of its columns makes no sense"):
            run_leg(study, NAMES, Wire(sites, spoil))


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([0, 2, 5, 9], [0, -1, -1, 9]), ([3, 4, 0], [3, 4, 0]), ([1, 1, 8], [-1, -1, -1]), ([2, 2, 9], [-1, -1, 9]),
        ([1, 40], [-1, -1]), ([2], [-1]),
    ],
)  # fmt: skip
def test_small_counts_are_withheld_and_cannot_be_worked_out(counts, told):
    assert evidence.withhold(np.array(counts), 3).tolist() == told


@pytest.mark.slow
def test_a_formula_from_the_first_command_to_the_report_with_real_processes(tmp_path):
    """Same draws as the tables in one process with the same seed; report and predictions as after `fsgld glm`."""
    rng, folder, runner = np.random.default_rng(3), tmp_path / "study", CliRunner()
    for i, name in enumerate(NAMES):
        x, g = rng.normal(50, 9, 64), rng.choice(["a", "b"], 64)
        ill = rng.uniform(size=64) < 1 / (1 + np.exp(-0.1 * (x - 50) - (g == "b") - 0.5 * i))
        pd.DataFrame({"x": x, "g": g, "ill": np.where(ill, "yes", "no")}).to_csv(tmp_path / f"{name}.csv", index=False)
    words = ["glm", "ill ~ x + g", "--family", "bernoulli", "--site-effects", "separate", "--study", str(folder)]
    done = runner.invoke(cli.app, [*words, *NAMES])
    assert done.exit_code == 0, done.output
    file = folder / "study.toml"
    text = file.read_text().split("[until]")[0].replace("port = 8002", f"port = {demo._free_port()}")
    file.write_text(text.replace("[sampling]", "[sampling]\nrounds = 60"))
    with (tmp_path / "run.out").open("w") as out:
        result = demo.federate(Study.read(folder), tmp_path, stdout=out, stderr=out)
    printed = (tmp_path / "run.out").read_text()
    assert all(word in printed for word in ("north: 64 rows", "prior: x ~ normal(0, ", "Intercept[west]")), printed
    files = {name: tmp_path / f"{name}.csv" for name in NAMES}
    made = glm("ill ~ x + g", "bernoulli", files, site_effects="separate")
    inner = fsgld.sample(made.model, made.shards, rounds=60, chains=8, **made.options)
    expected = made.in_units(inner)
    assert list(result.draws) == list(expected.draws)
    for name, leaf in expected.draws.items():
        np.testing.assert_allclose(result.draws[name], leaf, rtol=1e-4, atol=1e-5)
    about = result.settings["glm"]
    assert set(about) == {"design", "sites", "check", "alone", "pull"}
    assert set(about["alone"]) == set(about["pull"]) == set(NAMES) and len(about["check"]["sites"]) == 3
    here = evidence.gather_evidence(made.design, inner.draws, 0, evidence.Here(made.design, made.shards))
    assert about["check"]["observed"] == here["check"]["observed"] and sum(about["check"]["observed"]) == 192
    for key in ("alone", "pull"):
        for name in NAMES:
            for column, value in here[key][name].items():
                np.testing.assert_allclose(about[key][name][column], value, rtol=1e-3, atol=1e-5)
    done = runner.invoke(cli.app, ["report", str(folder / "result.npz"), "--out", str(tmp_path / "r.html")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "r.html").read_text()
    for section in ("Each site alone", "Does the model", "pull", "left each site"):
        assert section in page, section
    new = str(files["west"])
    done = runner.invoke(cli.app, ["predict", str(folder / "result.npz"), new, "--site", "west"])
    assert done.exit_code == 0 and "brier" in done.stderr, done.output
    for name in NAMES:
        audit = (folder / "kits" / name / "fsgld" / "audit.jsonl").read_text()
        assert all(f'"kind": "{kind}"' in audit for kind in ("describe", "moments", "design", "outcomes", "update"))
    marks = np.concatenate([pd.read_csv(file)["x"] for file in files.values()])
    nothing_leaked(marks, [], folder / "runs", *(folder / "kits" / name / "fsgld" for name in NAMES))
