"""The examples run unchanged against real models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stretto import settings
from tests.server.process import served

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def run(name: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_chat_clients() -> None:
    with served("--n-threads", "1") as url:
        assert run("openai_client.py", OPENAI_BASE_URL=f"{url}/v1").strip()
        assert run("anthropic_client.py", ANTHROPIC_BASE_URL=url).strip()


def test_embeddings_rank_the_right_documents_first() -> None:
    with served("all-MiniLM-L6-v2") as url:
        ranked = run("embed_and_rerank.py", OPENAI_BASE_URL=f"{url}/v1").splitlines()
    assert len(ranked) == 3
    assert "stock market" in ranked[-1]


def test_structured_output() -> None:
    lines = run("structured_output.py").splitlines()
    assert len(lines) == 4
    for line in lines:
        assert json.loads(line)["country"] in ("France", "Italy", "Spain")


def test_settings_of_tenants_load() -> None:
    loaded = settings.load(ROOT / "examples" / "tenants.yaml", env={})
    assert loaded.settings.defaults.tenant_weights == {"research": 2, "batch": 1}
