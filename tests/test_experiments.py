"""The paper's experiments in quick settings: their claims, with thresholds that can fail, and what is written."""

import csv
import json

import numpy as np
import pytest

from fsgld.experiments import reproduce, variance
from fsgld.experiments.reproduce import markdown, plus_minus, pm


def test_variance_figure_1():
    outcome = variance.run(variance.Settings.quick())
    assert outcome.ratio("DSGLD") == pytest.approx(np.sqrt(121.8 / 45), rel=1e-4)  # 1.645 at any θ
    assert outcome.ratio("FSGLD, exact surrogates") == pytest.approx(np.sqrt(25.8 / 45), rel=1e-4)  # 0.757
    ours = outcome.ratio("our default")
    assert ours[2] < 1e-4  # θ = 1/2 is the mode
    assert ours.max() < 0.757
    for method, ratio in (("DSGLD", 1.645), ("FSGLD, exact surrogates", 0.757)):  # 4 standard errors, kurtosis 3
        assert outcome.measured[method] / outcome.measured["SGLD"] == pytest.approx(ratio, rel=4 / np.sqrt(20_000))


def test_what_is_written(tmp_path):
    folder, lines = reproduce.reproduce("variance", tmp_path, quick=True)
    names = {file.name for file in folder.iterdir()}
    assert names == {"corrected-sd.csv", "settings.json", "table.md", "variance.png", "variance.svg"}
    with (folder / "corrected-sd.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5 * 4
    assert float(rows[0]["sd"]) > 0
    content = json.loads((folder / "settings.json").read_text())
    assert content["settings"]["corrected"]["batch_size"] == 5
    assert (folder / "table.md").read_text().count("\n| ") == 2 + len(lines)
    assert (folder / "variance.png").read_bytes().startswith(b"\x89PNG")


def test_numbers_are_written_with_their_errors():
    assert plus_minus(11.534, 0.0213) == "11.534 ± 0.021"
    assert plus_minus(12345.6, 210.0) == "12,346 ± 210"
    assert plus_minus(2.5e-7, 3e-8) == "(2.50 ± 0.30)·10^-7"
    assert plus_minus(float("nan"), 1.0) == "diverged"
    assert pm([1.0, 2.0, 3.0]) == "2.00 ± 0.58"
    assert pm([1.0, float("nan")]) == "1 of 2 diverged"
    assert "| a | b | c | d | e |" in markdown("title", [reproduce.Line("a", "b", "c", "d", "e")])
