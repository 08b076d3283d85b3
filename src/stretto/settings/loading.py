"""Flags over `STRETTO_*` variables over YAML over defaults, and where each value came from.

A layer may set `defaults` (by bare name: `--n-seq-max`, `STRETTO_N_SEQ_MAX`), a section
(`STRETTO_GENERATE_BATCHER__MAX_BATCH_SIZE`; the server's also bare: `STRETTO_PORT`) or one model
(`STRETTO_MODELS__<name>__N_SEQ_MAX`). A higher layer wins even where a lower one is more specific: a flag
beats what the file says about one model.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from stretto.errors import SettingsError
from stretto.settings.engine import EngineSettings
from stretto.settings.errors import from_validation
from stretto.settings.model import CACHE_SWITCHES, ModelSettings, select_cache
from stretto.settings.names import FOREIGN_SWITCHES, hint_for
from stretto.settings.renamed import RENAMED, Renames, current
from stretto.settings.runtime import RuntimeSettings
from stretto.settings.server import ServerSettings
from stretto.settings.settings import GenerateBatcherSettings, Settings
from stretto.settings.yaml_file import parse_value, read_yaml

PREFIX = "STRETTO_"
FILE_NAME = "stretto.yaml"
BATCHING_OFF = "STRETTO_DISABLE_GENERATE_BATCHING"
# Variables that belong to the process, not to a key of this file.
VARIABLES_RESERVED = ("STRETTO_CONFIG", "STRETTO_CACHE_DIR", "STRETTO_DEBUG", "STRETTO_PROVE", BATCHING_OFF)
MODEL_KEYS = tuple(ModelSettings.model_fields)
SECTIONS = ("models", "defaults", "generate_batcher", "engine", "runtime", "server")
BATCHER_KEYS = tuple(GenerateBatcherSettings.model_fields)
ENGINE_KEYS = tuple(EngineSettings.model_fields)
RUNTIME_KEYS = tuple(RuntimeSettings.model_fields)
SERVER_KEYS = tuple(ServerSettings.model_fields)
PLAIN_CLASSES: dict[str, type[BaseModel]] = {
    "generate_batcher": GenerateBatcherSettings,
    "engine": EngineSettings,
    "runtime": RuntimeSettings,
    "server": ServerSettings,
}
_ALL_CLASSES: list[type[BaseModel]] = [ModelSettings, *PLAIN_CLASSES.values()]
TEXT_KEYS = frozenset(
    name
    for settings in _ALL_CLASSES
    for name, field in settings.model_fields.items()
    if field.annotation in (str, str | None, SecretStr | None)
)
# Sections that stand once, beside the models: each by its name, with its keys.
PLAIN_SECTIONS = {
    "generate_batcher": BATCHER_KEYS,
    "engine": ENGINE_KEYS,
    "runtime": RUNTIME_KEYS,
    "server": SERVER_KEYS,
}


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and the origin of every value by its dotted name ("default" if it was not set).

    `notes` tell of settings under their old names, and of variables of other programs that have no effect.
    """

    settings: Settings
    origin: Mapping[str, str]
    path: Path | None
    notes: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, Any, str]]:
        """(key, value, origin) of everything, for `stretto config show --origin`."""
        found: list[tuple[str, Any, str]] = []
        _flatten(self.settings.model_dump(), "", found, self.origin)
        return found


@dataclass(frozen=True, slots=True)
class _Layer:
    """One source: nested values, and how to name the origin of a dotted key."""

    values: dict[str, Any]
    names: Mapping[str, str]
    label: str

    def origin(self, key: str) -> str:
        return self.names.get(key, self.label)


def load(
    yaml_path: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> LoadedSettings:
    """Read all sources. Without `yaml_path` the usual places are tried; the file is optional.

    `flags` are dotted names (`n_seq_max`, `generate_batcher.enabled`) or nested; None means "not given".
    """
    variables = os.environ if env is None else env  # noqa: TID251 (the one place that reads it)
    path = _find(yaml_path, variables)
    file_values = read_yaml(path) if path is not None else {}
    label = path.name if path is not None else FILE_NAME
    renames = Renames()
    layers = [
        _Layer(_checked(file_values, label, renames), {}, label),
        _env_layer(variables, file_values.get("models") or {}, renames),
        _flag_layer(flags or {}, renames),
    ]
    return replace(_resolved(layers, path), notes=(*renames.notes, *_foreign_switches(variables)))


def _foreign_switches(env: Mapping[str, str]) -> tuple[str, ...]:
    """Warn about variables of other programs that have no effect here."""
    return tuple(
        f"{theirs} has no effect here; set {ours}={env[theirs][:20]}"
        for theirs, ours in FOREIGN_SWITCHES.items()
        if env.get(theirs)
    )


def _find(yaml_path: str | Path | None, env: Mapping[str, str]) -> Path | None:
    named = yaml_path if yaml_path is not None else env.get("STRETTO_CONFIG") or None
    if named is not None:
        path = Path(named).expanduser()
        if not path.is_file():
            raise SettingsError(
                f"the configuration file {path.name} does not exist", hint="check --config or STRETTO_CONFIG"
            )
        return path
    home = env.get("XDG_CONFIG_HOME") or (f"{env['HOME']}/.config" if env.get("HOME") else "")
    candidates = [Path(FILE_NAME)] + ([Path(home) / "stretto" / "config.yaml"] if home else [])
    return next((path for path in candidates if path.is_file()), None)


# ── layers ──────────────────────────────────────────────────────────────────────────────────────


def _checked(values: dict[str, Any], label: str, renames: Renames) -> dict[str, Any]:
    """Refuses unknown keys and wrong shapes, with the way out as the hint. Old names become today's."""
    _check_keys(values, Settings.model_fields, label)
    for section in SECTIONS:
        if values.get(section) is None:
            values.pop(section, None)
        elif not isinstance(values[section], dict):
            raise SettingsError(f"{label}: {section} is not a mapping", hint="indent its keys below it")
    for section, keys in PLAIN_SECTIONS.items():
        _check_keys(values.get(section, {}), keys, f"{label}: {section}")
    if "defaults" in values:
        values["defaults"] = _model_keys(values["defaults"], f"{label}: defaults", renames)
    for name, own in values.get("models", {}).items():
        if own is not None and not isinstance(own, dict):
            raise SettingsError(f"{label}: models.{name} is not a mapping", hint="indent its keys below it")
        values["models"][name] = _model_keys(own or {}, f"{label}: models.{name}", renames)
    return values


def _model_keys(values: Mapping[Any, Any], where: str, renames: Renames) -> dict[Any, Any]:
    values = renames.keys(values, where)
    _check_keys(values, MODEL_KEYS, where)
    return values


def _check_keys(values: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    names = tuple(known)
    for key in values:
        if key in names:
            continue
        raise SettingsError(f"{where}: unknown key {str(key)[:80]}", hint=_key_hint(str(key), names))


def _key_hint(key: str, names: tuple[str, ...]) -> str:
    """At the top of a file also keys of a model count, which belong one level deeper."""
    if "models" in names:
        if key in MODEL_KEYS or key in RENAMED:
            return "move it below models: <name>: or defaults:"
        near = difflib.get_close_matches(key, (*names, *MODEL_KEYS), n=1, cutoff=0.8)
        if near and near[0] in MODEL_KEYS:
            return f"did you mean {near[0]}, below models: <name>: or defaults:?"
    return hint_for(key, names)


def _env_layer(env: Mapping[str, str], models: Mapping[str, Any], renames: Renames) -> _Layer:
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for variable in sorted(env):
        if not variable.startswith(PREFIX) or variable in VARIABLES_RESERVED or env[variable] == "":
            continue
        parts = variable.removeprefix(PREFIX).split("__")
        key = _variable_key(parts, models)
        if key is not None and key[-1] != parts[-1].lower():
            renames.key(parts[-1].lower())
        if key is None:
            raise SettingsError(f"unknown variable {variable[:80]}", hint=_variable_hint(parts))
        _put(values, key, _value(key, env[variable]))
        names[".".join(key)] = f"env {variable}"
    _switch_off_batching(env.get(BATCHING_OFF, ""), values, names)
    return _Layer(values, names, "env")


def _variable_hint(parts: list[str]) -> str:
    section = PLAIN_SECTIONS.get(parts[0].lower())
    prefix = PREFIX if section is None else f"{PREFIX}{parts[0].upper()}__"
    known = (*MODEL_KEYS, *SERVER_KEYS) if section is None else section
    return hint_for(parts[-1], known, lambda name: prefix + name.upper())


def _switch_off_batching(value: str, values: dict[str, Any], names: dict[str, str]) -> None:
    """Seed 002's emergency switch: any true value turns the batcher off, overriding other settings."""
    if parse_value(value) in (1, True):
        _put(values, ["generate_batcher", "enabled"], False)
        names["generate_batcher.enabled"] = f"env {BATCHING_OFF}"


def _variable_key(parts: list[str], models: Mapping[str, Any]) -> list[str] | None:
    """STRETTO_X → defaults.x, else server.x; STRETTO_MODELS__NAME__X → models.<name>.x; a section's own."""
    lowered = [part.lower() for part in parts]
    lowered[-1] = current(lowered[-1])
    if len(parts) == 1 and lowered[0] in MODEL_KEYS:
        return ["defaults", lowered[0]]
    if len(parts) == 1 and lowered[0] in SERVER_KEYS:
        return ["server", lowered[0]]
    if len(parts) == 2 and lowered[0] == "defaults" and lowered[1] in MODEL_KEYS:
        return lowered
    if len(parts) == 2 and lowered[1] in PLAIN_SECTIONS.get(lowered[0], ()):
        return lowered
    if len(parts) == 3 and lowered[0] == "models" and lowered[2] in MODEL_KEYS:
        listed = {_variable_name(name): name for name in models}
        return ["models", listed.get(_variable_name(parts[1]), parts[1].lower()), lowered[2]]
    return None


def _variable_name(name: str) -> str:
    """A model's name as it appears in a variable: Qwen3-8B-Q8_0 → QWEN3_8B_Q8_0."""
    return "".join(character if character.isalnum() else "_" for character in name).upper()


def _flag_layer(flags: Mapping[str, Any], renames: Renames) -> _Layer:
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in flags.items():
        if value is None:
            continue
        key = name.split(".") if "." in name or name in Settings.model_fields else ["defaults", name]
        key[-1] = renames.key(key[-1])
        given = _value(key, value) if isinstance(value, str) else value
        _put(values, key, given)
        names[".".join(key)] = f"flag --{name.removeprefix('server.').replace('_', '-')}"
    return _Layer(_checked(values, "flags", renames), names, "flags")


def _value(key: list[str], text: str) -> Any:
    """The value of a variable or flag. API keys, hosts and paths are never parsed as YAML."""
    return text if key[-1] in TEXT_KEYS else parse_value(text)


def _put(values: dict[str, Any], key: list[str], value: Any) -> None:
    for part in key[:-1]:
        values = values.setdefault(part, {})
    values[key[-1]] = value


# ── resolution ──────────────────────────────────────────────────────────────────────────────────


def _resolved(layers: list[_Layer], path: Path | None) -> LoadedSettings:
    origin: dict[str, str] = {}
    plain: dict[str, dict[str, Any]] = {section: {} for section in PLAIN_SECTIONS}
    version = 1
    for layer in layers:
        version = layer.values.get("version", version)
        for section, chosen in plain.items():
            for key, value in layer.values.get(section, {}).items():
                chosen[key] = value
                origin[f"{section}.{key}"] = layer.origin(f"{section}.{key}")
    names = dict.fromkeys(name for layer in layers for name in layer.values.get("models", {}))
    built = {f"models.{name}": _model(layers, str(name), origin) for name in names}
    built["defaults"] = _model(layers, None, origin)
    try:
        settings = Settings.model_validate(
            {
                "version": version,
                "models": {key.removeprefix("models."): built[key] for key in built if key != "defaults"},
                "defaults": built["defaults"],
                **{section: _plain(section, chosen, origin) for section, chosen in plain.items()},
            }
        )
    except ValidationError as error:
        raise from_validation(error) from None
    return LoadedSettings(settings, origin, path)


def _plain(section: str, chosen: dict[str, Any], origin: Mapping[str, str]) -> BaseModel:
    try:
        return PLAIN_CLASSES[section].model_validate(chosen)
    except ValidationError as error:
        raise from_validation(error, where=section, origin=origin) from None


def _model(layers: list[_Layer], name: str | None, origin: dict[str, str]) -> ModelSettings:
    """One model's values from the lowest layer up; in each layer its own keys override the defaults."""
    where = "defaults" if name is None else f"models.{name}"
    merged: dict[str, Any] = {}
    for layer in layers:
        sources = [("defaults", layer.values.get("defaults", {}))]
        if name is not None:
            sources.append((where, layer.values.get("models", {}).get(name) or {}))
        for prefix, keys in sources:
            _merge(merged, keys, layer, prefix, where, origin)
    try:
        return ModelSettings.model_validate(merged)
    except ValidationError as error:
        raise from_validation(error, where=where, origin=origin) from None


def _merge(
    merged: dict[str, Any],
    keys: dict[str, Any],
    layer: _Layer,
    prefix: str,
    where: str,
    origin: dict[str, str],
) -> None:
    try:
        keys = select_cache(keys)
    except SettingsError as error:
        raise SettingsError(f"{layer.label}: {prefix}: {error.message}", hint=error.hint) from None
    for key, value in keys.items():
        source = (
            next((switch for switch in CACHE_SWITCHES if keys.get(switch) is True), key)
            if key == "cache"
            else key
        )
        if key in CACHE_SWITCHES:
            origin[f"{where}.{key}"] = layer.origin(f"{prefix}.{key}")
            if value is False and merged.get("cache") == CACHE_SWITCHES[key]:
                merged.pop("cache")  # a higher layer disables what a lower one chose
                origin.pop(f"{where}.cache", None)
            elif not isinstance(value, bool):
                merged[key] = value  # rejected by pydantic
            continue
        merged[key] = value
        origin[f"{where}.{key}"] = layer.origin(f"{prefix}.{source}")


def _flatten(value: Any, prefix: str, found: list[tuple[str, Any, str]], origin: Mapping[str, str]) -> None:
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict) and not name.endswith(("tenant_weights", "override_tensors", ".adapters")):
            _flatten(item, f"{name}.", found, origin)
        else:
            found.append((name, item, origin.get(name, "default")))
