"""The docs: the site builds without a warning, needs no other host, and every code block runs."""

import functools
import http.server
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.main import get_command

from browser import Browser, find_chromium
from fsgld import data
from fsgld.cli import app
from fsgld.experiments import EXPERIMENTS

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
SHELL = ("sh", "bash", "shell", "console", "")
ELSEWHERE = ("coordinator", "site", "run", "reproduce", "data")  # servers, hours, downloads: other tests run these
HOSPITALS = """
import pandas as pd, fsgld.data
table = pd.DataFrame(fsgld.data.load("heart_disease"))
table["disease"] = (table["num"].astype(float) > 0).astype(int)
for site, rows in table.groupby("site"):
    rows.to_csv(f"{site}.csv", index=False)
rows.to_csv("new-patients.csv", index=False)
"""


def blocks(text):
    """Give (language, content) of fenced blocks, and of indented commands as shell."""
    found = [(m.start(), m[1].strip(), m[2]) for m in re.finditer(r"^```([^\n]*)\n(.*?)^```", text, re.S | re.M)]
    outside = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.S | re.M)
    found += [(m.start(), "sh", m[1]) for m in re.finditer(r"^    (fsgld .*)$", outside, re.M)]
    return [(language, content) for _, language, content in sorted(found)]


def commands(content):
    """Give the commands of a shell block: lines joined, prompts and comments taken off."""
    lines = re.sub(r"\\\n\s*", " ", content).splitlines()
    return [shlex.split(line.strip().removeprefix("$ "), comments=True) for line in lines if line.strip()]


def parse(words):
    """Check that a command exists and takes these arguments, without running it."""
    assert words[0] == "fsgld", f"only fsgld commands are run; mark {' '.join(words)} as text"
    command, rest = get_command(app), words[1:]
    while hasattr(command, "commands"):
        assert rest[0] in command.commands, f"there is no command {' '.join(words)}"
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[1], list(rest))
    if words[1] == "reproduce":
        assert words[2] in (*EXPERIMENTS, "all")


def script(text):
    """Turn a page into one program: Python as it is, commands as processes."""
    lines = ["import subprocess as _s, sys as _y"]
    for language, content in blocks(text):
        if language == "python":
            lines.append(content)
        elif language in SHELL:
            for words in commands(content):
                parse(words)
                if words[1] not in ELSEWHERE:
                    lines.append(f"_s.run([_y.executable, '-m', 'fsgld', *{words[1:]!r}], check=True)")
        else:
            assert language == "text", f"a block is python, sh or text; got {language!r}"
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page, tmp_path):
    """In float32 and with warnings as errors; what text blocks say of a table is what was printed."""
    text = (ROOT / "docs" / page).read_text()
    program = script(text)
    if program.count("\n") == 0:
        return
    settings = {name: value for name, value in os.environ.items() if name != "JAX_ENABLE_X64"}
    run = functools.partial(subprocess.run, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=900)
    if "heart_disease" in program or "cleveland.csv" in program:
        if data.where("heart_disease") is None:
            pytest.skip("the heart-disease tables are not here; set FSGLD_DATA")
        assert run([sys.executable, "-c", HOSPITALS]).returncode == 0
    done = run([sys.executable, "-W", "error", "-c", program])
    assert done.returncode == 0, done.stderr[-3000:]
    compare(done.stdout, [content for language, content in blocks(text) if language == "text"])


def compare(printed, said):
    """Check summaries: each parameter's mean within 0.3 sd and its sd within 20 %; other machines have other draws."""
    ours = {line.split()[0]: line.split() for line in printed.splitlines() if line.split()}
    for block in said:
        lines = [line.split() for line in block.strip().splitlines()]
        if lines[0][:2] != ["mean", "sd"]:
            continue
        for name, mean, sd, *_ in lines[1:]:
            assert name in ours, f"{name} was not printed"
            assert float(ours[name][1]) == pytest.approx(float(mean), abs=0.3 * float(sd)), name
            assert float(ours[name][2]) == pytest.approx(float(sd), rel=0.2), name


def test_wrong_docs_would_be_found():
    with pytest.raises(AssertionError, match="no command"):
        script("```sh\nfsgld nonsense\n```")
    with pytest.raises(Exception, match=r"(?i)no such option"):
        script("    fsgld report r.npz --wrong\n")
    with pytest.raises(AssertionError):
        script("```console\n$ fsgld reproduce nothing\n```")
    with pytest.raises(AssertionError, match="python, sh or text"):
        script("```r\n1\n```")
    with pytest.raises(AssertionError, match="x"):
        compare("   mean sd\nx 1.0 0.1", ["  mean  sd\nx 1.5 0.1"])
    assert "_s.run" in script("```sh\nfsgld predict a.npz \\\n  b.csv # comment\n```")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    settings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, env=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_site_builds_without_a_warning_and_has_every_page(site):
    for page in PAGES:
        assert (site / page).with_suffix(".html").is_file()
        assert f'href="{page[:-3]}.html' in (site / "index.html").read_text(), f"{page} is not in the navigation"
    reference = (site / "api.html").read_text()
    for name in ("fsgld.sample.sample", "fsgld.results.Result.summary", "fsgld.glm.glm"):
        assert f'id="{name}"' in reference


def test_the_site_asks_no_other_host(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

    program = find_chromium()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        home, browser = f"http://127.0.0.1:{server.server_port}/", Browser(program)
        try:
            for page in ("index.html", "tutorial.html", "api.html"):
                browser.open(home + page)
                assert [url for url in browser.requests if not url.startswith((home, "data:"))] == []
                assert browser.errors == []
        finally:
            browser.close()
            server.shutdown()
