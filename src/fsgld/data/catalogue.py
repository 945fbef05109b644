"""What is known of each data set: official addresses, files, columns, and numbers that a right copy has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fsgld.data import formats
from fsgld.data.formats import Columns, Reader
from fsgld.errors import InputError, first_line

UCI = "https://archive.ics.uci.edu/static/public/"
LEGACY = "https://archive.ics.uci.edu/ml/machine-learning-databases/"


@dataclass(frozen=True)
class Dataset:
    """A data set at UCI."""

    name: str
    title: str
    addresses: tuple[str, ...]  # in order of preference: a .zip that holds the files, or a folder/ with them
    files: tuple[str, ...]  # UCI's own
    read: Reader  # UCI's files
    converted: str  # one file with the same content in a handier format
    read_converted: Reader
    shapes: tuple[tuple[int, int], ...]  # numbers of rows and columns that a right copy may have
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # least and largest value of a column
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # how often a column has a value
    checksums: Mapping[str, str] = field(default_factory=dict)  # how the SHA-256 of a file begins, where known

    def load(self, file: Path, rows: int | None = None) -> Columns:
        """Read a file, or all files if it is one of UCI's; raise an InputError if it is not this data set."""
        original = file.name in self.files
        try:
            if original:
                columns = self.read([file.with_name(name) for name in self.files], rows)
            else:
                columns = self.read_converted([file], rows)
        except ImportError:
            raise
        except Exception as error:
            raise InputError(f"{file} cannot be read ({first_line(error)}); {self._remedy()}") from None
        if rows is None and (fault := self.fault(columns)):
            raise InputError(f"{file} is not the data set {self.name}: {fault}; {self._remedy()}")
        return columns

    def _remedy(self) -> str:
        return f"take a fresh copy, for example with: fsgld data get {self.name}"

    def fault(self, found: Columns) -> str | None:
        """Say what is wrong with columns that were read, or None."""
        shape = (max(map(len, found.values()), default=0), len(found))
        if shape not in self.shapes:
            return f"its rows and columns should be {' or '.join(map(str, self.shapes))}, not {shape}"
        for key, (low, high) in self.ranges.items():
            if not (np.isclose(found[key].min(), low, atol=0.006) and np.isclose(found[key].max(), high, atol=0.006)):
                return f"{key} should go from {low} to {high}, not from {found[key].min()} to {found[key].max()}"
        for key, expected in self.counts.items():
            values, times = np.unique(found[key], return_counts=True)
            counted = {f"{value:g}" if value.dtype.kind in "iuf" else str(value): int(n) for value, n in
                       zip(values, times, strict=True)}  # fmt: skip
            if counted != dict(expected):
                return f"{key} should have the values and counts {dict(expected)}, not {counted}"
        return None


def _letters() -> dict[str, int]:
    return {str(i): {6: 298, 13: 299}.get(i, 300) for i in range(1, 27)}


CONCRETE = ("cement", "blast_furnace_slag", "fly_ash", "water", "superplasticizer", "coarse_aggregate",
            "fine_aggregate", "age", "compressive_strength")  # fmt: skip
AIRFOIL = ("frequency", "angle_of_attack", "chord_length", "free_stream_velocity",
           "suction_side_displacement_thickness", "scaled_sound_pressure_level")  # fmt: skip
SUSY = ("label", "lepton_1_pT", "lepton_1_eta", "lepton_1_phi", "lepton_2_pT", "lepton_2_eta", "lepton_2_phi",
        "missing_energy_magnitude", "missing_energy_phi", "MET_rel", "axial_MET", "M_R", "M_TR_2", "R", "MT2",
        "S_R", "M_Delta_R", "dPhi_r_b", "cos_theta_r1")  # fmt: skip
COVERTYPE = (
    "Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology",
    "Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm",
    "Horizontal_Distance_To_Fire_Points", *(f"Wilderness_Area{i}" for i in range(1, 5)),
    *(f"Soil_Type{i}" for i in range(1, 41)), "Cover_Type",
)  # fmt: skip
HEART = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca",
         "thal", "num")  # fmt: skip
ADULT = ("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
         "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income")  # fmt: skip
ADULT_TEXT = ("workclass", "education", "marital_status", "occupation", "relationship", "race", "sex",
              "native_country", "income")  # fmt: skip
SITES = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}
COVERS = (211840, 283301, 35754, 2747, 9493, 17367, 20510)

_ALL = (
    Dataset(
        "concrete", "Concrete Compressive Strength",
        (UCI + "165/concrete+compressive+strength.zip", LEGACY + "concrete/compressive/"),
        ("Concrete_Data.xls",), formats.xls(CONCRETE), "concrete.csv", formats.numbers(None), ((1030, 9),),
        ranges={"compressive_strength": (2.33, 82.60)}, checksums={"Concrete_Data.xls": "710076c66b9c"},
    ),
    Dataset(
        "airfoil", "Airfoil Self-Noise", (UCI + "291/airfoil+self+noise.zip", LEGACY + "00291/"),
        ("airfoil_self_noise.dat",), formats.numbers(AIRFOIL, None), "airfoil.csv", formats.numbers(None), ((1503, 6),),
        ranges={"scaled_sound_pressure_level": (103.38, 140.987)},
    ),
    Dataset(
        "superconductivity", "Superconductivty Data",
        (UCI + "464/superconductivty+data.zip", LEGACY + "00464/superconduct.zip"),
        ("train.csv",), formats.numbers(None), "superconductivity.parquet", formats.parquet(), ((21263, 82),),
        ranges={"number_of_elements": (1, 9), "critical_temp": (0.00021, 185.0)},
    ),
    Dataset(
        "isolet", "ISOLET", (UCI + "54/isolet.zip", LEGACY + "isolet/"),
        ("isolet1+2+3+4.data.Z", "isolet5.data.Z"), formats.isolet, "isolet.npz", formats.npz, ((7797, 3),),
        ranges={"X": (-1, 1)}, counts={"y": _letters()},
    ),
    Dataset(
        "susy", "SUSY", (UCI + "279/susy.zip", LEGACY + "00279/"), ("SUSY.csv.gz",),
        formats.streamed(SUSY, (np.uint8, *[np.float32] * 18), 5_000_000), "susy_subset.parquet", formats.parquet(),
        ((5_000_000, 19), (20_969, 20)), ranges={"label": (0, 1)},
    ),
    Dataset(
        "covertype", "Covertype", (UCI + "31/covertype.zip",), ("covtype.data.gz",),
        formats.streamed(COVERTYPE, [np.int16] * 55, 581_012), "covtype.parquet", formats.parquet(np.int16),
        ((581_012, 55),), counts={"Cover_Type": {str(i): n for i, n in enumerate(COVERS, 1)}},
    ),
    Dataset(
        "heart_disease", "Heart Disease", (UCI + "45/heart+disease.zip",),
        tuple(f"processed.{site}.data" for site in SITES), formats.mixed(HEART, (), "site"), "heart_disease.csv",
        formats.mixed(None, ("site",)), ((920, 15),),
        counts={"site": SITES, "num": {"0": 411, "1": 265, "2": 109, "3": 107, "4": 28}},
    ),
    Dataset(
        "adult", "Adult (the training part)", (UCI + "2/adult.zip",), ("adult.data",),
        formats.mixed(ADULT, ADULT_TEXT), "adult_train.csv.gz", formats.mixed(None, ADULT_TEXT), ((32_561, 15),),
        counts={"income": {"<=50K": 24_720, ">50K": 7_841}},
    ),
)  # fmt: skip
CATALOGUE = {dataset.name: dataset for dataset in _ALL}
