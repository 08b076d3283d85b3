"""Every setting as a flag, generated from the fields of the settings classes.

Values stay text here: `settings.load` parses and validates them, so that a flag, a variable and a YAML key
accept the same spellings. The mapping contains only given flags, so that lower layers still apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Union, get_args, get_origin

from cyclopts import Group, Parameter
from pydantic import BaseModel

from stretto.settings import ModelSettings, ServerSettings
from stretto.settings.renamed import RENAMED, current

SETTINGS = Group("Model settings", sort_key=50)
SERVER = Group("Server settings", sort_key=40)
LEFT_OUT = ("path", "api_key")  # the model is an argument; process lists show flags


def _parts(annotation: Any) -> list[Any]:
    """The alternatives of a field's type, without None and Annotated metadata."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return [part for item in get_args(annotation) for part in _parts(item)]
    return [] if annotation is NoneType else [annotation]


def _metavar(annotation: Any) -> str:
    names = []
    for part in _parts(annotation):
        if get_origin(part) is Literal:
            names += [str(item) for item in get_args(part)]
        else:
            names.append({int: "N", float: "X", str: "TEXT"}.get(part, "LIST" if _is_list(part) else "YAML"))
    return "|".join(names)


def _is_list(part: Any) -> bool:
    return get_origin(part) is list


def _help(text: str | None, default: Any) -> str:
    shown = "" if default is None or default in ({}, []) else f" [default: {default}]"
    return f"{text or ''}{shown}".strip()


def _fields(settings: type[BaseModel], group: Group) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in settings.model_fields.items():
        if name in LEFT_OUT:
            continue
        help_text = _help(field.description, field.default)
        if field.annotation is bool:
            found[name] = Annotated[bool, Parameter(help=help_text, group=group)]
        else:
            metavar = _metavar(field.annotation)
            found[name] = Annotated[str, Parameter(help=help_text, metavar=metavar, group=group)]
    for old, name in RENAMED.items():
        if name in found:
            found[old] = Annotated[str, Parameter(show=False, group=group)]
    return found


if TYPE_CHECKING:
    Flags = dict[str, str | bool]
    ServerFlagValues = dict[str, str | bool]
else:
    Flags = TypedDict("Flags", _fields(ModelSettings, SETTINGS), total=False)
    ServerFlagValues = TypedDict("ServerFlagValues", _fields(ServerSettings, SERVER), total=False)

ModelFlags = Annotated[Flags | None, Parameter(name="*", group=SETTINGS)]
ServerFlags = Annotated[ServerFlagValues | None, Parameter(name="*", group=SERVER)]


def server_values(flags: Mapping[str, str | bool] | None) -> dict[str, Any]:
    """The given server flags, by dotted name."""
    return {f"server.{name}": value for name, value in values(flags, ServerSettings).items()}


def values(
    flags: Mapping[str, str | bool] | None, settings: type[BaseModel] = ModelSettings
) -> dict[str, Any]:
    """The given flags; `a,b` becomes a list for list settings."""
    given: dict[str, Any] = dict(flags or {})
    for name, value in given.items():
        wants_list = any(map(_is_list, _parts(settings.model_fields[current(name)].annotation)))
        if wants_list and isinstance(value, str) and not value.lstrip().startswith("["):
            given[name] = f"[{value}]"
    return given
