"""YAML → plain values. Rejects duplicate keys, NaN and recursive aliases, which YAML allows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from stretto.errors import SettingsError

FILE_BYTES_MAX = 1 << 20
VALUES_MAX = 100_000


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """SafeLoader that rejects duplicate keys: the first value would be lost silently."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                line = node.value[index][0].start_mark.line + 1
                raise SettingsError(
                    f"line {line}: the key {str(key)[:80]} occurs twice", hint="remove one of them"
                )
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(path: Path) -> dict[str, Any]:
    """The file's mapping; an empty file is an empty mapping."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{path.name} cannot be read: {error.strerror}", hint="check the file's mode"
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise SettingsError(f"{path.name} has {len(data):,} bytes", hint="too large; is it the right file?")
    values = _parsed(data, path.name)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{path.name} is not a mapping", hint="begin with `models:`")
    _check_finite(values, path.name)
    return {str(key): value for key, value in values.items()}


def parse_value(text: str) -> Any:
    """The text of a variable or flag, parsed as YAML; invalid YAML stays text."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, SettingsError, RecursionError, ValueError):
        return text
    if isinstance(value, bool | int | float | str | list | dict) or value is None:
        _check_finite(value, "a value")
        return value
    return text  # a date, for instance


def _parsed(data: bytes, name: str) -> Any:
    try:
        return yaml.load(data, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except SettingsError as error:
        raise SettingsError(f"{name}: {error.message}", hint=error.hint) from None
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}:" if error.problem_mark else ""
        raise SettingsError(f"{name}:{line} {error.problem}", hint="check indentation and quotes") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError):
        raise SettingsError(f"{name} is not YAML", hint="write UTF-8 text, starting with `models:`") from None
    except RecursionError:
        raise SettingsError(f"{name} is nested too deeply", hint="begin with `models:`") from None


def _check_finite(value: Any, name: str) -> None:
    """Visits every value once, including aliases; raises beyond VALUES_MAX values."""
    pending, seen = [value], 0
    while pending:
        item = pending.pop()
        seen += 1
        if seen > VALUES_MAX:
            raise SettingsError(f"{name} contains more than {VALUES_MAX:,} values", hint="remove the aliases")
        if isinstance(item, float) and not math.isfinite(item):
            raise SettingsError(f"{name}: {item} is not a finite number", hint="write a finite number")
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
