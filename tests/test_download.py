"""Downloads from a local server: broken off and resumed, refused, absent; the cache and what it trusts."""

import hashlib
import io
import json
import socket
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fsgld import data
from fsgld.data import cache, download
from fsgld.data.catalogue import CATALOGUE
from fsgld.errors import InputError

ROW = b"1\t2\t3\t4\t5\t6\n"
FILE = "airfoil_self_noise.dat"


class Server:
    """Serves `files` (path: bytes); `breaks` holds the number of bytes after which the next answers end."""

    def __init__(self):
        self.files, self.breaks, self.asked, self.resumes, self.tag = {}, [], [], True, '"v1"'
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request):
        begin = request.headers.get("Range", "bytes=0-")[6:-1]
        self.asked.append((request.path, int(begin)))
        content = self.files.get(request.path.lstrip("/"))
        if content is None:
            return request.send_error(404)
        same = self.resumes and request.headers.get("If-Range") == self.tag
        start = int(begin) if same else 0
        if start >= len(content):
            return request.send_error(416)
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.send_header("Content-Length", str(len(content) - start))
        request.send_header("ETag", self.tag)
        request.end_headers()
        request.wfile.write(content[start:][: self.breaks.pop(0) if self.breaks else None])


@pytest.fixture
def server():
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FSGLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FSGLD_DATA", raising=False)


@pytest.fixture
def airfoil(server, monkeypatch):
    """The data set airfoil, cut to two rows, at the local server: a .zip, then a folder."""
    addresses = (server.address + "airfoil+self+noise.zip", server.address + "folder/")
    small = replace(CATALOGUE["airfoil"], addresses=addresses, shapes=((2, 6),), ranges={})
    monkeypatch.setitem(CATALOGUE, "airfoil", small)
    return small


def zipped(**files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def test_a_download(server, tmp_path, capfd):
    server.files["a.bin"] = bytes(range(256)) * 4000
    download.download(server.address + "a.bin", tmp_path / "deep" / "a.bin")
    assert (tmp_path / "deep" / "a.bin").read_bytes() == server.files["a.bin"]
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["a.bin"]
    out, err = capfd.readouterr()
    assert out == ""
    assert "a.bin" in err


def test_a_broken_download_goes_on_by_itself(server, tmp_path):
    server.files["a.bin"] = bytes(range(256)) * 400
    server.breaks = [1000, 2000]
    download.download(server.address + "a.bin", tmp_path / "a.bin", progress=False)
    assert (tmp_path / "a.bin").read_bytes() == server.files["a.bin"]
    assert [begin for _, begin in server.asked] == [0, 1000, 3000]


def test_a_download_that_was_given_up_goes_on_later(server, tmp_path):
    server.files["a.bin"] = bytes(range(256)) * 400
    server.breaks = [1000, 0, 0]
    with pytest.raises(InputError, match=r"ended after 1,000 of 102,400 bytes.*1,000 bytes are kept, run it again"):
        download.download(server.address + "a.bin", tmp_path / "a.bin", progress=False)
    assert not (tmp_path / "a.bin").exists()
    download.download(server.address + "a.bin", tmp_path / "a.bin", progress=False)
    assert (tmp_path / "a.bin").read_bytes() == server.files["a.bin"]
    assert server.asked[-1][1] == 1000


@pytest.mark.parametrize("change", ["new version", "no ranges", "longer part", "no version known"])
def test_a_part_that_cannot_be_continued_is_fetched_again(server, tmp_path, change):
    server.files["a.bin"] = b"new" * 1000
    (tmp_path / "a.bin.part").write_bytes(b"old" * (2000 if change == "longer part" else 100))
    if change != "no version known":
        (tmp_path / "a.bin.part.version").write_text('"v0"' if change == "new version" else '"v1"')
    server.resumes = change != "no ranges"
    download.download(server.address + "a.bin", tmp_path / "a.bin", progress=False)
    assert (tmp_path / "a.bin").read_bytes() == server.files["a.bin"]


def test_what_is_not_there_is_said_at_once(server, tmp_path):
    with pytest.raises(InputError, match=r"/a\.bin answers 404 \(Not Found\)"):
        download.download(server.address + "a.bin", tmp_path / "a.bin", progress=False)
    assert len(server.asked) == 1


def test_without_network(tmp_path):
    with socket.socket() as unused:  # bound, but nobody listens
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match=r"cannot be downloaded .*refused"):
            download.download(f"http://127.0.0.1:{unused.getsockname()[1]}/a", tmp_path / "a", progress=False)
    with pytest.raises(InputError, match=r"cannot be downloaded .*"):
        download.download("http://no-such-host.invalid/a", tmp_path / "a", progress=False)


def test_get_unpacks_checks_and_remembers(server, airfoil):
    server.files["airfoil+self+noise.zip"] = zipped(**{"x/" + FILE: ROW * 2, "readme": b""})
    home = data.get("airfoil", progress=False)
    assert {file.name for file in home.iterdir()} == {FILE, "sha256.json"}
    assert json.loads((home / "sha256.json").read_text()) == {FILE: hashlib.sha256(ROW * 2).hexdigest()}
    assert data.load("airfoil")["frequency"].tolist() == [1, 1]
    data.get("airfoil", progress=False)
    assert len(server.asked) == 1  # the second time from the cache


def test_a_file_in_the_cache_that_changed_is_refused_and_fetched_again(server, airfoil):
    server.files["airfoil+self+noise.zip"] = zipped(**{FILE: ROW * 2})
    home = data.get("airfoil", progress=False)
    (home / FILE).write_bytes(ROW * 2 + b"\n")
    with pytest.raises(
        InputError, match=r"SHA-256 .* was expected; it was kept as .*\.refused.*fsgld data get airfoil"
    ):
        data.load("airfoil")
    data.get("airfoil", progress=False)
    assert data.load("airfoil")["frequency"].tolist() == [1, 1]


def test_another_version_than_the_first_is_refused(server, airfoil):
    server.files["airfoil+self+noise.zip"] = zipped(**{FILE: ROW * 2})
    home = data.get("airfoil", progress=False)
    (home / FILE).unlink()
    server.files["airfoil+self+noise.zip"] = zipped(**{FILE: ROW + ROW.replace(b"6", b"7")})
    with pytest.raises(InputError, match=r"if UCI has a new version, delete .*sha256\.json first"):
        data.get("airfoil", progress=False)
    assert not (home / FILE).exists()
    (home / "sha256.json").unlink()
    data.get("airfoil", progress=False)
    assert data.load("airfoil")["scaled_sound_pressure_level"].tolist() == [6, 7]


def test_a_known_checksum_that_does_not_match(server, airfoil, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "airfoil", replace(airfoil, checksums={FILE: "0123"}))
    server.files["airfoil+self+noise.zip"] = zipped(**{FILE: ROW * 2})
    with pytest.raises(InputError, match=r"but 0123 was expected; it was kept as .*dat\.refused"):
        data.get("airfoil", progress=False)
    home = cache.folder("airfoil")
    assert {file.name for file in home.iterdir()} == {FILE + ".refused"}


def test_content_that_cannot_be_right(server, airfoil):
    server.files["airfoil+self+noise.zip"] = zipped(**{FILE: ROW * 3})
    with pytest.raises(InputError, match=r"should be \(2, 6\), not \(3, 6\).*kept as"):
        data.get("airfoil", progress=False)
    assert data.where("airfoil") is None


@pytest.mark.parametrize("archive", [b"not a zip", zipped(other=b"")])
def test_an_archive_without_the_file_gives_way_to_the_next_address(server, airfoil, archive):
    server.files |= {"airfoil+self+noise.zip": archive, "folder/" + FILE: ROW * 2}
    home = data.get("airfoil", progress=False)
    assert (home / FILE).read_bytes() == ROW * 2
    assert (home / "airfoil+self+noise.zip.refused").exists()


def test_when_no_address_answers_it_says_what_to_put_where(airfoil):
    home = cache.folder("airfoil")
    with pytest.raises(InputError) as error:
        data.get("airfoil", progress=False)
    assert "answers 404" in str(error.value)
    assert f"fetch {airfoil.addresses[0]} elsewhere, put it into {home} and run: fsgld data get" in str(error.value)


def test_a_cache_that_cannot_be_written(airfoil, server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FSGLD_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"cannot write to the cache .*; set FSGLD_CACHE"):
        data.get("airfoil", progress=False)
