"""`fsgld glm` and `fsgld predict`: files as people write them, wrong ones, interrupted runs, predictions, studies."""

import io
import json

import numpy as np
import pandas as pd
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fsgld import InputError, Result, cli, glm_commands
from fsgld.checkpoint import Checkpoint
from fsgld.glm import federated, glm, tables
from fsgld.glm.predict import calibration, predict
from fsgld.glm.sites import as_table
from fsgld.results import Status
from fsgld.study import Study

runner = CliRunner()
GOOD = "y,x,g\n1,2.5,a\n0,3,b\n1,1,a\n0,2,b\n"


@pytest.fixture
def stop(monkeypatch):
    """Stop where sampling would begin."""

    def done(*arguments):
        raise typer.Exit(0)

    monkeypatch.setattr(glm_commands, "_run", done)


def run_glm(folder, content, formula="y ~ x + g", family="bernoulli", *options):
    """Run on a file with some content and on a good one."""
    (folder / "bad.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "good.csv").write_text(GOOD)
    files = [str(folder / name) for name in ("bad.csv", "good.csv")]
    return runner.invoke(
        cli.app, ["glm", formula, *files, "--family", family, "--out", str(folder / "r.npz"), *options]
    )


@pytest.mark.parametrize(
    "content",
    [
        GOOD, GOOD.replace(",", ";"), GOOD.replace(",", "\t"), GOOD.replace(",", "|"), GOOD.replace("\n", "\r\n"),
        GOOD.replace(",", ";").replace("2.5", "2,5"), GOOD.encode("utf-16"), GOOD.encode("utf-8-sig"),
        GOOD.replace("a", "ä").encode("cp1252"), GOOD.replace(",", ", "), GOOD.replace("a", '"a, or so"'),
        GOOD + "\n\n", GOOD.replace("2.5", "NA") + "1,4,a\n",
    ],
)  # fmt: skip
def test_files_as_people_write_them(content, tmp_path, stop):
    done = run_glm(tmp_path, content)
    assert done.exit_code == 0, done.stderr
    table = tables.read(tmp_path / "bad.csv")
    assert list(table.columns) == ["y", "x", "g"]
    assert table["x"].dropna().tolist()[-3:] == [3.0, 1.0, 2.0] or table["x"].tolist()[-1] == 4.0


@pytest.mark.parametrize(
    ("content", "formula", "family", "options", "sentence"),
    [
        (GOOD, "y ~ zz", "bernoulli", (), "bad.csv has no column 'zz'; its columns are y, x, g"),
        (GOOD, "y ~ x +* g", "bernoulli", (), "the formula 'y ~ x +* g' cannot be read"),
        (GOOD.replace("0,3", "2,3"), "y ~ x", "bernoulli", (), "bad.csv: row 2 has y = 2, but family bernoulli needs"),
        (GOOD.replace("0,3", "1.5,3"), "y ~ x", "poisson", (), "bad.csv: row 2 has y = 1.5, but family poisson needs"),
        (GOOD, "x ~ g", "binomial", ("--trials", "y"), "needs a whole number from 0 to the trials"),
        ("y,x,g\n1,,a\n0,NA,b\n", "y ~ x", "bernoulli", (), "no rows are left after dropping those with missing"),
        ("y,x,g\n", "y ~ x", "bernoulli", (), "bad.csv has a header but no rows"),
        ("", "y ~ x", "bernoulli", (), "bad.csv is empty"), (b"\0\1\2", "y ~ x", "bernoulli", (), "is not a text file"),
        ("y,x,x\n1,2,3\n", "y ~ x", "bernoulli", (), "bad.csv: two columns read 'x'"),
        ("y,x,g\n1,2\n", "y ~ x", "bernoulli", (), "bad.csv: row 1 has 2 cells, but the header has 3"),
        ("y,x,g\n1,2,a\n0,1,b,c\n", "y ~ x", "bernoulli", (), "bad.csv: row 2 has 4 cells, but the header has 3"),
        ('y,x,g\n1,"2,a\n0,1,b\n', "y ~ x", "bernoulli", (), "cannot be read as a table"),
        ("y,x,g\n1,inf,a\n", "y ~ x", "bernoulli", (), "row 1 of column x holds an infinite number"),
        ("y,x,g\n1,much,a\n", "y ~ x", "bernoulli", (), "column x is numbers at good but text at bad"),
        (GOOD, "y ~ log(x - 2)", "bernoulli", (), "bad.csv: row 3 gives no finite number in column log(x - 2)"),
        (GOOD, "y ~ x", "normal", (), "family must be one of gaussian, bernoulli"),
        (GOOD, "y ~ x", "bernoulli", ("--site-effects", "random"), "site_effects must be one of none, separate"),
        (GOOD, "y ~ x", "bernoulli", ("--prior", "x"), "--prior must read"),
        (GOOD, "y ~ x", "bernoulli", ("--prior", "z=normal(0, 1)"), "there is no parameter 'z'"),
        (GOOD, "y ~ bs(x, knots=[2], lower_bound=0, upper_bound=2.2)", "bernoulli", (), "cannot be made: Some field"),
    ],
)  # fmt: skip
def test_wrong_input_ends_with_one_sentence_and_two(content, formula, family, options, sentence, tmp_path, stop):
    done = run_glm(tmp_path, content, formula, family, *options)
    assert done.exit_code == 2
    (line,) = done.stderr.strip().splitlines()
    assert sentence in line
    assert not (tmp_path / "r.npz").exists()


def test_files_that_are_not_there_or_twice(tmp_path, stop):
    (tmp_path / "a.csv").write_text(GOOD)
    for files, sentence in [
        (["b.csv"], "cannot be read"),
        (["a.csv", "a.csv"], "given twice"),
        (["."], "cannot be read"),
    ]:
        done = runner.invoke(cli.app, ["glm", "y ~ x", *(str(tmp_path / file) for file in files)])
        assert (done.exit_code, sentence in done.stderr) == (2, True), done.stderr
    done = runner.invoke(cli.app, ["glm", "y ~ x", str(tmp_path / "a.csv"), "--out", str(tmp_path)])
    assert done.exit_code == 2 and "is a folder" in done.stderr


def test_a_file_too_large_for_memory_is_refused_with_what_it_needs(tmp_path, monkeypatch, stop):
    """As 5 GB on a small machine: the first piece tells how much the whole would need."""
    rows = "".join(f"{i % 2},{i / 7:.3f},a\n{i % 2},{i},b\n" for i in range(20_000))
    monkeypatch.setattr(tables, "CHUNK", 8000)
    monkeypatch.setattr(tables, "SMALL", 0)
    monkeypatch.setattr(tables, "free_memory", lambda: 1e6)
    done = run_glm(tmp_path, "y,x,g\n" + rows)
    assert done.exit_code == 2
    assert "GB of memory" in done.stderr and "0.001 GB are free" in done.stderr
    needed = float(done.stderr.split("need about ")[1].split(" GB")[0]) * 1e9
    assert needed == pytest.approx(6 * 40_000 * (8 + 8 + 70), rel=0.5)
    monkeypatch.setattr(tables, "free_memory", lambda: 1e9)
    assert run_glm(tmp_path, "y,x,g\n" + rows).exit_code == 0
    assert len(tables.read(tmp_path / "bad.csv")) == 40_000  # joined from pieces


CELLS = st.one_of(
    st.sampled_from(["0", "1", "2.5", "-3", "1e400", "NA", "", "a", "inf", "nan", '"', "ä", "1,5", "\0", "٣", "1_0"]),
    st.text(max_size=6), st.floats(width=32).map(str),
)  # fmt: skip
HEADERS = st.lists(
    st.one_of(st.sampled_from(["y", "x", "g", " y", "", "log", "Intercept"]), st.text(max_size=4)), max_size=5
)
FORMULAS = [
    "y ~ x + g",
    "y ~ C(g) * x",
    "y ~ log(x) + scale(x)",
    "y ~ x + offset(log(g))",
    "y ~ g",
    "x ~ y",
    "y ~ 0 + x:g",
]


@st.composite
def bad_files(draw):
    """Headers and cells of all kinds, joined by separators of all kinds, cut and spoilt, in several encodings."""
    header = draw(st.one_of(st.just(["y", "x", "g"]), HEADERS))
    rows = draw(st.lists(st.lists(CELLS, min_size=len(header), max_size=len(header)), max_size=6))
    separator, end = draw(st.sampled_from([",", ";", "\t", "|", " "])), draw(st.sampled_from(["\n", "\r\n", "\r"]))
    text = end.join(separator.join(row) for row in [header, *rows])
    content = text.encode(draw(st.sampled_from(["utf-8", "utf-16", "utf-8-sig", "utf-32"])), errors="replace")
    if draw(st.integers(0, 4)) == 0:
        at = draw(st.integers(0, len(content)))
        content = content[:at] + draw(st.binary(max_size=4)) + content[at + draw(st.integers(0, 3)) :]
    return content


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    content=bad_files(), formula=st.sampled_from(FORMULAS),
    family=st.sampled_from(["gaussian", "bernoulli", "poisson"]), good=st.booleans(),
)  # fmt: skip
def test_generated_files_never_end_in_a_traceback(content, formula, family, good, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "generated"
    folder.mkdir(exist_ok=True)
    (folder / "bad.csv").write_bytes(content)
    (folder / "good.csv").write_text("y,x,g\n1,2.5,1\n0,3,2\n")
    files = [str(folder / "bad.csv")] + ([str(folder / "good.csv")] if good else [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glm_commands, "_run", lambda *arguments: (_ for _ in ()).throw(typer.Exit(0)))
        done = runner.invoke(cli.app, ["glm", formula, *files, "--family", family, "--out", str(folder / "r.npz")])
    assert done.exit_code in (0, 2), (content, done.exception)
    if done.exit_code == 2:
        assert done.stderr.startswith("fsgld: ") and done.stderr.count("\n") == 1, done.stderr


@pytest.fixture(scope="module")
def study_of_three(tmp_path_factory):
    """Three small sites with a gaussian outcome, as files."""
    folder, rng = tmp_path_factory.mktemp("sites"), np.random.default_rng(0)
    for i, name in enumerate(("north", "south", "west")):
        x, g = rng.normal(10, 2, 40), rng.choice(["a", "b"], 40)
        y = 1 + 0.5 * x + 0.4 * (g == "b") + 0.3 * i + rng.normal(0, 0.5, 40)
        pd.DataFrame({"x": x, "g": g, "y": y}).to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.mark.slow
def test_ctrl_c_leaves_a_checkpoint_that_the_same_command_goes_on_from(study_of_three, tmp_path, monkeypatch):
    files = [str(study_of_three / f"{name}.csv") for name in ("north", "south", "west")]
    command = ["glm", "y ~ x + g", *files, "--chains", "2", "--out"]
    whole = runner.invoke(cli.app, [*command, str(tmp_path / "whole.npz")])
    assert whole.exit_code == 0, whole.output
    for word in ("north: 40 rows", "prior: x ~ normal(0, ", "R-hat", "ESS", "MCSE", "g[T.b]", "wrote"):
        assert word in whole.stdout
    append = Checkpoint.append

    def interrupted(self, call, arrays):
        append(self, call, arrays)
        if call == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "append", interrupted)
    stopped = runner.invoke(cli.app, [*command, str(tmp_path / "r.npz")])
    assert stopped.exit_code == 130
    assert "give the same command again to go on" in stopped.stderr
    assert not (tmp_path / "r.npz").exists()
    monkeypatch.setattr(Checkpoint, "append", append)
    assert runner.invoke(cli.app, [*command, str(tmp_path / "r.npz")]).exit_code == 0
    assert not (tmp_path / "r.npz.checkpoint").exists()
    one, other = (Result.load(tmp_path / f"{name}.npz") for name in ("whole", "r"))
    assert all(np.array_equal(one.draws[name], other.draws[name]) for name in one.draws)
    assert list(one.draws) == ["Intercept", "x", "g[T.b]", "sigma"]
    about = one.settings["glm"]
    assert set(about) == {"design", "sites", "check", "alone", "pull"}
    assert len(about["check"]["replicated"]) == 3
    json.dumps(about)


def made_result(design, **draws):
    """A result with given draws."""
    count = len(next(iter(draws.values())))
    columns = {name.replace("_s_", "[").replace("_e_", "]"): np.asarray(x, float)[None] for name, x in draws.items()}
    glm_settings = {"glm": {"design": design.to_json(), "sites": []}}
    return Result(
        columns, np.arange(count), np.zeros((1, count), int), design.sites, (Status(0, count),), glm_settings, {}
    )


def test_predictions_by_hand(study_of_three, tmp_path):
    files = {name: study_of_three / f"{name}.csv" for name in ("north", "south")}
    design = glm("y ~ x + g", "gaussian", files, site_effects="separate").design
    result = made_result(design, **{
        "Intercept[north]": [1.0, 2.0], "Intercept[south]": [0.0, 0.0], "x": [0.5, 1.0], "g[T.b]": [3.0, 3.0],
        "sigma": [1e-9, 1e-9],
    })  # fmt: skip
    new = as_table({"x": [2.0, 4.0, np.nan], "g": ["a", "b", "a"], "y": [3.0, 9.0, 1.0]}, "new")
    found = predict(result, new, site="north", interval=0.5)
    np.testing.assert_allclose(found.table["mean"], [(2 + 4) / 2, (6 + 9) / 2, np.nan])
    np.testing.assert_allclose(found.table["low"], [2.5, 6.75, np.nan])
    assert found.left_out == 1
    assert found.scores["rmse"] == pytest.approx(np.sqrt((0 + 1.5**2) / 2))
    for options, sentence in [({}, "say whose to use"), ({"site": "east"}, "there is no site 'east'")]:
        with pytest.raises(InputError, match=sentence):
            predict(result, new, **options)
    with pytest.raises(InputError, match="row 1 has g = 'z', a level that no site had; there are a, b"):
        predict(result, as_table({"x": [2.0], "g": ["z"]}, "new"), site="north")
    with pytest.raises(InputError, match="is text, but it was numbers"):
        predict(result, as_table({"x": ["?!"], "g": ["a"]}, "new"), site="north")


def test_a_new_site_is_as_uncertain_as_tau_says(study_of_three):
    files = {name: study_of_three / f"{name}.csv" for name in ("north", "south")}
    design = glm("y ~ x", "gaussian", files, site_effects="hierarchical").design
    n = 1000
    draws = {"Intercept": np.zeros(n), "x": np.zeros(n), "tau": np.full(n, 2.0), "sigma": np.full(n, 1e-9)}
    result = made_result(design, **draws, **{f"site[{name}]": np.full(n, 5.0) for name in ("north", "south")})
    new = as_table({"x": [1.0]}, "new")
    assert predict(result, new, site="south").table["mean"].tolist() == [5.0]
    assert predict(result, new).table["sd"][0] == pytest.approx(2.0, rel=0.1)  # four sds of an sd of 1000 draws


def test_calibration_by_hand():
    p, y = np.array([0.1, 0.1, 0.9, 1.0]), np.array([0.0, 1.0, 1.0, 1.0])
    found = calibration(p, y)
    assert found["brier"] == pytest.approx((0.01 + 0.81 + 0.01 + 0) / 4)
    assert found["ece"] == pytest.approx(0.5 * 0.4 + 0.5 * 0.05)


def test_predict_on_the_command_line(study_of_three, tmp_path):
    files = {name: study_of_three / f"{name}.csv" for name in ("north", "south")}
    design = glm("y ~ x", "gaussian", files).design
    made_result(design, Intercept=[1.0, 1.0], x=[0.5, 0.5], sigma=[1.0, 1.0]).save(tmp_path / "r.npz")
    new = tmp_path / "new.csv"
    new.write_text("x\n2\n4\n")
    done = runner.invoke(cli.app, ["predict", str(tmp_path / "r.npz"), str(new)])
    assert done.exit_code == 0, done.output
    table = pd.read_csv(io.StringIO(done.stdout))
    assert table["row"].tolist() == [1, 2] and table["mean"].tolist() == [2.0, 3.0]
    known = runner.invoke(cli.app, ["predict", str(tmp_path / "r.npz"), str(study_of_three / "west.csv")])
    assert "rmse" in known.stderr and "coverage_94" in known.stderr
    for arguments, sentence in [
        ((str(tmp_path / "none.npz"), str(new)), "there is no file"), ((str(new), str(new)), "is not a result"),
        ((str(tmp_path / "r.npz"), str(new), "--site", "north"), "no site effects"),
        ((str(tmp_path / "r.npz"), str(new), "--interval", "2"), "strictly between 0 and 1"),
    ]:  # fmt: skip
        done = runner.invoke(cli.app, ["predict", *arguments])
        assert done.exit_code == 2 and sentence in done.stderr, done.stderr


def test_a_study_needs_names_of_sites_only(tmp_path):
    folder = tmp_path / "heart"
    command = ["glm", "y ~ x + g", "SITE_1.csv", "north", "--family", "bernoulli", "--site-effects", "hierarchical"]
    command += ["--prior", "x=normal(0, 2)", "--study", str(folder)]
    done = runner.invoke(cli.app, command)
    assert done.exit_code == 0, done.output
    assert "its sites agree on the columns when it runs" in done.output
    study = Study.read(folder)
    assert study.sites == ("site-1", "north") and study.settings == {"chains": 8, "seed": 0}
    assert study.agreement == federated.Agreement(
        "y ~ x + g", "bernoulli", "hierarchical", priors={"x": "normal(0, 2)"}
    )
    with pytest.raises(InputError, match="have not agreed"):
        study.model()
    (tmp_path / "data.csv").write_text(GOOD * 1 + GOOD.split("\n", 1)[1] * 3)
    check = runner.invoke(cli.app, ["study", "check", str(folder), "--data", str(tmp_path / "data.csv")])
    assert check.exit_code == 0 and "16 complete rows" in check.output, check.output
    for options, sentence in [
        (command, "is not empty"), ([*command[:2], "a", *command[4:]], "need two sites at least"),
        ([*command[:2], "a", "a.csv", *command[4:]], "was given twice"), ([*command, "--skip-unusable"], "all sites"),
        ([*command, "--prior", "tau=normal(0, 1)"], "the prior of tau must be one of half_normal"),
        (["glm", "y ~~ x", *command[2:]], "cannot be read"), ([*command[:2], "a", "A.csv", *command[4:]], "two sites"),
        ([*command[:2], "a", "...", *command[4:]], "cannot name a site"),
        (["glm", "y ~ x", "a", "b", "--family", "binomial", "--study", str(tmp_path / "b")], "needs trials"),
        (["glm", "y ~ x", "a", "b", "--chains", "0", "--study", str(tmp_path / "c")], "chains must be a whole number"),
    ]:  # fmt: skip
        done = runner.invoke(cli.app, options)
        assert done.exit_code == 2 and sentence in done.stderr, (options, done.output)
