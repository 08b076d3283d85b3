"""The playground in a real Chromium takes a picture that is dropped on it, shows it and sends it."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from tests.server.browser.serving import Served, serve
from tests.server.browser.test_dashboard import CHROMIUM, QUIET, ask, until
from tests.unit.media_files.files import picture_bytes, two_halves

PNG = picture_bytes(two_halves(64, 64), "PNG")
DROPPED = """(encoded) => {
  const bytes = Uint8Array.from(atob(encoded), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "halves.png", { type: "image/png" }));
  return transfer;
}"""

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="CHROMIUM IS MISSING: run `make ci-setup` as root"),
]


@pytest.fixture(scope="module")
def seeing() -> Iterator[Served]:
    with serve("--backend", "simulated", "--mmproj", "eyes") as server:
        yield server


@pytest.fixture(scope="module")
def blind() -> Iterator[Served]:
    with serve("--backend", "simulated") as server:
        yield server


@pytest.fixture
def opened():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        complaints: list[str] = []

        def open_page(served: Served):
            view = browser.new_page()
            view.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
            view.on("pageerror", lambda error: complaints.append(str(error)))
            view.goto(served.url, wait_until="load")
            view.wait_for_selector('#health[data-state="ready"]', timeout=60_000)
            return view

        yield open_page
        browser.close()
        assert complaints == []


def drop(page, data: bytes = PNG) -> None:
    transfer = page.evaluate_handle(DROPPED, base64.b64encode(data).decode())
    page.dispatch_event("#chat", "drop", {"dataTransfer": transfer})


def prompt_tokens(page, answers: int) -> int:
    feet = "[...document.querySelectorAll('.message.assistant footer')].map(foot => foot.textContent)"
    until(page, f"{feet}.filter(Boolean).length === {answers}")
    return int(page.evaluate(feet)[-1].split("prompt ")[1].split(",")[0])


def test_a_dropped_picture_is_shown_and_sent(seeing, opened):
    page = opened(seeing)
    ask(page, "What is this?", tokens=4, temperature=0)
    bare = prompt_tokens(page, 1)
    page.click("#clear")
    drop(page)
    until(page, "document.querySelectorAll('#pictures img').length === 1")
    ask(page, "What is this?", tokens=4, temperature=0)
    assert prompt_tokens(page, 1) == bare + 6
    until(page, "document.querySelector('.message.user img').naturalWidth === 64")
    assert page.locator("#pictures img").count() == 0


def test_the_encoder_has_a_lane_of_its_own(seeing, opened):
    page = opened(seeing)
    until(page, "!document.getElementById('encoder').hidden")
    before = int(page.evaluate("document.getElementById('encoder').dataset.encoded"))
    coloured = """(() => {
      const canvas = document.getElementById("encoder-canvas");
      if (!canvas.width) return false;
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return pixels.some((value) => value > 0);
    })()"""
    assert not page.evaluate(coloured)
    drop(page, picture_bytes(two_halves(96, 64), "PNG"))
    until(page, "document.querySelectorAll('#pictures img').length === 1")
    ask(page, "And this?", tokens=4, temperature=0)
    until(page, f"Number(document.getElementById('encoder').dataset.encoded) > {before}")
    until(page, "document.getElementById('encoder-detail').textContent.startsWith('6 rows in ')")
    until(page, coloured)


def test_a_chosen_picture_can_be_removed(seeing, opened):
    page = opened(seeing)
    page.set_input_files("#picture-file", {"name": "a.png", "mimeType": "image/png", "buffer": PNG})
    until(page, "document.querySelectorAll('#pictures img').length === 1")
    page.click("#pictures button")
    until(page, "document.querySelectorAll('#pictures img').length === 0")


def test_a_model_without_eyes_says_so(blind, opened):
    page = opened(blind)
    until(page, "document.getElementById('model').textContent.includes('simulated')")
    assert not page.locator("#add-picture").is_visible()
    assert not page.locator("#encoder").is_visible()
    drop(page)
    until(page, "document.getElementById('picture-note').textContent.includes('takes no pictures')")
