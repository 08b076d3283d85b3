"""Writes the reference pages of the documentation from the code: settings, command line, HTTP.

`make docs` calls it before it builds the site; the pages are not committed. Imports the package, starts no
server and loads no model.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import App
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from stretto.cli import main as command_line
from stretto.cli.app import build
from stretto.server.app import create_app
from stretto.settings.model import ModelSettings
from stretto.settings.settings import Settings
from stretto.settings.used_by import USERS

HELP_COLUMNS = "100"
PLAIN_TYPES = {"int": "integer", "str": "text", "bool": "boolean", "float": "number", "SecretStr": "text"}


def write(folder: Path) -> list[Path]:
    """The three pages, under the names that the site's navigation has."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"settings.md": settings_page(), "cli.md": cli_page(), "http.md": http_page(application())}
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


# ── settings ────────────────────────────────────────────────────────────────────────────────────


def settings_page() -> str:
    parts = [
        "# Settings reference\n",
        "Generated from the code. `stretto.yaml`, `STRETTO_*` variables and flags have the same names; "
        "flags win over variables, variables over the file. `stretto config show --origin` prints every "
        "value and where it came from.\n",
    ]
    for name, section in sections().items():
        parts += [f"## `{name}:`\n", f"{_how(name, section)}\n", *_rows(section), ""]
    return "\n".join(parts)


def sections() -> dict[str, type[BaseModel]]:
    """The sections of a settings file; `models` has the keys of `defaults`."""
    fields = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {
        name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, BaseModel)
    }


def _how(name: str, section: type[BaseModel]) -> str:
    if section is ModelSettings:
        return (
            "For all models here, for one below `models: <name>:`. Variable `STRETTO_<KEY>`, flag `--<key>` "
            "of every command that loads a model, keyword argument of `LLM`."
        )
    bare = "`STRETTO_<KEY>` or " if name == "server" else ""
    flag = ", flag `--<key>` of `stretto serve`" if name == "server" else ""
    return f"Variable {bare}`STRETTO_{name.upper()}__<KEY>`{flag}."


def _rows(section: type[BaseModel]) -> Iterator[str]:
    of_models = section is ModelSettings
    yield "| key | type | default | what it does |" + (" used by |" if of_models else "")
    yield "|---|---|---|---|" + ("---|" if of_models else "")
    for name, field in section.model_fields.items():
        users = f" {', '.join(USERS[name])} |" if of_models else ""
        text = _cell(" ".join((field.description or "").split()))
        kind, default = _cell(_type(field.annotation)), _cell(_default(field))
        yield f"| `{name}` | {kind} | {default} | {text} |{users}"


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is type(None):
        return "unset"
    if origin is Literal:
        return " | ".join(f"`{value}`" for value in arguments)
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__)
    if origin in (list, tuple, dict):
        of = ", ".join(_type(one) for one in arguments if one is not ...)
        return f"{'map' if origin is dict else 'list'} of {of}"
    if arguments:
        return " | ".join(dict.fromkeys(map(_type, arguments)))
    return PLAIN_TYPES.get(getattr(annotation, "__name__", ""), "value")


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None or field.default in ({}, [], ()):
        return "none"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return "unset" if field.default is None else f"`{field.default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# ── command line ────────────────────────────────────────────────────────────────────────────────


def cli_page() -> str:
    parts = ["# Command line reference\n", "Generated from `stretto COMMAND --help`.\n"]
    for command in [[], *commands(build(), [])]:
        title = " ".join(["stretto", *command])
        parts += [f"## `{title}`\n", "```text", _help(command), "```", ""]
    return "\n".join(parts)


def commands(app: App, prefix: list[str]) -> Iterator[list[str]]:
    """All commands with their subcommands."""
    for name in app:
        if not name.startswith("-"):
            yield [*prefix, name]
            yield from commands(app[name], [*prefix, name])


def _help(command: list[str]) -> str:
    before = dict(os.environ)
    os.environ |= {"COLUMNS": HELP_COLUMNS, "NO_COLOR": "1", "TERM": "dumb"}
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            command_line([*command, "--help"])
    finally:
        os.environ.clear()
        os.environ |= before
    return "\n".join(line.rstrip() for line in said.getvalue().splitlines()).rstrip()


# ── HTTP ────────────────────────────────────────────────────────────────────────────────────────


def application() -> FastAPI:
    """The routes without a worker: nothing is asked of it."""
    nothing: Any = None
    return create_app(nothing).api


def http_page(api: FastAPI) -> str:
    document = api.openapi()
    schemas = document.get("components", {}).get("schemas", {})
    parts = [
        "# HTTP reference\n",
        "Generated from the OpenAPI document, which a running server has at `/openapi.json`. The "
        "[HTTP guide](../guides/http-api.md) says which fields are honoured, ignored and refused.\n",
    ]
    for path, operations in sorted(document["paths"].items()):
        for method, operation in operations.items():
            parts += [f"## `{method.upper()} {path}`\n", f"{operation['summary']}.", ""]
            for media in operation.get("requestBody", {}).get("content", {}).values():
                parts += _fields(media.get("schema", {}), schemas)
            parts.append(f"Status codes: {', '.join(sorted(operation['responses']))}.\n")
    parts += ["## Operations\n", "| route | what it answers |", "|---|---|"]
    plain = {path: text for path, text in routes(api.routes) if path not in document["paths"]}
    parts += [
        f"| `GET {path}` | {_cell(text)} |" for path, text in sorted(plain.items()) if ":path" not in path
    ]
    return "\n".join([*parts, ""])


def routes(found: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Path and docstring of every route, those of included routers too."""
    for route in found:
        if hasattr(route, "original_router"):
            yield from routes(route.original_router.routes)
        else:
            yield route.path, inspect.getdoc(route.endpoint) or ""


def _fields(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    body = schemas.get(schema.get("$ref", "").rpartition("/")[2], schema)
    if not body.get("properties"):
        return
    yield "| field | type | what it is |"
    yield "|---|---|---|"
    for name, field in body["properties"].items():
        needed = " (required)" if name in body.get("required", ()) else ""
        text = " ".join(field.get("description", "").split())
        yield f"| `{name}`{needed} | {_cell(_kind(field))} | {_cell(text)} |"
    yield ""


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "enum" in field:
        return " | ".join(f"`{value}`" for value in field["enum"] if value is not None)
    options = field.get("anyOf") or field.get("oneOf")
    if options:
        return " | ".join(dict.fromkeys(_kind(one) for one in options if one.get("type") != "null"))
    if field.get("type") == "array":
        return f"list of {_kind(field.get('items', {}))}"
    return str(field.get("type", "any"))


if __name__ == "__main__":
    for page in write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")):
        print(page)
