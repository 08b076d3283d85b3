"""Common client libraries, in their own environment (their pinned dependencies conflict with ours).

`make clients` creates it from `requirements.txt`; without it these tests are skipped. Each script of this
directory runs there as a process, against one `stretto serve` with SmolLM2.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.server.process import served

HERE = Path(__file__).parent
PYTHON = HERE.parents[2] / ".venv-clients" / "bin" / "python"
TIMEOUT_S = 240

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON.exists(), reason="NO CLIENTS WERE TRIED: their environment is missing; hint: make clients"
    ),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served("--n-threads", "1", "--context-window", "2048") as address:
        yield address


def run(script: str, url: str, *arguments: str) -> dict[str, Any]:
    model = httpx2.get(f"{url}/v1/models", timeout=30).json()["data"][0]["id"]
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": os.environ.get("HOME", ""),
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [str(PYTHON), str(HERE / script), url, model, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check_conversation(found: dict[str, Any]) -> None:
    assert found["name"] == "weather"
    assert isinstance(found["arguments"]["city"], str)
    assert found["text"].strip()


def test_litellm(url: str) -> None:
    found = run("with_litellm.py", url)
    for dialect in ("openai", "anthropic"):
        check_conversation(found[dialect])
        assert found[dialect]["too_long"] == "ContextWindowExceededError"


def test_langchain(url: str) -> None:
    found = run("with_langchain.py", url)
    for dialect in ("openai", "anthropic", "responses"):
        check_conversation(found[dialect])
        assert found[dialect]["overflow"]
    assert isinstance(found["place"]["inhabitants"], int)


def test_lm_eval_measures_and_generates(url: str) -> None:
    found = run("with_lm_eval.py", url, str(HERE / "tasks"))
    assert found["accuracy"] == 1.0
    assert all(value < 0 for values in found["answers"] for value in values)
    assert found["texts"][0].strip()
