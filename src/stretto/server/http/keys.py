"""API keys: read from a file or a setting, stored as digests, compared in constant time.

A key file has one key per line (`#` starts a comment), or is YAML:

    keys:
      - {key: "sk-…", name: alice, tenant: alice, priority: background, priority_max: default}
      - {key: "sk-…", name: bob, concurrency_max: 8}

`priority` applies to requests without one, `priority_max` is the most urgent one allowed. Only the owner may
read the file. A key without a tenant is its own tenant.
"""

from __future__ import annotations

import hashlib
import hmac
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stretto.errors import SettingsError
from stretto.rpc.messages import PriorityName
from stretto.server.http.caller import Caller
from stretto.settings import ServerSettings
from stretto.settings.yaml_file import read_yaml

KEY_CHARS_MIN, KEY_CHARS_MAX = 8, 512
KEYS_MAX = 10_000
_NAME = Annotated[str, Field(max_length=128, pattern=r"^[\w.@:-]*$")]


class KeyEntry(BaseModel):
    """One entry of the key file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, hide_input_in_errors=True
    )

    key: Annotated[str, Field(min_length=KEY_CHARS_MIN, max_length=KEY_CHARS_MAX)]
    name: _NAME = ""
    tenant: _NAME = ""
    priority: PriorityName = "default"
    priority_max: PriorityName = "urgent"
    concurrency_max: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """Properties of a key. `concurrency_max` None: no limit."""

    digest: bytes
    caller: Caller
    concurrency_max: int | None = None


class KeyRing:
    """All keys of a server. An empty ring allows every request: `run` permits that on loopback only."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(key.caller.name for key in self._keys)

    @property
    def limited(self) -> bool:
        """Whether any key has a limit of its own."""
        return any(key.concurrency_max is not None for key in self._keys)

    def find(self, presented: str) -> Key | None:
        """Look up a key. Compares every digest, so that timing does not reveal which one matched."""
        digest = _digest(presented)
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def load_keys(settings: ServerSettings) -> KeyRing:
    """The keys of the setting and of the file."""
    entries = [] if settings.api_key is None else [_checked({"key": settings.api_key.get_secret_value()}, 1)]
    if settings.api_key_file is not None:
        entries += _read(Path(settings.api_key_file).expanduser())
    digests = [_digest(entry.key) for entry in entries]
    if len(set(digests)) < len(digests):
        raise SettingsError("an API key occurs twice", hint="give every user a separate key")
    return KeyRing(_key(entry, digest) for entry, digest in zip(entries, digests, strict=True))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _key(entry: KeyEntry, digest: bytes) -> Key:
    name = entry.name or f"key-{digest.hex()[:8]}"
    caller = Caller(
        name=name,
        tenant=entry.tenant or name,
        priority_default=entry.priority,
        priority_max=entry.priority_max,
    )
    return Key(digest, caller, entry.concurrency_max)


def _read(path: Path) -> list[KeyEntry]:
    text = _owners_text(path)
    lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if any(line.startswith(("keys:", "{")) for line in lines):  # YAML, or JSON, which is YAML as well
        listed = read_yaml(path).get("keys")
        if not isinstance(listed, list):
            raise SettingsError("the key file's `keys:` is not a list", hint="write `- key: …` below it")
        entries = [_checked(item, index) for index, item in enumerate(listed, 1)]
    else:
        entries = [_checked({"key": line}, index) for index, line in enumerate(lines, 1)]
    if not entries or len(entries) > KEYS_MAX:
        raise SettingsError(f"the key file has {len(entries):,} keys", hint=f"write 1 to {KEYS_MAX:,} keys")
    return entries


def _owners_text(path: Path) -> str:
    """The file's text; raises if other users can read or change it."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"the key file {path.name} cannot be read: {error.strerror}", hint="check api_key_file"
        ) from None
    except UnicodeDecodeError:
        raise SettingsError(f"the key file {path.name} is not UTF-8 text", hint="one key per line") from None
    if stat.S_IMODE(mode) & 0o077:
        raise SettingsError(
            f"the key file {path.name} is accessible to other users (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path.name}",
        )
    return text


def _checked(item: Any, index: int) -> KeyEntry:
    """Validate one entry. Errors never contain the key itself."""
    try:
        return KeyEntry.model_validate(item)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][:1]) or "entry"
        raise SettingsError(
            f"API key {index}: {where}: {first['msg']}",
            hint="fields: key, name, tenant, priority, priority_max, concurrency_max",
        ) from None
