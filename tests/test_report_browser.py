"""The report in headless Chromium: no error, no request, every plot has drawn something, at both widths and themes."""

import io

import numpy as np
import pytest

pytest.importorskip("arviz")

from matplotlib.image import imread

from browser import Browser, find_chromium
from fsgld.report import figures, render
from test_report import HOSTILE, any_result, glm_result

VIEWS = {
    "wide": (1280, False, ""), "wide, dark": (1280, True, ""), "narrow": (400, False, ""),
    "narrow, dark": (400, True, ""), "paper": (700, True, "print"),
}  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    opened = Browser(find_chromium())
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    hostile = glm_result(columns=["age", *HOSTILE[:3]], sites=["cleveland", "va", HOSTILE[1]])
    texts = {"glm": render(hostile, {"age": (1.0, 1.0)}), "any": render(any_result())}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: (folder / f"{name}.html").as_uri() for name in texts}


def pixels(browser, clip=None):
    return imread(io.BytesIO(browser.screenshot(clip)), format="png")[..., :3]


def inked(image):
    """The share of pixels inside the frame that are in colour: marks, bars and lines of data, not axes or text."""
    colour = image.max(-1) - image.min(-1)
    return float((colour > 0.15).mean())


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["glm", "any"])
def test_a_report_opens_without_errors_or_requests_and_every_plot_has_drawn(browser, pages, name, view):
    width, dark, media = VIEWS[view]
    browser.open(pages[name], width, dark, media)
    assert browser.requests == [pages[name]]
    assert browser.errors == []
    assert browser.run("document.documentElement.scrollWidth") == width, "the page is wider than the window"
    boxes = browser.run(
        "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect())"
        ".map(b => [b.x + scrollX, b.y + scrollY, b.width, b.height])"
    )
    page = pixels(browser)
    assert len(boxes) >= 6
    for x, y, w, h in np.round(boxes).astype(int):
        assert x >= 0 and x + w <= width and w > 150 and h > 30
        assert inked(page[y : y + h, x : x + w]) > 0.003, f"the plot at ({x}, {y}) is empty in {view}"
    brightness = float(np.median(page))
    assert brightness < 0.2 if dark and media != "print" else brightness > 0.9


def test_text_can_be_read(browser, pages):
    """Labels of plots have 8 pixels at least; text has a contrast of 4.5 to 1 (WCAG AA) in both themes."""
    for width, dark in ((1280, False), (400, False), (1280, True)):
        browser.open(pages["glm"], width, dark)
        heights = browser.run(
            "[...document.querySelectorAll('svg')].flatMap(s => [...s.querySelectorAll('text')].map(t =>"
            " parseFloat(getComputedStyle(t).fontSize) * s.getBoundingClientRect().width / s.viewBox.baseVal.width))"
        )
        assert min(heights) > 8, f"labels of {min(heights):.1f} px at {width}"
        for ink in ("--ink", "--muted", "--accent"):
            for ground in ("--paper", "--card"):
                assert contrast(browser, ink, ground) > 4.5, (ink, ground, dark)


def test_an_empty_plot_would_be_found(browser, tmp_path):
    with figures._style():
        empty = figures.picture("empty", ((3.3, 1.2), lambda figure: figure.subplots().set_yticks([0, 1], ["a", "b"])))
    file = tmp_path / "empty.html"
    file.write_text(f"<style>:root {{ --ink: #1d2126; --muted: #666d77 }}</style>{empty}")
    browser.open(file.as_uri())
    assert inked(pixels(browser)) < 0.003


def test_a_request_or_an_error_would_be_found(browser, tmp_path):
    file = tmp_path / "bad.html"
    file.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('no')</script>")
    browser.open(file.as_uri())
    assert any("127.0.0.1" in url for url in browser.requests) and browser.errors


def contrast(browser, ink, ground):
    """Compute WCAG's contrast of two colours of the page."""
    light = []
    for name in (ink, ground):
        text = browser.run(f"getComputedStyle(document.documentElement).getPropertyValue('{name}').trim()").lstrip("#")
        text = "".join(2 * c for c in text) if len(text) == 3 else text
        rgb = np.array([int(text[i : i + 2], 16) for i in (0, 2, 4)]) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        light.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(light) + 0.05) / (min(light) + 0.05)
