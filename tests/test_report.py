"""`fsgld report`: every section when its data exist, any result at all, nothing from data becomes markup."""

import copy
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("arviz")
pytest.importorskip("matplotlib")

from fsgld.cli import app
from fsgld.errors import InputError
from fsgld.report import render, words
from fsgld.report.content import collect
from fsgld.report.pooled import pool
from fsgld.results import Result, Status

RNG = np.random.default_rng(3)
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "$x^{$ --> <!-- \\frac",
    "a\x00b\x1b[31m\nc &amp; ünïcødé 年齢",
]
ANCHORS = ["answer", "check", "convergence", "sites", "left", "settings", "cite"]


def any_result(shape=(4, 50), clients=("north", "south"), names=("mu", "sd"), **settings):
    draws = {name: RNG.normal(i, 1.0, shape) for i, name in enumerate(names)}
    visited = RNG.integers(0, len(clients), (shape[0], shape[1]))
    status = tuple(Status(c, shape[1]) for c in range(shape[0]))
    return Result(draws, np.arange(shape[1]), visited, tuple(clients), status, settings, {"setup": 1.0})


def glm_result(columns=("age", "sex"), sites=("cleveland", "va")):
    """A result as `fsgld glm` saves it, with every kind of evidence."""
    names = ["Intercept", *columns, *(f"site[{s}]" for s in sites), "tau"]
    priors = dict.fromkeys(names[: len(columns) + 1], "normal(0.0, 2.5000001)") | {"tau": "half_normal(1.0)"}
    design = {
        "formula": f"disease ~ {' + '.join(columns)}", "family": "bernoulli", "site_effects": "hierarchical",
        "columns": list(columns), "sites": list(sites), "rows": [30] * len(sites), "priors": priors,
        "pilot": {"theta": []},
    }  # fmt: skip
    told = {"rows_read": 31, "rows": 30, "missing": {columns[0]: 1}, "absent_levels": {}, "constant_columns": []}
    spans = {"mean": 0.4, "sd": 0.5, "replicated_mean": [0.3, 0.4, 0.5], "replicated_sd": [0.4, 0.5, 0.6]}
    about = {
        "design": design, "sites": [{"site": s} | told for s in sites],
        "alone": {s: {c: [0.5, 0.9] for c in columns} for s in sites},
        "pull": {s: dict.fromkeys(columns, -1.2 if i else 1.7) for i, s in enumerate(sites)},
        "check": {
            "edges": [-0.5, 0.5, 1.5], "observed": [35, 25], "replicated": [[30, 20], [34, 26], [40, 30]],
            "sites": [{"site": s} | spans for s in sites],
        },
    }  # fmt: skip
    count = len(sites)
    return any_result(
        clients=sites, names=names, glm=about, rows=[30] * count, shares=[1 / count] * count, preflight={"notes": []},
        surrogates="auto: anchored at the mode, 7 sweeps", step_size="constant, 0.1", rounds=50, chains=4, seed=0,
        away=[0.0] * (count - 1) + [0.25], away_in_draws=[0.0] * (count - 1) + [0.2],
        versions="fsgld 0.1.0, jax 0.10 on cpu",
    )  # fmt: skip


class Outline(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.ids, self.said = set(), set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        self.said.append(data)


@pytest.fixture(scope="module")
def text():
    return render(glm_result())


def test_a_glm_has_every_section(text):
    page = Outline(text)
    assert [name for name in page.ids if name in ANCHORS] == ANCHORS
    assert len(page.ids) == len(set(page.ids)), "two elements have one id"
    said = " ".join(" ".join(page.said).split())
    for phrase in (
        "disease ~ age + sex", "Odds ratio", "Each site alone", "normal(0, 2.5)", "25.0 % ",
        "1 dropped for missing values", "About 10.0 % of the answer rests on surrogates", "jax 0.10 on cpu",
        "cleveland pulls", "up by 1.7 posterior sds",
        "was away in 25 % of the rounds", "8 times", "@inproceedings", "nothing was sent", "within what 94 %",
    ):  # fmt: skip
        assert phrase in said, phrase
    assert text.count("<svg") == 2 + 1 + 2 + 2 * 6  # forest, intercepts, checks, traces and ranks
    assert text.count('role="img" aria-label="') == text.count("<svg")
    assert "<img" not in text and "<script" not in text


def test_bars_that_a_site_withholds_are_not_judged():
    result = glm_result()
    check = result.settings["glm"]["check"]
    check |= {"edges": [0, 1, 2, 3], "observed": [None, 25, 7], "replicated": [[9, 20, 1], [9, 26, 2], [9, 30, 3]]}
    said = " ".join(" ".join(Outline(render(result)).said).split())
    assert "1 of 2 bars and" in said and "1 of 3 bars are not shown and not judged" in said
    assert "The first and the last bar take all that lies beyond" in said


def test_what_is_drawn_takes_its_colours_from_the_page(text):
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.S))
    assert "var(--accent)" in drawn and "var(--c4)" in drawn
    assert set(re.findall(r"#[0-9a-fA-F]{6}", drawn)) <= {"#ffffff"}


def test_any_result_has_a_report():
    page = Outline(render(any_result()))
    assert {"answer", "convergence", "sites", "left", "settings", "cite"} <= set(page.ids)
    assert "check" not in page.ids and "A posterior of 2 parameters" in page.said


@pytest.mark.parametrize(
    "result",
    [
        any_result((1, 30)), any_result((2, 2)), any_result((4, 40), clients=[f"site {i}" for i in range(100)]),
        any_result((2, 20), names=[f"w{i}" for i in range(700)]),
        replace(any_result(), draws={"constant": np.ones((4, 50)), "other": RNG.normal(size=(4, 50, 2))}),
        replace(any_result(), draws={"huge": RNG.normal(1e12, 1e-3, (4, 50)), "tiny": RNG.normal(0, 1e-30, (4, 50))}),
        glm_result(columns=[f"x{i}" for i in range(30)], sites=[f"s{i}" for i in range(40)]),
    ],
    ids=["one chain", "two draws", "100 clients", "700 parameters", "constant", "scales", "30 columns, 40 sites"],
)  # fmt: skip
@pytest.mark.slow
def test_odd_results_have_a_report(result):
    text = render(result)
    assert "</html>" in text and "nan" not in re.sub(r"<style>.*?</style>", "", text, flags=re.S).lower().split()
    assert len(text) < 8e6


def test_chains_that_diverged_are_left_out_and_named():
    result = any_result()
    for leaf in result.draws.values():
        leaf[2, 20:] = np.nan
    one = replace(result, status=(*result.status[:2], Status(2, 20, 20, "south"), result.status[3]))
    said = " ".join(Outline(render(one)).said)
    assert "chain 2 diverged in round 20 at south" in said and "3 chains of 50 draws" in said
    none = replace(result, status=tuple(Status(c, 0, 1, "south") for c in range(4)))
    assert "No chain ran to the end" in " ".join(Outline(render(none)).said)


def test_nothing_from_data_becomes_markup(text):
    result = glm_result(columns=HOSTILE, sites=HOSTILE[::-1])
    result.settings["notes"] = HOSTILE
    page = Outline(render(result, pooled={HOSTILE[0]: (0.1, 0.2)}))
    plain = Outline(text)
    assert page.tags == plain.tags and page.attributes == plain.attributes
    said = "".join(page.said)
    for name in HOSTILE[:3]:
        assert said.count(name) > 5
    assert "年齢" in said and "\x00" not in said and "\x1b" not in said


def test_a_federation_is_told_from_a_simulation():
    result = glm_result()
    each = {"messages": 12345, "bytes_received": 678901, "seconds_away": 32.0, "visits": 9}
    result.settings["federation"] = {"sites": dict.fromkeys(result.clients, each), "legs": 1}
    said = " ".join(Outline(render(result)).said)
    assert "No row left a site" in said and "12,345" in said and "678,901" in said and "25.0 % (32 s)" in said
    assert "simulation" not in said


def test_the_pooled_fit_is_one_more_line():
    content = collect(glm_result(), {"age": (0.1, 0.2)})
    assert [[e.kind for e in panel.estimates] for panel in content["panels"]] == [
        ["federated", "pooled", "alone", "alone"], ["federated", "alone", "alone"],
    ]  # fmt: skip
    low, high = content["panels"][0].estimates[1][3:]
    assert (high - low) / 0.4 == pytest.approx(1.8808, rel=1e-3)


@pytest.mark.parametrize(
    "x, spread, shown",
    [(1.2764, 0.25, "1.28"), (-0.0105, 0.0049, "−0.0105"), (-0.0001, 0.25, "0.00"), (12345.6, 800, "12,346"),
     (1e-12, 1e-13, "1e−12"), (float("nan"), 1, "—"), (3.0, 0.0, "3")],
)  # fmt: skip
def test_numbers_have_two_digits_of_their_spread(x, spread, shown):
    assert words.number(x, spread) == shown


def test_convergence_is_one_sentence_that_can_say_no():
    good, bad, few = any_result((4, 2000)), any_result((4, 2000)), any_result((4, 50))
    bad.draws["sd"][0] += 3
    agree, disagree, short = (collect(result)["convergence"] for result in (good, bad, few))
    assert "4 chains of 2,000 draws agree:" in agree
    assert "run longer" in short
    assert "do not agree" in disagree and "(sd)" in disagree
    assert agree.count(". ") == disagree.count(". ") == 0
    assert "94 % interval" in collect(good)["lead"][0] and "this is no answer" in collect(bad)["lead"][0]


def test_a_site_that_shares_the_coefficients_pulls_with_an_sd_of_half_at_most():
    """The report calls pulls beyond ±1 unlikely: sd ≤ ½ for any sizes and designs, reached with half the rows.

    20,000 replications: an sd has a relative error of 0.005; false alarm at 5 sds 6e-7.
    """
    rng = np.random.default_rng(5)
    sd = []
    for rows, d in (((50, 50), 1), ((20, 200, 9), 3)):
        scale = rng.uniform(0.3, 3, d)
        X = [rng.normal(size=(n, d)) * scale for n in rows]
        A = [x.T @ x for x in X]
        covariance = np.linalg.inv(sum(A))
        noise = [rng.normal(size=(20_000, n)) for n in rows]  # y at the true coefficients 0
        mode = sum(e @ x for e, x in zip(noise, X, strict=True)) @ covariance
        pull = [(e @ x - mode @ a) @ covariance for e, x, a in zip(noise, X, A, strict=True)]
        sd.append(np.std(pull, axis=1) / np.sqrt(np.diag(covariance)))
    assert max(s.max() for s in sd) < 0.5 * 1.025
    assert sd[0].max() > 0.45  # two sites with about half of the rows each


def test_wrong_inputs_end_with_one_sentence(tmp_path):
    run = CliRunner().invoke
    damaged, good = tmp_path / "damaged.npz", tmp_path / "good.npz"
    damaged.write_bytes(b"PK nothing")
    any_result().save(good)
    for arguments in (
        [str(tmp_path / "absent.npz")], [str(damaged)], [str(good), "--out", str(tmp_path / "no" / "a.html")],
        [str(good), str(tmp_path / "table.csv")],
    ):  # fmt: skip
        done = run(app, ["report", *arguments])
        assert done.exit_code == 2 and done.stderr.startswith("fsgld: ") and done.stderr.count("\n") == 1, done.stderr
    done = run(app, ["report", str(good)])
    assert done.exit_code == 0 and (tmp_path / "good.html").read_text().startswith("<!doctype html>")


@pytest.mark.slow
def test_the_pooled_fit_agrees_with_the_federated_one(tmp_path):
    """Two runs of some 3,000 effective draws: each mean within 0.15 sd, or 5.8 standard errors of the difference.

    False alarm below 1e-7 for 4 parameters, if ESS is 3,000; and the sd within 15 % (5 sds of its error, or more).
    """
    pytest.importorskip("formulaic")
    import fsgld

    rng = np.random.default_rng(8)
    files = []
    for site, centre, rows in (("north", -1.0, 40), ("south", 1.0, 60)):
        x = rng.normal(centre, 1.0, rows)
        y = 1 + 0.7 * x + (site == "north") + rng.normal(size=rows)
        files.append(tmp_path / f"{site}.csv")
        files[-1].write_text("x,y\n" + "\n".join(f"{a:.6f},{b:.6f}" for a, b in zip(x, y, strict=True)) + "\n")
    made = fsgld.glm("y ~ x", "gaussian", {file.stem: file for file in files}, site_effects="separate")
    result = made.sample(seed=0)
    found = pool(result, files)
    names, draws = result.flat_draws()
    assert set(found) == set(names)
    for i, name in enumerate(names):
        mean, sd = found[name]
        assert draws[..., i].mean() == pytest.approx(mean, abs=0.15 * sd), name
        assert draws[..., i].std() == pytest.approx(sd, rel=0.15), name
    with pytest.raises(InputError, match="every site"):
        pool(result, files[:1])
    files[1].write_text(files[1].read_text() + "0.0,0.0\n")
    with pytest.raises(InputError, match="61 complete rows"):
        pool(result, files)


def test_the_same_result_gives_the_same_file():
    result = any_result()
    assert render(result) == render(copy.deepcopy(result))
