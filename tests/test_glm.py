"""GLMs across silos: the agreed design against pooled rows, the model against densities by hand, the command line."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import gammaln

from fsgld import InputError, Result, diagnostics
from fsgld.glm import Design, agree, families, glm
from fsgld.glm.build import build, choose_priors
from fsgld.glm.formula import parse
from fsgld.glm.priors import Prior, log_positive, log_real, parse_prior
from fsgld.glm.sites import as_table
from glm_cases import CASES
from make_glm_references import doubts
from make_references import FOLDER

FALSE_ALARMS = 1e-4


def small(seed=0, sizes=(30, 25, 20)):
    """Three sites; level "c" is absent at the last, x is missing in two rows, k is constant at the first."""
    rng = np.random.default_rng(seed)
    tables = {}
    for i, n in enumerate(sizes):
        t = pd.DataFrame({"x": rng.normal(100 + 5 * i, 3, n), "g": rng.choice(list("abc" if i < 2 else "ab"), n)})
        t["e"], t["k"] = rng.uniform(1, 3, n), 1.0 if i == 0 else rng.normal(size=n)
        t["y"] = rng.poisson(np.exp(0.02 * t["x"] - 1 + 0.3 * i) * t["e"]).astype(float)
        tables[f"s{i}"] = t
    tables["s1"].loc[[2, 7], "x"] = np.nan
    return tables


def pooled(tables):
    return pd.concat(tables.values()).dropna().reset_index(drop=True)


class TestDesign:
    def test_moments_are_those_of_the_pooled_rows(self):
        tables = small()
        design = glm("y ~ x * g + center(e) + scale(log(e)) + k", "gaussian", tables).design
        rows = pooled(tables)
        x, g, e = rows["x"], rows["g"], rows["e"]
        columns = {
            "x": x, "g[T.b]": g == "b", "g[T.c]": g == "c", "center(e)": e - e.mean(),
            "scale(log(e))": (np.log(e) - np.log(e).mean()) / np.log(e).std(), "k": rows["k"],
            "x:g[T.b]": x * (g == "b"), "x:g[T.c]": x * (g == "c"),
        }  # fmt: skip
        assert sorted(design.columns) == sorted(columns)
        for name, mean, sd in zip(design.columns, design.centre, design.scale, strict=True):
            wanted = np.asarray(columns[name], float)
            assert mean == pytest.approx(wanted.mean(), abs=1e-9)
            assert sd == pytest.approx(wanted.std(ddof=1), rel=1e-9)
        assert design.outcome == pytest.approx((rows["y"].mean(), rows["y"].std(ddof=1)))
        assert sum(design.rows) == len(rows)

    def test_rows_are_the_scaled_pooled_columns(self):
        tables = small()
        made = glm("y ~ x + g", "gaussian", tables, site_effects="separate")
        rows = pooled(tables)
        x = np.concatenate([shard["x"] for shard in made.shards.values()])
        wanted = np.stack([rows["x"], rows["g"] == "b", rows["g"] == "c"], 1).astype(float)
        np.testing.assert_allclose(x, (wanted - wanted.mean(0)) / wanted.std(0, ddof=1), atol=1e-5)
        assert [int(shard["site"][0]) for shard in made.shards.values()] == [0, 1, 2]

    def test_what_was_dropped_absent_and_constant_is_said(self):
        sites = glm("y ~ x + g + k", "poisson", small()).sites
        assert [site["rows_read"] - site["rows"] for site in sites] == [0, 2, 0]
        assert sites[1]["missing"] == {"x": 2}
        assert sites[2]["absent_levels"] == {"g": ["c"]}
        assert sites[0]["constant_columns"] == ["k"]
        words = [agree.words(site) for site in sites]
        assert words[1] == "s1: 23 rows; 2 dropped for missing values (x 2)"
        assert "no g = c" in words[2] and "constant here: k" in words[0]

    def test_sites_that_cannot_be_used_are_left_out_only_if_asked(self):
        tables = small()
        tables["s2"] = tables["s2"].drop(columns="x")
        with pytest.raises(InputError, match="s2 has no column 'x'; its columns are g, e, k, y"):
            glm("y ~ x", "poisson", tables)
        made = glm("y ~ x", "poisson", tables, skip=True)
        assert made.design.sites == ("s0", "s1")
        assert "left out" in agree.words(made.sites[2])

    @pytest.mark.parametrize("effects", ["none", "hierarchical"])
    def test_a_site_rebuilds_the_same_model_from_json(self, effects):
        made = glm("y ~ x + g + offset(log(e))", "negative_binomial", small(), site_effects=effects)
        sent = json.loads(json.dumps(made.design.to_json()))
        builder = build(Design.from_json(sent))
        assert Design.from_json(sent) == made.design
        table = as_table(small()["s1"], "s1")
        rows = builder.design.make_rows(agree.complete(table, builder.design.parsed.variables, "s1"), "s1", 1)
        assert all(np.array_equal(rows[key], made.shards["s1"][key]) for key in made.shards["s1"])
        model, params = builder.model(), jax.tree.map(lambda leaf: leaf + 0.3, made.model.start())
        assert float(model.log_prior(params)) == float(made.model.log_prior(params))

    def test_summaries_hold_sums_only_and_nothing_is_said_of_a_few_rows(self):
        design, table = Design("y ~ x + g", "poisson"), as_table(small()["s0"], "s0")
        summary = agree.describe(table, design, "s0", least=2)
        counts = table["g"].value_counts()
        assert dict(summary["levels"]["g"]) == counts.to_dict()
        assert len(json.dumps(summary)) < 400
        for least, sentence, told in [
            (50, "30 complete rows are fewer than the 50", "fewer than 50 complete rows"),
            (int(counts.min()) + 1, f"fewer than {counts.min() + 1} rows, '{counts.idxmin()}'; merge", "has a level"),
        ]:
            with pytest.raises(InputError, match=sentence) as caught:
                agree.describe(table, design, "s0", least=least)
            assert told in caught.value.told and repr(counts.idxmin()) not in caught.value.told

    def test_a_column_or_an_outcome_that_a_few_rows_have_is_refused(self):
        tables = {name: t.assign(ill=(t.index < 2) * 1.0, few=t["x"] * (t.index > 27)) for name, t in small().items()}
        for formula, family, sentence in [
            ("y ~ few", "poisson", "s0: column few has one value in all but fewer than 3 rows"),
            ("ill ~ x", "bernoulli", "s0: fewer than 3 rows have one of the two outcomes"),
        ]:
            with pytest.raises(InputError, match=sentence):
                glm(formula, family, tables, least=3)
            glm(formula, family, tables, least=2)

    def test_kinds_must_agree(self):
        tables = small()
        tables["s1"]["x"] = "much"
        with pytest.raises(InputError, match="column x is numbers at s0 but text at s1"):
            glm("y ~ x", "poisson", tables)

    def test_a_text_outcome_counts_its_second_level(self):
        tables = {name: t.assign(ill=np.where(t["y"] > 7, "yes", "no")) for name, t in small().items()}
        made = glm("ill ~ x", "bernoulli", tables)
        assert made.design.success == ["no", "yes"]
        rows = pooled(tables)
        y = np.concatenate([shard["y"] for shard in made.shards.values()])
        np.testing.assert_array_equal(y, rows["y"] > 7)

    def test_splines_with_knots_are_the_same_at_all_sites(self):
        formula = "y ~ bs(x, knots=[100, 105], lower_bound=80, upper_bound=130) + poly(scale(x), 2, raw=True)"
        design = glm(formula, "gaussian", small()).design
        at = pd.DataFrame({"x": [90.0, 101.0, 120.0], "y": 0.0})
        whole, part = design.matrix(at, "all"), design.matrix(at.iloc[1:2], "one")
        np.testing.assert_allclose(part.to_numpy()[0], whole.to_numpy()[1])


@pytest.mark.parametrize(
    ("formula", "sentence"),
    [
        ("y ~ x +* g", "cannot be read: Operator"), ("y x", 'must read "outcome'), ("y ~ x | g", "one set"),
        ("y ~ bs(x, df=4)", "would take its knots from the rows of each site"), ("y ~ poly(x, 2)", "give raw=True"),
        ("y ~ cr(x, df=3)", "need quantiles"), ("y ~ lag(x)", "no order"), ("y ~ open(x)", "'open' is not known"),
        ("y ~ np.log(x)", "is not known"), ("y ~ {log(x).real}", "cannot be used"), ("y ~ x[0]", "cannot be used"),
        ("y ~ scale(x, center=False)", "no options"), ("y ~ center(C(x))", "no options"), ("a + b ~ x", "one outcome"),
        ("y ~ I((lambda: x)())", "lambda"), ("y ~ y", "among its predictors"), ("y ~ offset(x):g", "stands alone"),
        ("y ~ C(log(x))", "C takes the name"),
    ],
)  # fmt: skip
def test_formulas_that_cannot_be_used(formula, sentence):
    with pytest.raises(InputError) as caught:
        parse(formula)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 400


class TestModel:
    eta, y = np.array([-1.2, 0.3, 2.0]), np.array([0.0, 1.0, 4.0])

    @pytest.mark.parametrize(
        ("family", "wanted"),
        [
            ("gaussian", lambda y, eta: stats.norm(eta, 0.7).logpdf(y) + 0.5 * np.log(2 * np.pi)),
            ("poisson", lambda y, eta: stats.poisson(np.exp(eta)).logpmf(y) + gammaln(y + 1)),
            (
                "negative_binomial",
                lambda y, eta: stats.nbinom(0.7, 0.7 / (0.7 + np.exp(eta))).logpmf(y) + gammaln(y + 1),
            ),
            (
                "binomial",
                lambda y, eta: stats.binom(5, 1 / (1 + np.exp(-eta))).logpmf(y) - np.log([1.0, 5.0, 5.0]),
            ),
        ],
    )
    def test_families_are_scipys(self, family, wanted):
        row = {"y": jnp.asarray(self.y), "trials": jnp.full(3, 5.0)}
        ours = families.get(family).log_likelihood(row, jnp.asarray(self.eta), jnp.log(jnp.full(3, 0.7)))
        np.testing.assert_allclose(ours, wanted(self.y, self.eta), rtol=1e-8)

    @pytest.mark.parametrize("family", ["gaussian", "bernoulli", "negative_binomial"])
    def test_simulated_outcomes_have_the_familys_mean(self, family):
        n, f = 20_000, families.get(family)
        row = {"trials": jnp.full(n, 6.0)}
        y = np.asarray(f.simulate(jax.random.key(0), row, jnp.full(n, 0.4), jnp.log(jnp.full(n, 1.5))))
        mean = float(f.mean(row, jnp.asarray(0.4))) * (6 if family == "binomial" else 1)
        assert abs(y.mean() - mean) < stats.norm.isf(FALSE_ALARMS / 2) * y.std() / np.sqrt(n)
        if family == "negative_binomial":  # Var = μ + μ²/φ; the sample variance's error is about 5 % at 4 sds
            assert y.var() == pytest.approx(mean + mean**2 / 1.5, rel=0.1)

    def test_priors_are_scipys_up_to_a_constant(self):
        x = jnp.array([0.3, -1.0])
        priors = [parse_prior("normal(1, 2)", False, "a"), parse_prior("student_t(4, 0, 3)", False, "b")]
        density = lambda x: stats.norm(1, 2).logpdf(x[0]) + stats.t(4, 0, 3).logpdf(x[1])  # noqa: E731
        assert log_real(priors, x) - log_real(priors, 2 * x) == pytest.approx(density(x) - density(2 * x))
        pairs = {"exponential(2)": stats.expon(scale=0.5), "half_normal(3)": stats.halfnorm(scale=3)}
        for text, law in pairs.items():
            prior = parse_prior(text, True, "s")
            ours = log_positive(prior, jnp.log(jnp.array([0.5, 2.0])))
            theirs = law.logpdf([0.5, 2.0]) + np.log([0.5, 2.0])
            assert ours[1] - ours[0] == pytest.approx(theirs[1] - theirs[0])
            unit = prior.in_units(0.0, 4.0)  # of x/4
            again = log_positive(unit, jnp.log(jnp.array([0.5, 2.0]) / 4))
            assert again[1] - again[0] == pytest.approx(ours[1] - ours[0])
        assert Prior("normal", (3.0, 2.0)).in_units(1.0, 4.0) == Prior("normal", (0.5, 0.5))

    @pytest.mark.parametrize(
        ("priors", "sentence"),
        [
            ({"x": "normal(0)"}, "must be one of normal"), ({"z": "normal(0, 1)"}, "there is no parameter 'z'"),
            ({"tau": "normal(0, 1)"}, "must be one of half_normal"), ({"x": "normal(0, -1)"}, "must be positive"),
            ({"Intercept": "student_t(3, 0, 1)"}, "takes a normal prior"), ({"x": "normal(nan, 1)"}, "with numbers"),
        ],
    )  # fmt: skip
    def test_priors_that_cannot_be_used(self, priors, sentence):
        with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
            choose_priors(replace(glm("y ~ x", "poisson", small()).design, site_effects="hierarchical"), priors)

    def test_default_priors_follow_the_data(self):
        rows = pooled(small())
        design = replace(glm("y ~ x", "gaussian", small()).design, site_effects="hierarchical")
        priors = choose_priors(design, {})
        s_y, s_x = rows["y"].std(), rows["x"].std()
        wanted = {
            "Intercept": ("normal", (rows["y"].mean(), 2.5 * s_y)), "x": ("normal", (0.0, 2.5 * s_y / s_x)),
            "sigma": ("exponential", (1 / s_y,)), "tau": ("half_normal", (s_y,)),
        }  # fmt: skip
        for name, (kind, values) in wanted.items():
            found = parse_prior(priors[name], name in ("sigma", "tau"), name)
            assert found.name == kind
            assert found.arguments == pytest.approx(values)
        settable = glm("y ~ x", "gaussian", small(), priors={"coefficients": "normal(0, 7)"}).design.priors
        assert settable["x"] == "normal(0.0, 7.0)"

    @pytest.mark.parametrize("family", ["gaussian", "poisson"])
    def test_the_hierarchys_coordinates_keep_the_posterior(self, family):
        """The density of (ξ, t) over that of (w, log τ) with the map's Jacobian is constant, up to the spline."""
        made = glm("y ~ x + g", family, small(), site_effects="hierarchical", priors={"tau": "half_t(3, 0.7)"})
        builder = build(made.design)
        transport, S = builder.transport(), builder.intercepts
        m, s = builder.intercept.arguments
        rows = {k: jnp.concatenate([shard[k] for shard in made.shards.values()]) for k in made.shards["s0"]}
        knots = np.linspace(-4.9, 4.9, 4001)
        slope = np.gradient(transport.log_tau(knots), knots)

        def by_hand(xi, t):
            w = np.asarray(transport.to_w(jnp.asarray(xi), jnp.asarray(t))) + transport.quadratic.w0
            log_tau = float(transport.log_tau(np.array(t)))
            law = stats.multivariate_normal(np.full(S, m), np.exp(2 * log_tau) * np.eye(S) + s**2)
            jacobian = np.linalg.slogdet(jax.jacobian(lambda z: transport.to_w(z, jnp.asarray(t)))(jnp.asarray(xi)))[1]
            likelihood = jax.vmap(builder.log_likelihood, (None, 0))(jnp.asarray(w), rows).sum()
            rest = builder.log_prior(jnp.asarray(w), sites=False) + log_positive(builder.tau, jnp.asarray(log_tau))
            return float(likelihood + rest) + law.logpdf(w[:S]) + jacobian + np.log(np.interp(t, knots, slope))

        def ours(xi, t):
            p = {"xi": jnp.asarray(xi), "t": jnp.asarray(t)}
            return float(made.model.log_prior(p) + jax.vmap(made.model.log_likelihood, (None, 0))(p, rows).sum())

        rng = np.random.default_rng(1)
        points = [(rng.normal(size=builder.size), float(t)) for t in (*rng.normal(size=8), -2.5, 2.5)]
        gaps = [ours(*point) - by_hand(*point) for point in points]
        assert np.ptp(gaps) < 5e-3  # in log density


def test_wrong_choices():
    for options, sentence in [
        (("y ~ x", "normal", small()), "family must be one of gaussian"),
        (("y ~ x", "binomial", small()), "family binomial needs trials"),
        (("y ~ x", "gaussian", {}), "tables must be a dict"),
        (("y ~ x", "gaussian", {"a": 3}), "a table is a path, a DataFrame or a dict"),
        (("y ~ x", "bernoulli", small()), "but family bernoulli needs 0 or 1"),
    ]:
        with pytest.raises(InputError, match=sentence):
            glm(*options)
    with pytest.raises(InputError, match="two sites at least"):
        glm("y ~ x", "poisson", {"a": small()["s0"]}, site_effects="hierarchical")
    with pytest.raises(InputError, match="take the 0 or -1 out"):
        glm("y ~ 0 + x", "poisson", small(), site_effects="separate")


def test_a_result_comes_back_named_ordered_and_in_units(tmp_path):
    """Ordinary least squares is the posterior's mean where priors are wide and rows many."""
    rng = np.random.default_rng(0)
    x = rng.normal(50, 10, 400)
    t = pd.DataFrame({"x": x, "y": 3 + 0.5 * x + rng.normal(0, 2, 400)})
    made = glm("y ~ x", "gaussian", {"a": t[:150], "b": t[150:]}).sample(progress=False)
    slope, intercept = np.polyfit(t["x"], t["y"], 1)
    assert list(made.draws) == ["Intercept", "x", "sigma"]
    errors = diagnostics.mcse_mean(made.flat_draws()[1].astype(float))
    wide = stats.norm.isf(FALSE_ALARMS / 6) * errors + 0.02 * made.flat_draws()[1].std((0, 1))
    found = made.flat_draws()[1].mean((0, 1))
    assert (np.abs(found[:2] - (intercept, slope)) < wide[:2]).all()
    made.save(tmp_path / "r.npz")
    again = Result.load(tmp_path / "r.npz")
    assert again.summary().names == made.summary().names == ("Intercept", "x", "sigma")
    assert again.settings["glm"]["sites"][0]["rows"] == 150


def test_the_references_have_converged():
    for name in CASES:
        assert doubts(json.loads((FOLDER / f"{name}.json").read_text())) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_command_line_agrees_with_nuts_on_the_pooled_rows(name, tmp_path):
    """Each mean within 0.1 sd and each sd within 5 %, 3 Monte Carlo errors forgiven; no tuning options.

    Two minutes of computing on two cores is the limit; the test counts the child's time, whatever else runs.
    """
    try:
        case = CASES[name]()
    except InputError as error:
        pytest.skip(str(error))
    reference = json.loads((FOLDER / f"{name}.json").read_text())["parameters"]
    for site, table in case.tables.items():
        table.to_csv(tmp_path / f"{site}.csv", index=False)
    files = [f"{site}.csv" for site in case.tables]
    command = [sys.executable, "-m", "fsgld", "glm", case.formula, *files, "--family", case.family]
    before = os.times()
    done = subprocess.run(
        [*command, "--site-effects", "hierarchical", "--out", "r.npz"], cwd=tmp_path, capture_output=True, text=True
    )
    after = os.times()
    assert sum(after[2:4]) - sum(before[2:4]) < 240
    assert done.returncode == 0, done.stderr
    assert "wrote r.npz" in done.stdout and "The chains agree" in done.stdout
    assert not (tmp_path / "r.npz.checkpoint").exists()
    result = Result.load(tmp_path / "r.npz")
    names, draws = result.flat_draws()
    draws = draws.astype(float)
    assert set(names) == set(reference)
    mean, sd, mcse_mean, mcse_sd = (
        np.array([reference[parameter][key] for parameter in names]) for key in ("mean", "sd", "mcse_mean", "mcse_sd")
    )
    error, ratio = np.abs(draws.mean((0, 1)) - mean) / sd, draws.std((0, 1), ddof=1) / sd
    measured = "\n".join(f"{n}: {e:.3f} {r:.3f}" for n, e, r in zip(names, error, ratio, strict=True))
    assert (error < 0.1 + 3 * np.hypot(diagnostics.mcse_mean(draws), mcse_mean) / sd).all(), measured
    assert (np.abs(ratio - 1) < 0.05 + 3 * np.hypot(diagnostics.mcse_sd(draws), mcse_sd) / sd).all(), measured
    evidence = result.settings["glm"]
    assert set(evidence["alone"]) == set(case.tables)
    assert sum(evidence["check"]["observed"]) == len(case.outcome)
    pulls = np.array([list(pull.values()) for pull in evidence["pull"].values()])
    assert np.abs(pulls.sum(0)).max() < 1  # what is left is the prior's pull
