"""The examples of the README and the guides work as printed, with the default model."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.process import served

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
PAGES = (ROOT / "README.md", GUIDES / "serving.md", GUIDES / "http-api.md")
BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADDRESS = re.compile(r"http://(?:localhost|127\.0\.0\.1):8000")


def curl_examples(text: str) -> list[str]:
    """Commands that start with curl: one line, or several joined by a backslash or an open quote."""
    found: list[str] = []
    for block in BLOCK.findall(text):
        command = ""
        for line in block.splitlines():
            bare = line.removeprefix("$ ").removeprefix("> ") if not command else line
            if not command and not bare.startswith("curl "):
                continue
            command = f"{command}\n{bare}" if command else bare
            if not bare.endswith("\\") and command.count("'") % 2 == 0:
                found.append(command)
                command = ""
    return found


def test_examples_are_found_in_every_form() -> None:
    console = "```console\n$ curl http://localhost:8000/v1/models\n{}\n```\n"
    text = f"x\n{console}```bash\ncurl -N x \\\n  -d '{{\n}}'\nls\n```\n"
    assert curl_examples(text) == ["curl http://localhost:8000/v1/models", "curl -N x \\\n  -d '{\n}'"]


@pytest.mark.slow
def test_curl_examples_work_as_printed() -> None:
    shown = [curl_examples(page.read_text(encoding="utf-8")) for page in PAGES]
    assert all(shown), "a page shows no curl example"
    examples = [example for page in shown for example in page]
    with served("--n-threads", "1") as url:
        for example in examples:
            command = ADDRESS.sub(url, example).replace("curl ", "curl --fail-with-body -sS -m 120 ", 1)
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
            assert done.stdout.strip(), example
            if done.stdout.lstrip().startswith("{"):
                assert json.loads(done.stdout).get("error") is None, example


@pytest.mark.slow
def test_the_python_examples_of_the_readme_work_as_printed() -> None:
    openai, sdk = PYTHON.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    with served("--n-threads", "1") as url:
        answered = _printed(ADDRESS.sub(url, openai))
    assert answered.strip()
    assert len(ast.literal_eval(_printed(sdk))) == 8, "eight prompts have eight answers"


def _printed(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, f"{code}\n{done.stderr}"
    return done.stdout
