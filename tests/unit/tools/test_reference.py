"""The generated reference is complete: every setting, every command with its options, every route."""

from __future__ import annotations

import re

from stretto.cli.commands import COMMANDS, CONFIG_COMMANDS, GLOBAL_OPTIONS
from stretto.settings import Settings
from tools import reference


def test_every_setting_is_explained() -> None:
    page = reference.settings_page()
    sections = page.split("\n## ")[1:]
    shown = {section.split("`")[1].rstrip(":"): section for section in sections}
    assert set(shown) == set(Settings.model_fields) - {"version", "models"}
    for name, settings in reference.sections().items():
        rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|", shown[name], re.MULTILINE)
        assert [row[0] for row in rows] == list(settings.model_fields)
        for key, kind, default, text in rows:
            assert kind, key
            assert kind != "value", key
            assert default, key
            assert text.strip(), key


def test_every_command_has_its_help() -> None:
    page = reference.cli_page()
    titles = re.findall(r"^## `(.*)`$", page, re.MULTILINE)
    assert len(set(titles)) == len(titles)
    assert {f"stretto {name}" for name in COMMANDS} <= set(titles)
    assert {f"stretto config {name}" for name in CONFIG_COMMANDS} <= set(titles)
    assert "stretto bench compare" in titles
    for title, section in zip(titles, page.split("\n## ")[1:], strict=True):
        assert f"Usage: {title}" in section
    assert all(option in page for option in GLOBAL_OPTIONS)
    assert "\x1b" not in page


def test_every_route_is_explained() -> None:
    api = reference.application()
    page = reference.http_page(api)
    documented = {
        (method.upper(), path) for path, operations in api.openapi()["paths"].items() for method in operations
    }
    for method, path in documented:
        section = page.split(f"## `{method} {path}`\n")[1].split("\n## ")[0]
        assert len(section.strip().splitlines()[0]) > len("."), path
    paths = {path.replace(":path}", "}") for path, _ in reference.routes(api.routes)}
    assert {"/livez", "/metrics", "/v1/chat/completions", "/v1/messages", "/"} <= paths
    for path in paths - {path for _, path in documented}:
        assert re.search(rf"^\| `GET {re.escape(path)}` \| \S.* \|$", page, re.MULTILINE), path


def test_fields_of_a_request_are_listed() -> None:
    page = reference.http_page(reference.application())
    section = page.split("## `POST /v1/chat/completions`\n")[1].split("\n## ")[0]
    for field in ("messages", "max_tokens", "temperature", "stream", "tools"):
        assert f"\n| `{field}`" in section
