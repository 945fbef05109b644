"""The demo: Section 5.1 by theory, by brute force and by the library."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

import fsgld
from fsgld.experiments import blobs, blobs_demo, blobs_plot
from fsgld.experiments.blobs_law import client_law, posterior, stationary_variance

FALSE_ALARMS = 1e-5  # of each statistical test below, under the closed-form law


def z(comparisons):
    return norm.isf(FALSE_ALARMS / comparisons / 2)


def shards_of_unit_variance(sizes, seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=(size, 2)) for size in sizes]
    return [rng.uniform(-6, 6, 2) + (x - x.mean(0)) / x.std(0) for x in rows]


KINDS = {
    "DSGLD": {"surrogate": None},
    "FSGLD": {"surrogate": "exact"},
    "FSGLD, printed": {"surrogate": "printed"},
    "FSGLD + control variate": {"surrogate": "exact", "control_variate": True},
}


# the law


@pytest.mark.parametrize("local_steps", [1, 10, 100, 1000])
@pytest.mark.parametrize(("kind", "ratio"), [("FSGLD", 11.58), ("FSGLD + control variate", 1.05)])
def test_fsgld_has_the_known_variance_for_any_number_of_local_updates(local_steps, kind, ratio):
    shards = shards_of_unit_variance([200] * 10)
    law = client_law(shards, 1e-4, 10, **KINDS[kind])
    got = stationary_variance(law, local_steps, thin=100) * 2001
    assert got == pytest.approx([ratio] * 2, abs=0.005)
    V = 0 if "variate" in kind else 2000**2 / 10
    assert got == pytest.approx([(1 + 1e-4 * V / 4) / (1 - 1e-4 * 2001 / 4)] * 2, rel=1e-10)


@pytest.mark.parametrize("local_steps", [1, 10, 100])
def test_dsgld_adds_the_variance_between_clients(local_steps):
    shards = shards_of_unit_variance([200] * 10)
    law = client_law(shards, 1e-4, 10, **KINDS["DSGLD"])
    a = 1 - 1e-4 / 2 * 2001
    within = (1e-4 + 1e-8 / 4 * 2000**2 / 10) / (1 - a**2)
    between = np.var([2000 / 2001 * x.mean(0) for x in shards], axis=0)
    rho = a**local_steps
    want = within + between * (1 - rho) / (1 + rho)
    assert stationary_variance(law, local_steps, thin=100) == pytest.approx(want, rel=1e-10)


def brute_force(shards, f, h, m, local_steps, thin, surrogate, control_variate=False):
    """Run Algorithm 1 in NumPy from its definition; per chain, squares about the grand mean."""
    chains, visits, burn_in, rng = 20_000, 60, 60, np.random.default_rng(1)
    sizes, means = np.array([len(x) for x in shards]), np.array([x.mean(0) for x in shards])
    rows, first = np.concatenate(shards), np.cumsum([0, *sizes[:-1]])
    theta, anchor, draws = np.zeros((chains, 2)), posterior(shards)[0], []
    for t in range(visits * local_steps):
        if t % local_steps == 0:
            s = rng.choice(len(shards), chains, p=f)
            n, scale = sizes[s, None], (sizes / f)[s, None]
        batch = rows[first[s, None] + rng.integers(n, size=(chains, m))]
        estimate = (batch - theta[:, None]).mean(1)
        if control_variate:
            estimate += means[s] - anchor - (batch - anchor).mean(1)
        gradient = -theta + scale * estimate
        if surrogate:
            P = sizes if surrogate == "exact" else np.full(len(sizes), sizes.sum())
            gradient += P @ means - P.sum() * theta - (P / f)[s, None] * (means[s] - theta)
        theta = theta + h / 2 * gradient + rng.normal(0, np.sqrt(h), theta.shape)
        if t + 1 > burn_in and (t + 1) % thin == 0:
            draws.append(theta)
    draws = np.array(draws)
    return ((draws - draws.mean((0, 1))) ** 2).mean(0)


@pytest.mark.parametrize("kind", KINDS)
def test_stationary_variance_equals_brute_force(kind):
    # unequal sizes, unequal probabilities that are not in proportion, draws within a visit
    f, setting, sizes = np.array([0.2, 0.5, 0.3]), {"step_size": 0.01, "batch_size": 2}, (5, 20, 8)
    if kind == "FSGLD, printed":  # unequal clients would have no long-run variance
        f, sizes = np.full(3, 1 / 3), (10, 10, 10)
    rng = np.random.default_rng(0)
    shards = [rng.normal(mean, sd, (size, 2))
              for mean, sd, size in zip((-1, 0, 2), (1, 0.5, 2), sizes, strict=True)]  # fmt: skip
    law = client_law(shards, **setting, **KINDS[kind], probs=f)
    got = brute_force(shards, f, 0.01, 2, local_steps=4, thin=6, **KINDS[kind])
    mcse = got.std(0) / np.sqrt(len(got))
    assert (mcse < 0.01 * got.mean(0)).all()
    want = stationary_variance(law, local_steps=4, thin=6)
    assert (np.abs(got.mean(0) - want) < z(4 * 2) * mcse).all()


# the library


@pytest.mark.slow
def test_quick_run_follows_the_law_of_every_method():
    quick = blobs.Settings.quick()
    outcome = blobs.run(quick)
    *runs, ours = outcome.runs
    (variate,) = blobs.run(replace(quick, methods=(blobs.VARIATE,), local_steps=(1000,))).runs
    assert [(r.method, r.local_steps) for r in runs] == [
        (method, steps) for method in ("DSGLD", "FSGLD") for steps in (1, 1000)
    ]
    assert ours.method == blobs.DEFAULT
    runs += [variate, ours]
    for r in runs:
        assert r.variance_ratio_mcse < 0.04 * r.variance_ratio_theory  # else it says nothing
        error = abs(r.variance_ratio - r.variance_ratio_theory)
        assert error < z(3 * len(runs)) * r.variance_ratio_mcse, r
        # DSGLD's mean is right as well, in the long run; 3: two means and a variance a run
        assert r.mean_error < z(3 * len(runs)) * r.mean_error_mcse, r
    dsgld, without = runs[:2], runs[2:4]
    # more local updates make DSGLD's spread, and so its mean's error, worse; FSGLD's not
    assert dsgld[1].variance_ratio > 10 * dsgld[0].variance_ratio > 10 * 1000
    assert dsgld[1].mean_error_mcse > 5 * dsgld[0].mean_error_mcse
    assert without[1].variance_ratio == pytest.approx(without[0].variance_ratio, rel=0.1)
    assert 1 < variate.variance_ratio < 1.15
    assert any("plateau" in line.paper for line in blobs.compare(outcome, outcome))
    assert set(blobs_plot.draw(outcome, outcome)) == {"blobs", "mse"}


def test_settings_are_the_papers():
    paper = blobs.Settings.paper()
    assert (paper.clients, paper.rows, paper.step_size, paper.batch_size) == (10, 200, 1e-4, 10)
    assert (paper.local_steps, paper.burn_in, paper.thin) == ((1, 10, 100, 1000), 20_000, 100)
    shards = blobs.make_shards(paper)
    assert [len(x) for x in shards] == [200] * 10
    for settings, precision in ((paper, 2000), (blobs.Settings.corrected(), 200)):
        q = blobs.make_surrogates(shards, settings.surrogate)[3]
        assert np.asarray(q.mean) == pytest.approx(shards[3].mean(0), rel=1e-6)
        assert np.asarray(q.precision) == pytest.approx([precision] * 2, rel=1e-6)
    q, exact = blobs.make_surrogates(shards, "exact")[3], fsgld.fit(blobs.MODEL, shards, fsgld.analytic)[3]
    assert np.asarray(q.to("dense").precision) == pytest.approx(np.asarray(exact.precision), rel=1e-6)
    assert np.asarray(q.shift) == pytest.approx(np.asarray(exact.shift), rel=1e-6)


@pytest.mark.slow
def test_surrogates_as_printed_are_worse_than_none():
    """The negative control: N⁻¹ for N_s⁻¹ makes clients push nine times as far as they pull in DSGLD."""
    dsgld, printed = zip(*[iter(blobs.run(blobs.Settings.quick(literal=True)).runs)] * 2, strict=True)
    for one, other in zip(dsgld, printed, strict=True):
        assert other.variance_ratio > 10 * one.variance_ratio
        assert abs(other.variance_ratio - other.variance_ratio_theory) < z(4) * other.variance_ratio_mcse


# table, files, picture


@pytest.fixture
def outcome():
    """Exact draws under every method's name, for tests that do not look at the numbers."""
    settings = blobs.Settings(local_steps=(1, 10, 100), draws=50, seeds=2)
    shards, rng = blobs.make_shards(settings), np.random.default_rng(0)
    mean, variance = posterior(shards)
    runs = [
        blobs._measure(method, steps, rng.normal(mean, variance**0.5, (2, 50, 2)), 0.1, shards, settings)
        for method in blobs.METHODS
        for steps in settings.local_steps
    ]
    return blobs.Outcome(settings, shards, runs)


def test_picture_has_a_zoom_in_every_panel_and_the_exact_posterior(outcome, tmp_path):
    axes = blobs_plot.grid(outcome).axes
    panels = len(outcome.runs) + 1  # and the exact posterior
    assert len(axes) == panels + 1  # and the variances
    assert [len(ax.child_axes) for ax in axes] == [1] * panels + [0]
    blobs_plot.save(outcome, tmp_path / "blobs.png")
    content = (tmp_path / "blobs.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 50_000


def test_zoom_goes_where_no_rows_are():
    corner = [np.array([[-6.0, -6.0]]), np.array([[6.0, 6.0]]), np.array([[-6.0, 6.0]])]
    assert blobs_plot._free_corner(corner) == (0.57, 0.02)


def test_demo_prints_the_table_and_writes_its_files(outcome, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(blobs, "run", lambda settings, announce: outcome)
    blobs_demo.main(["--quick", "--out", str(tmp_path / "new")])
    printed = capsys.readouterr().out
    assert all(word in printed for word in ["FSGLD + control variate", "1.05", "±", "blobs.png"])
    assert max(map(len, printed.splitlines()[:-1])) <= 80
    assert (tmp_path / "new/blobs.png").stat().st_size > 0
    written = json.loads((tmp_path / "new/blobs.json").read_text())
    assert written["settings"]["step_size"] == 1e-4
    assert written["runs"][0]["variance_ratio"] == outcome.runs[0].variance_ratio


def test_without_matplotlib_the_table_comes_and_the_extra_is_named(outcome, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(blobs, "run", lambda settings, announce: outcome)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match=r"pip install 'fsgld\[plots\]'"):
        blobs_demo.main(["--quick", "--out", str(tmp_path)])
    assert "control variate" in capsys.readouterr().out
    assert (tmp_path / "blobs.json").exists()


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(blobs, "run", lambda settings, announce: pytest.fail("worked in vain"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="2"):
        blobs_demo.main(["--out", str(tmp_path / "file")])
    assert "cannot write to the folder" in capsys.readouterr().err
