"""Adapters over HTTP: `stretto serve` with a tiny model on llama.cpp, asked by name and by `lora`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from stretto.testing import tiny_models
from stretto.testing.tiny_adapters import gguf_adapter
from tests.server.process import served

NAMES = ("ada", "bob")


@pytest.fixture(scope="module")
def http(tmp_path_factory) -> Iterator[httpx2.Client]:
    folder, model = tmp_path_factory.mktemp("served"), tiny_models.make("dense")
    files = {name: gguf_adapter(model, folder / f"{name}.gguf", seed=at) for at, name in enumerate(NAMES)}
    wrong = gguf_adapter(model, folder / "wrong.gguf", seed=5, rank_b=3)
    config = folder / "stretto.yaml"
    config.write_text(_settings(model, {**files, "wrong": wrong}))
    with (
        served("tiny", "--config", str(config), "--metrics-compat", "vllm") as url,
        httpx2.Client(base_url=url, timeout=60) as client,
    ):
        yield client


def _settings(model: Path, adapters: dict[str, Path], loaded_max: int = 8) -> str:
    lines = "\n".join(f"      {name}: {path}" for name, path in adapters.items())
    return (
        "models:\n  tiny:\n"
        f"    path: {model}\n    context_window: 512\n    n_threads: 1\n"
        f"    adapters_loaded_max: {loaded_max}\n    adapters:\n{lines}\n"
        f"      faint: {{path: {adapters['ada']}, scale: 0.25}}\n"
    )


def said(http: httpx2.Client, model: str = "tiny", **more) -> str:
    body = {"model": model, "prompt": "One two three", "max_tokens": 8, "temperature": 0, **more}
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["text"]


def test_an_adapter_is_asked_for_by_either_name_or_by_lora(http):
    plain, ada, bob = said(http), said(http, "tiny:ada"), said(http, "bob")
    assert len({plain, ada, bob}) == 3
    assert said(http, "ada") == ada == said(http, lora=[{"name": "ada"}])
    assert said(http, lora=[{"name": "ada", "scale": 0}]) == plain
    assert said(http, "faint") == said(http, lora=[{"name": "ada", "scale": 0.25}])
    both = said(http, lora=[{"name": "ada"}, {"name": "bob", "scale": 0.5}])
    assert both == said(http, "tiny:ada", lora=[{"name": "bob", "scale": 0.5}])
    assert both not in (plain, ada, bob)


def test_models_lists_the_adapters(http):
    found = {each["id"]: each["parent"] for each in http.get("/v1/models").json()["data"]}
    assert found["tiny"] is None
    assert {found[f"tiny:{name}"] for name in NAMES} == {"tiny"}
    assert http.get("/v1/models/tiny:ada").json()["id"] == "tiny:ada"


def test_chat_and_messages_take_an_adapter_by_name(http):
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "temperature": 0}
    chats = {
        model: http.post("/v1/chat/completions", json={"model": model, **asked}).json()["choices"][0][
            "message"
        ]["content"]
        for model in ("tiny", "tiny:ada", "bob")
    }
    assert len(set(chats.values())) == 3
    message = http.post("/v1/messages", json={"model": "ada", **asked}).json()
    assert message["content"][0]["text"] == chats["tiny:ada"]


def test_errors_name_what_is_wrong_and_touch_nothing_else(http):
    before = said(http, "ada")
    unknown = http.post("/v1/completions", json={"model": "tiny", "prompt": "x", "lora": [{"name": "eve"}]})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "adapter_not_found")
    wrong = http.post("/v1/completions", json={"model": "tiny:wrong", "prompt": "x"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_adapter")
    assert "ranks 4 and 3" in wrong.json()["error"]["message"]
    assert http.post("/v1/completions", json={"model": "tiny:eve", "prompt": "x"}).status_code == 404
    assert said(http, "ada") == before


def test_a_stream_for_a_wrong_adapter_ends_with_what_is_wrong(http):
    wrong = http.post("/v1/completions", json={"model": "tiny:wrong", "prompt": "x", "stream": True})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_adapter")
    assert "ranks 4 and 3" in wrong.json()["error"]["message"]


def test_more_adapters_than_memory_holds_wait_for_each_other(tmp_path):
    model = tiny_models.make("dense")
    files = {name: gguf_adapter(model, tmp_path / f"{name}.gguf", seed=at) for at, name in enumerate(NAMES)}
    config = tmp_path / "stretto.yaml"
    config.write_text(_settings(model, files, loaded_max=1))
    with (
        served("tiny", "--config", str(config)) as url,
        httpx2.Client(base_url=url, timeout=60) as http,
        ThreadPoolExecutor(12) as threads,
    ):
        names = ("tiny", "ada", "bob")
        alone = {name: said(http, name) for name in names}
        asked = [names[at % 3] for at in range(24)]
        together = list(threads.map(lambda name: said(http, name, max_tokens=8), asked))
        assert together == [alone[name] for name in asked]
        adapters = http.get("/health").json()["runtime"]["models"][0]["adapters"]
        assert sum(each.get("loaded", False) for each in adapters) == 1
        assert not any(each.get("requests") for each in adapters)


def test_metrics_and_health_show_the_adapters(http):
    said(http, "ada")
    text = http.get("/metrics").text
    assert 'stretto_adapter_loaded{adapter="ada",model="tiny"} 1.0' in text
    assert "stretto_adapter_loads_total" in text
    assert "vllm:lora_requests_info" in text
    model = http.get("/health").json()["runtime"]["models"][0]
    assert {each["name"]: each.get("loaded") for each in model["adapters"]}["ada"]


def test_a_killed_worker_loads_its_adapters_again(http):
    before = said(http, "ada"), said(http)
    os.kill(_worker(http), signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if http.get("/readyz").status_code == 200 and _ready(http):
            break
        time.sleep(0.1)
    assert (said(http, "ada"), said(http)) == before


def _ready(http: httpx2.Client) -> bool:
    reply = http.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 1})
    return reply.status_code == 200


def _worker(http: httpx2.Client) -> int:
    """The process with the model: a child of the one that answers."""
    port = http.base_url.port
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                listens = b"stretto.worker" in command and _listens(parent, port)
            except OSError:
                continue
            if listens:
                return int(entry.name)
    raise AssertionError("no worker found")


def _listens(process: int, port: int | None) -> bool:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {row[9] for row in rows if int(row[1].rpartition(":")[2], 16) == port and row[3] == "0A"}
    links = [os.readlink(link) for link in Path(f"/proc/{process}/fd").iterdir() if link.is_symlink()]
    return any(link == f"socket:[{inode}]" for link in links for inode in inodes)
