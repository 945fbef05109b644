"""Data sets: the original formats in small, the converted files, and what is said when something is wrong."""

import gzip
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow
import pytest
import xlwt

from fsgld import data
from fsgld.data import cache, formats
from fsgld.data.catalogue import CATALOGUE, SUSY
from fsgld.errors import InputError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FSGLD_CACHE", str(tmp_path / "cache"))


def needs(name):
    """Load a data set, or skip the test and say what to do."""
    if data.where(name) is None:
        pytest.skip(f"no {name}: set FSGLD_DATA to the folder of the data sets, or run: fsgld data get {name}")
    return data.load(name)


def compress(content, most=16):
    """Pack as `compress` does: codes grow from 9 to 16 bits, each width in groups of eight codes."""
    table, width, free = {bytes([i]): i for i in range(256)}, 9, 257
    out, bits, held, count, word = bytearray(b"\x1f\x9d" + bytes([0x80 | most])), 0, 0, 0, b""

    def emit(code):
        nonlocal bits, held, count
        bits |= code << held
        held, count = held + width, count + 1
        while held >= 8:
            out.append(bits & 255)
            bits, held = bits >> 8, held - 8

    def align():
        """Fill up the group of eight codes before the width changes."""
        nonlocal bits, held, count
        while count % 8:
            emit(0)
        count = 0

    for i in content:
        longer = word + bytes([i])
        if longer in table:
            word = longer
            continue
        emit(table[word])
        if free < 1 << most:
            table[longer] = free
            if free > (1 << width) - 1 and width < most:
                align()
                width += 1
            free += 1
        word = bytes([i])
    emit(table[word])
    if held:
        out.append(bits & 255)
    return bytes(out)


def write_xls(file, table):
    book = xlwt.Workbook()
    sheet = book.add_sheet("Sheet1")
    for j, column in enumerate(table.T):
        sheet.write(0, j, f"Component {j} (kg in a m^3 mixture)")
        for i, value in enumerate(column):
            sheet.write(i + 1, j, float(value))
    book.save(str(file))


@pytest.mark.parametrize("name", data.NAMES)
def test_the_converted_files_load(name):
    """Shapes, ranges and class counts are checked by `load` itself."""
    columns = needs(name)
    assert all(len(x) == len(next(iter(columns.values()))) for x in columns.values())
    assert all(np.isfinite(x).all() for x in columns.values() if x.dtype.kind in "iuf" and name != "heart_disease")
    first = data.load(name, rows=3)
    assert list(first) == list(columns)
    assert all(len(x) == 3 for x in first.values())


def test_the_xls_of_concrete(tmp_path, monkeypatch):
    """Written as UCI has it, it gives the same columns as the converted file."""
    columns = needs("concrete")
    (tmp_path / "concrete").mkdir()
    write_xls(tmp_path / "concrete" / "Concrete_Data.xls", np.stack(list(columns.values()), axis=1))
    monkeypatch.setenv("FSGLD_DATA", str(tmp_path))
    again = data.load("concrete")
    assert list(again) == list(columns)
    assert all(np.array_equal(again[key], columns[key]) for key in columns)


def test_isolets_packed_text(tmp_path):
    files = [tmp_path / "isolet1+2+3+4.data.Z", tmp_path / "isolet5.data.Z"]
    files[0].write_bytes(compress(b"-0.4394, -0.0930, 0.1718, 1.\n-0.4348, -0.1198, 0.2474, 26.\n"))
    files[1].write_bytes(compress(b"0.0986, 1.0000, -1.0000, 13.\n"))
    columns = formats.isolet(files, None)
    assert columns["X"].dtype == np.float32
    expected = [[-0.4394, -0.0930, 0.1718], [-0.4348, -0.1198, 0.2474], [0.0986, 1, -1]]
    np.testing.assert_allclose(columns["X"], expected, rtol=1e-6)
    assert columns["y"].tolist() == [1, 26, 13]


def test_isolet_as_uci_packs_it(tmp_path):
    """The parts come from the order of rows; all 7797 rows, in a .Z with codes of nine to sixteen bits."""
    columns = needs("isolet")
    train = columns["part"] < 5
    for file, rows in (("isolet1+2+3+4.data", train), ("isolet5.data", ~train)):
        table = np.column_stack([columns["X"][rows][:, :8], columns["y"][rows]])
        np.savetxt(tmp_path / file, table, fmt=["%.4f"] * 8 + ["%d."], delimiter=", ")
        (tmp_path / (file + ".Z")).write_bytes(compress((tmp_path / file).read_bytes()))
    again = formats.isolet([tmp_path / file for file in CATALOGUE["isolet"].files], None)
    np.testing.assert_allclose(again["X"], columns["X"][:, :8], atol=1e-6)
    assert np.array_equal(again["part"], columns["part"])
    assert np.array_equal(again["y"], columns["y"])


def susy_text(rows):
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.integers(0, 2, rows), rng.normal(size=(rows, 18)).astype(np.float32)])
    return table, "\n".join(",".join(f"{x:.18e}" for x in row) for row in table) + "\n"


def test_susy_in_blocks(tmp_path, monkeypatch):
    table, text = susy_text(2000)
    file = tmp_path / "SUSY.csv.gz"
    file.write_bytes(gzip.compress(text.encode(), 1))
    monkeypatch.setattr(formats, "BLOCK", 50_000)
    columns = CATALOGUE["susy"].read([file], None)
    assert columns["label"].dtype == np.uint8
    assert columns["R"].dtype == np.float32
    assert np.array_equal(np.stack(list(columns.values()), axis=1), table.astype(np.float32))
    some = CATALOGUE["susy"].read([file], 777)
    assert np.array_equal(np.stack(list(some.values()), axis=1), table[:777].astype(np.float32))


def test_susy_needs_little_memory_beyond_its_columns(tmp_path, monkeypatch):
    """50 MB of text in 200 blocks; Arrow reads up to 32 of them ahead, if it finds the time, not all."""
    monkeypatch.setattr(formats, "BLOCK", 1 << 18)
    text = susy_text(1000)[1]
    file = tmp_path / "SUSY.csv.gz"
    with gzip.open(file, "wt", compresslevel=1) as packed:
        for _ in range(110):
            packed.write(text)
    pool = pyarrow.default_memory_pool()
    before = pool.bytes_allocated()
    rows = most = 0
    for block in formats._blocks(file, SUSY):
        rows += block.num_rows
        most = max(most, pool.bytes_allocated() - before)
    assert rows == 110_000
    assert most < 50 * formats.BLOCK


def test_covertypes_text(tmp_path):
    table = np.random.default_rng(1).integers(-100, 7000, (50, 55))
    file = tmp_path / "covtype.data.gz"
    file.write_bytes(gzip.compress("\n".join(",".join(map(str, row)) for row in table).encode()))
    columns = CATALOGUE["covertype"].read([file], None)
    assert columns["Cover_Type"].dtype == np.int16
    assert np.array_equal(np.stack(list(columns.values()), axis=1), table)


def test_airfoil_and_superconductivity_as_text(tmp_path):
    (tmp_path / "airfoil_self_noise.dat").write_text("800\t0\t0.3048\t71.3\t0.00266337\t126.201\n")
    columns = CATALOGUE["airfoil"].read([tmp_path / "airfoil_self_noise.dat"], None)
    assert columns["scaled_sound_pressure_level"] == 126.201
    (tmp_path / "train.csv").write_text('number_of_elements,"critical_temp"\n4,29\n5,26.1\n')
    columns = CATALOGUE["superconductivity"].read([tmp_path / "train.csv"], None)
    assert columns["critical_temp"].tolist() == [29, 26.1]


def test_heart_disease_by_site(tmp_path):
    files = [tmp_path / file for file in CATALOGUE["heart_disease"].files]
    for i, file in enumerate(files):
        file.write_text(f"{63 + i}.0,1.0,1.0,145,233.0,1.0,2.0,150,0.0,2.3,3.0,?,6.0,0\n")
    columns = CATALOGUE["heart_disease"].read(files, None)
    assert columns["site"].tolist() == ["cleveland", "hungarian", "switzerland", "va"]
    assert columns["age"].tolist() == [63, 64, 65, 66]
    assert np.isnan(columns["ca"]).all()


def test_adults_text(tmp_path):
    row = "39, State-gov, 77516, Bachelors, 13, ?, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, ?, <=50K\n"
    (tmp_path / "adult.data").write_text(row + "\n")
    columns = CATALOGUE["adult"].read([tmp_path / "adult.data"], None)
    assert columns["marital_status"].tolist() == ["?"]
    assert columns["capital_gain"].tolist() == [2174]
    assert columns["income"].tolist() == ["<=50K"]


def test_what_is_absent_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("FSGLD_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"fsgld data get susy; or put SUSY\.csv\.gz .* FSGLD_DATA"):
        data.load("susy")
    with pytest.raises(InputError, match="no data set 'iris'; choose one of concrete"):
        data.load("iris")
    with pytest.raises(InputError, match="rows must be a whole number of at least 1; got 0"):
        data.load("susy", rows=0)


@pytest.mark.parametrize("name", data.NAMES)
@pytest.mark.parametrize("content", [b"", b"no\nnumbers\n", b"\x1f\x8b\x08\x00broken"])
def test_what_is_not_the_data_set_is_refused(tmp_path, monkeypatch, name, content):
    monkeypatch.setenv("FSGLD_DATA", str(tmp_path))
    (tmp_path / name).mkdir()
    for file in CATALOGUE[name].files:
        (tmp_path / name / file).write_bytes(content)
    with pytest.raises(InputError):
        data.load(name)


def test_wrong_numbers_are_refused(tmp_path, monkeypatch):
    columns = needs("airfoil")
    lines = np.stack(list(columns.values()), axis=1)
    monkeypatch.setenv("FSGLD_DATA", str(tmp_path))
    (tmp_path / "airfoil").mkdir()
    np.savetxt(tmp_path / "airfoil" / "airfoil_self_noise.dat", lines[:1000])
    with pytest.raises(InputError, match=r"should be \(1503, 6\), not \(1000, 6\)"):
        data.load("airfoil")
    np.savetxt(tmp_path / "airfoil" / "airfoil_self_noise.dat", lines + 1)
    with pytest.raises(InputError, match=r"should go from 103.38 to 140.987"):
        data.load("airfoil")


def test_a_missing_package_is_named(tmp_path):
    """The library imports without the extra."""
    file = tmp_path / "x.parquet"
    code = f"""
import sys
for name in ("pyarrow", "xlrd", "unlzw3"):
    sys.modules[name] = None
from pathlib import Path
from fsgld.data import formats
for read in (formats.parquet(), formats.xls("a"), formats.isolet, formats.streamed(["a"], [float], 1)):
    try:
        read([Path({str(file)!r})], None)
    except ImportError as error:
        print(error)
"""
    printed = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert len(printed) == 4
    assert all(line.endswith("pip install 'fsgld[data]'") for line in printed)


def small(**changes):
    """The data set airfoil, cut to two rows."""
    return replace(CATALOGUE["airfoil"], shapes=((2, 6),), ranges={}, **changes)


def test_a_zip_that_was_fetched_by_hand(tmp_path):
    """Without network: the .zip goes into the cache by hand, `get` unpacks and checks it."""
    home = cache.folder("airfoil")
    home.mkdir(parents=True)
    with zipfile.ZipFile(home / "airfoil+self+noise.zip", "w") as archive:
        archive.writestr("inner/airfoil_self_noise.dat", "1\t2\t3\t4\t5\t6\n" * 2)
    cache.fill(small(), progress=False)
    assert {file.name for file in home.iterdir()} == {"airfoil_self_noise.dat", "sha256.json"}
    (home / "airfoil_self_noise.dat").write_text("1\t2\t3\t4\t5\t7\n" * 2)
    with pytest.raises(InputError, match=r"has the SHA-256 .* but .* was expected; it was kept as .*\.refused"):
        cache.verify(small())
