"""The page in a real Chromium: a chat streams, four requests fill four lanes, the console stays clean."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.browser.serving import Served, serve

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--disable-gpu",
]
WATCH_ANSWERS = """() => {
  window.watched = [];  // the length of the answer after each change; polling from outside misses some
  new MutationObserver(() => {
    const length = document.querySelector(".message.assistant span:nth-of-type(2)")?.textContent.length;
    if (length && length !== window.watched.at(-1)) window.watched.push(length);
  }).observe(document.getElementById("messages"), { childList: true, subtree: true, characterData: true });
}"""
SCREENSHOT = Path(__file__).resolve().parents[3] / "docs" / "images" / "dashboard.png"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="CHROMIUM IS MISSING: run `make ci-setup` as root"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve("--n-seq-max", "4", "--context-window", "1024", "--n-threads", "1") as server:
        yield server


@pytest.fixture
def page(served: Served):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        view = browser.new_page(viewport={"width": 1360, "height": 900})
        complaints: list[str] = []
        view.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        view.on("pageerror", lambda error: complaints.append(str(error)))
        view.goto(served.url, wait_until="load")
        view.wait_for_selector('#health[data-state="ready"]', timeout=60_000)
        yield view
        browser.close()
        assert complaints == []


def ask(page, text: str, *, tokens: int, temperature: float | None = None, button: str = "#send") -> None:
    page.locator("summary").click()
    page.fill("#max-tokens", str(tokens))
    if temperature is not None:
        page.fill("#temperature", str(temperature))
    page.locator("summary").click()
    page.fill("#prompt", text)
    page.click(button)


def until(page, condition: str, timeout_s: float = 60.0) -> None:
    """Polled from outside: the page's policy forbids the way in which a browser would wait by itself."""
    ends_s = time.monotonic() + timeout_s
    while not page.evaluate(condition):
        assert time.monotonic() < ends_s, f"waited in vain for {condition}"
        page.wait_for_timeout(50)


def lanes(state: str) -> str:
    return f"document.querySelectorAll('.lane[data-state={state}]').length"


def test_a_chat_streams(page):
    """Greedy, and a question with a long answer: a sampled answer of five tokens has few pieces to see."""
    page.evaluate(WATCH_ANSWERS)
    ask(page, "Tell me a long story about a lighthouse.", tokens=48, temperature=0)
    answer = page.locator(".message.assistant").last
    until(page, "document.querySelector('.message.assistant footer').textContent")
    pieces = page.evaluate("window.watched.length")
    assert pieces >= 4, f"the text came in {pieces} pieces"
    assert re.search(r"(stop|length) · first token .* tokens", answer.locator("footer").inner_text())
    assert float(page.locator("#figure-gap").inner_text().split()[0]) > 0
    until(page, "document.getElementById('figure-ttft').textContent !== '–'", 10.0)


def test_four_requests_fill_four_lanes(page):
    ask(page, "Tell me a long story about a lighthouse.", tokens=120, button="#send-four")
    until(page, f"{lanes('generating')} === 4")
    streams = page.eval_on_selector_all(".lane", "lanes => lanes.map(lane => lane.dataset.stream)")
    assert len(set(streams)) == 4
    page.wait_for_timeout(2500)
    if os.environ.get("STRETTO_PROVE") or not SCREENSHOT.exists():
        SCREENSHOT.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(SCREENSHOT))
    feet = "[...document.querySelectorAll('.message.assistant footer')]"
    until(page, f"{feet}.slice(-4).every(foot => foot.textContent)", 120.0)
    until(page, f"{lanes('idle')} === 4", 10.0)


def test_stop_ends_the_answer_and_frees_the_slot(page):
    ask(page, "Write an endless poem.", tokens=600)
    until(page, f"{lanes('generating')} === 1")
    page.click("#stop")
    until(page, f"{lanes('idle')} === 4", 10.0)
    assert "stopped" in page.locator(".message.assistant footer").last.inner_text()


DRAW_DRAFTS = """async () => {
  const [{ Timeline }, { drawBatches, drawLanes }] = await Promise.all(
    [import("/dashboard/timeline.js"), import("/dashboard/drawing.js")]);
  const timeline = new Timeline();
  const span = { slot: 0, stream_id: "drafted", decode: true };
  timeline.addTick({ at_s: 1, eval_s: 0.01, spans: [{ ...span, rows: 6, accepted: 2 }], active_slots: 1 });
  const canvas = document.createElement("canvas");
  canvas.style.width = "70px";
  canvas.style.height = "130px";
  document.body.append(canvas);
  drawBatches(canvas, timeline);
  const [pen, ratio, shades] = [canvas.getContext("2d"), devicePixelRatio || 1, []];
  for (let row = 0; row < 6; row++) {
    const pixel = pen.getImageData((70 - 5) * ratio, (130 - row * 7 - 3) * ratio, 1, 1).data;
    shades.push([...pixel].join(","));
  }
  canvas.remove();
  return { shades, tokens: timeline.slots[0].tokens };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accepted_and_rejected_drafts_have_shades_of_their_own(page, scheme):
    """A tick of six rows: its own, two accepted drafts, three rejected ones."""
    page.emulate_media(color_scheme=scheme)
    drawn = page.evaluate(DRAW_DRAFTS)
    own, first, second, *rejected = drawn["shades"]
    assert first == second
    assert len({own, first, *rejected}) == 3
    assert drawn["tokens"] == 3
    assert page.locator(".swatch.accepted").is_visible()


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1360, 900)], ids=["phone", "laptop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_a_laptop_in_light_and_dark(page, width, height, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(200)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, "it scrolls sideways"
    back, text = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    light = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (back, text)]
    assert abs(light[0] - light[1]) > 400, "text and background are hard to tell apart"
