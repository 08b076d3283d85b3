"""The local model store: list, find, pull and remove models.

    <cache>/models/<user>/<repo>/<file>.gguf        a pulled model
    <cache>/models/<user>/<repo>/<file>.gguf.json   its origin
    <cache>/default/…                               the bundled model, converted
    <cache>/embedding/…                             the bundled embedding model, converted

Parses model names; no name can lead out of the store. The caller passes the directory: only `settings` reads
the environment. Reads no more of a file than its header.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from stretto.errors import InvalidModelNameError, ModelError, ModelNotFoundError
from stretto.model_files import bundled, gguf, hub, minilm
from stretto.model_files.quantize import Progress

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,94}[A-Za-z0-9_-]|[A-Za-z0-9]"
_NAME = re.compile(rf"(?P<user>{_PART})/(?P<repo>{_PART})(?::(?P<quant>[A-Za-z0-9_]{{1,32}}))?")
_PLAIN = re.compile(rf"(?:{_PART})(?::[A-Za-z0-9_]{{1,32}})?")
DEFAULT_NAMES = ("demo", "default", bundled.NAME)


@dataclass(frozen=True, slots=True)
class ModelName:
    """`user/repo` or `user/repo:QUANT`, parsed."""

    user: str
    repo: str
    quant: str | None = None

    @classmethod
    def parse(cls, text: str) -> ModelName:
        found = _NAME.fullmatch(text) if len(text) <= 256 else None
        if found is None:
            raise InvalidModelNameError(f"{text[:80]!r} is not the name of a model")
        quant = found["quant"]
        return cls(found["user"], found["repo"], quant.upper() if quant else None)

    @property
    def repository(self) -> str:
        return f"{self.user}/{self.repo}"

    def __str__(self) -> str:
        return self.repository + (f":{self.quant}" if self.quant else "")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model in the store; `path` is its first part, the size covers all parts."""

    name: str
    path: Path
    size: int
    modified_s: float


@dataclass(frozen=True, slots=True)
class _PullOrigin:
    repository: str
    revision: str
    sha256: str | None


class Store:
    """The models under one cache directory."""

    def __init__(self, cache_dir: Path) -> None:
        self.cache_dir = cache_dir
        self._models = cache_dir / "models"

    def ls(self) -> tuple[StoredModel, ...]:
        """All pulled models, sorted by name."""
        found = []
        for path in sorted(self._models.glob("*/*/*.gguf")):
            if path.is_symlink() or not path.is_file() or not _is_first_part(path):
                continue
            parts = [part.stat() for part in _parts(path)]
            size, modified = sum(part.st_size for part in parts), max(part.st_mtime for part in parts)
            found.append(StoredModel(_name_of(path), path, size, modified))
        return tuple(found)

    def resolve(self, name: str) -> Path:
        """The file for a path, `user/repo[:QUANT]`, a file name without `.gguf`, or a bundled model."""
        if name in DEFAULT_NAMES:
            return self.ensure_default()
        if name in minilm.NAMES:
            return self.ensure_embedding()
        if _is_path(name):
            path = Path(name).expanduser()
            gguf.read(path)
            return path
        return self._find(name).path

    def rm(self, name: str) -> int:
        """Remove a pulled model with all its parts; returns the bytes freed."""
        model = self._find(name)
        _remove(model.path)
        return model.size

    def pull(
        self, name: str, *, endpoint: str, token: str | None = None, progress: hub.Progress | None = None
    ) -> Path:
        """Download `user/repo[:QUANT]`; files already here and unchanged are not fetched again."""
        wanted = ModelName.parse(name)
        source = hub.Hub(endpoint, token)
        revision = source.revision(wanted.repository)
        files = hub.choose(source.files(wanted.repository, revision), wanted.quant)
        folder = self._models / wanted.user / wanted.repo
        total, before = sum(file.size for file in files), 0
        for file in files:
            target = folder / file.name
            if not _is_same(target, file):
                source.download(wanted.repository, revision, file, target, _shifted(progress, before, total))
                _write_origin(target, _PullOrigin(wanted.repository, revision, file.sha256))
            before += file.size
        first = folder / files[0].name
        try:
            gguf.read(first)
        except ModelError:
            _remove(first)
            raise
        return first

    def ensure_default(self, progress: Progress | None = None) -> Path:
        return bundled.ensure_default(self.cache_dir, progress)

    def ensure_embedding(self, progress: Progress | None = None) -> Path:
        return minilm.ensure(self.cache_dir, progress)

    def _find(self, name: str) -> StoredModel:
        models = self.ls()
        if "/" in name:
            wanted = ModelName.parse(name)
            found = [m for m in models if m.name == str(wanted) or m.name.split(":")[0] == str(wanted)]
        elif _PLAIN.fullmatch(name):
            found = [m for m in models if name in {m.path.stem, m.name.split("/")[-1]}]
        else:
            raise InvalidModelNameError(f"{name[:80]!r} is not the name of a model")
        if len(found) == 1:
            return found[0]
        if found:
            choices = ", ".join(model.name for model in found)
            raise InvalidModelNameError(f"{name} matches more than one model", hint=f"one of {choices}")
        known = [spelling for m in models for spelling in (m.name, m.path.stem)]
        close = difflib.get_close_matches(name, [*known, *DEFAULT_NAMES, *minilm.NAMES], n=1)
        hint = f"did you mean {close[0]}?" if close else None
        raise ModelNotFoundError(f"model {name} not found", hint=hint)


def _remove(first: Path) -> None:
    for path in _parts(first):
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".json").unlink(missing_ok=True)
    for folder in (first.parent, first.parent.parent):
        if not any(folder.iterdir()):
            folder.rmdir()


def _is_path(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or name.lower().endswith(".gguf") or Path(name).is_file()


def _is_first_part(path: Path) -> bool:
    shard = hub.SHARD.search(path.name)
    return shard is None or int(shard[1]) == 1


def _parts(path: Path) -> list[Path]:
    """All files of a split model."""
    shard = hub.SHARD.search(path.name)
    if shard is None:
        return [path]
    stem = path.name[: shard.start()]
    numbers = range(1, min(int(shard[2]), 1_000) + 1)
    parts = [path.with_name(f"{stem}-{number:05}-of-{shard[2]}.gguf") for number in numbers]
    return [part for part in parts if part.is_file()]


def _name_of(path: Path) -> str:
    quant = hub.quant_of(path.name)
    repository = f"{path.parent.parent.name}/{path.parent.name}"
    return f"{repository}:{quant}" if quant else repository


def _shifted(progress: hub.Progress | None, before: int, total: int) -> hub.Progress | None:
    """Progress over all parts of a download."""
    if progress is None:
        return None
    return lambda done, _: progress(before + done, total)


def _is_same(target: Path, file: hub.RemoteFile) -> bool:
    try:
        origin = json.loads(target.with_name(target.name + ".json").read_bytes())
        known = file.sha256 is not None and origin["sha256"] == file.sha256
        return known and target.stat().st_size == file.size
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_origin(target: Path, origin: _PullOrigin) -> None:
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(asdict(origin), file, indent=1)
    Path(part).replace(target.with_name(target.name + ".json"))
