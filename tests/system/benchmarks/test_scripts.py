"""Every benchmark script takes --json and --check, and its docstring begins with one sentence."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks"
RESULTS = FOLDER / "results" / "compare-neoverse-n1.json"
NOT_MEASURING = {
    "attack/run.py",  # the child process of attacks.py
    "gpu/http_load.py",  # the client processes of gpu/product.py
    "peers/serve.py",  # starts a server for manual experiments
}


def scripts() -> list[str]:
    """Files that can be run, relative to the folder."""
    found = (path for path in sorted(FOLDER.rglob("*.py")) if '__name__ == "__main__"' in path.read_text())
    return [name for path in found if (name := path.relative_to(FOLDER).as_posix()) not in NOT_MEASURING]


def options(path: Path) -> set[str]:
    """The options that a script declares, itself or through the parser shared by the GPU scripts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    own = {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }
    shares = any(isinstance(call.func, ast.Name) and call.func.id == "parser" for call in calls)
    return own | options(FOLDER / "gpu" / "offline.py") if shares else own


def test_the_folder_has_scripts():
    assert {"compare.py", "scheduler.py", "gpu/latency.py"} <= set(scripts())


@pytest.mark.parametrize("name", scripts())
def test_a_script_takes_json_and_check(name):
    assert {"--json", "--check"} <= options(FOLDER / name)


@pytest.mark.parametrize("name", scripts())
def test_a_docstring_begins_with_one_sentence_that_names_the_options(name):
    text = ast.get_docstring(ast.parse((FOLDER / name).read_text(encoding="utf-8"))) or ""
    first, _, rest = text.partition("\n\n")
    assert "\n" not in first
    assert first.endswith(".")
    assert {"--json", "--check"} <= {word.strip("[]") for word in rest.split()}


def run_table(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "table.py"), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("flags", [(), ("--summary",)])
def test_the_published_tables_pass_their_check(flags, tmp_path):
    target = tmp_path / "lines.json"
    done = run_table(str(RESULTS), *flags, "--check", "--json", str(target))
    assert done.returncode == 0, done.stderr
    assert json.loads(target.read_text(encoding="utf-8")) == done.stdout.splitlines()


def test_a_table_that_is_not_published_fails_its_check(tmp_path):
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    report["conditions"]["commit"] = "0000000"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(report), encoding="utf-8")
    done = run_table(str(other), "--check")
    assert done.returncode == 1
    assert "does not contain this table" in done.stderr
