"""Downloads model files from a hub with Hugging Face's HTTP interface.

Knows three endpoints (`/api/models/…/revision`, `…/tree`, `…/resolve`) and how to download safely: `.part`
file, resume, sha256, fsync, rename. Uses the standard library only, to keep dependencies small. Does not know
where models are stored (`store` does), nor any host name.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stretto.errors import (
    DigestMismatchError,
    DiskFullError,
    DownloadError,
    InvalidModelNameError,
    ModelNotFoundError,
)
from stretto.model_files.quantize import put_in_place

Progress = Callable[[int, int], None]  # bytes done, bytes in total

PAGE_BYTES_MAX = 16 << 20
FILES_MAX = 4_096
PIECE_BYTES = 1 << 20
DISK_BYTES_SPARE = 256 << 20
PREFERRED = ("Q4_K_M", "Q4_0", "Q8_0", "Q5_K_M", "Q4_K_S", "Q6_K", "IQ4_XS", "F16", "BF16")
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_REVISION = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.gguf", re.IGNORECASE)
_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository; `sha256` is the digest announced by the hub."""

    path: str
    size: int
    sha256: str | None

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Hub:
    """One hub: its address, and a token for private repositories."""

    endpoint: str
    token: str | None = None
    timeout_s: float = 30.0

    def revision(self, repository: str, name: str = "main") -> str:
        """The commit of a branch, so that all files of one download belong together."""
        page = self._json(f"/api/models/{repository}/revision/{name}")
        found = page.get("sha") if isinstance(page, dict) else None
        if not isinstance(found, str) or not _REVISION.fullmatch(found):
            raise DownloadError(f"the hub named no commit for {repository}")
        return found

    def files(self, repository: str, revision: str) -> tuple[RemoteFile, ...]:
        """The repository's GGUF files."""
        page = self._json(f"/api/models/{repository}/tree/{revision}?recursive=true")
        if not isinstance(page, list):
            raise DownloadError(f"the hub listed no files for {repository}")
        found = (_remote_file(entry) for entry in page[:FILES_MAX])
        return tuple(file for file in found if file is not None)

    def download(
        self, repository: str, revision: str, file: RemoteFile, target: Path, progress: Progress | None = None
    ) -> None:
        """Download one file to `target`, resuming an earlier attempt."""
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{revision[:12]}.part")
        _check_room(target.parent, file, part)
        with _locked(part) as output:
            try:
                self._fill(repository, revision, file, output, progress)
                found = _sha256(output)
            except OSError as error:
                raise DiskFullError(f"cannot write {file.name}: {_reason(error)}") from None
            if file.sha256 is not None and found != file.sha256:
                part.unlink(missing_ok=True)
                raise DigestMismatchError(f"{file.name} has the sha256 {found}, not {file.sha256}")
            put_in_place(part, target)

    def _fill(
        self, repository: str, revision: str, file: RemoteFile, output: IO[bytes], progress: Progress | None
    ) -> None:
        done = output.seek(0, os.SEEK_END)
        if done > file.size:
            done = 0
            output.truncate(0)
        if done == file.size:
            return
        path = f"/{repository}/resolve/{revision}/{urllib.parse.quote(file.path)}"
        with self._open(path, first_byte=done) as answer:
            if done and answer.status != http.client.PARTIAL_CONTENT:
                done = 0
                output.truncate(0)
            output.seek(done)
            while piece := _read(answer, min(PIECE_BYTES, file.size - done + 1)):
                done += len(piece)
                if done > file.size:
                    raise DownloadError(
                        f"{file.name} is longer than the {file.size} bytes that the hub announced"
                    )
                output.write(piece)
                if progress is not None:
                    progress(done, file.size)
        if done != file.size:
            raise DownloadError(f"{file.name} ended after {done} of {file.size} bytes")

    def _json(self, path: str) -> Any:
        with self._open(path) as answer:
            body = _read(answer, PAGE_BYTES_MAX + 1)
        if len(body) > PAGE_BYTES_MAX:
            raise DownloadError("the hub's answer is too long")
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise DownloadError("the hub's answer is not JSON") from None

    @contextlib.contextmanager
    def _open(self, path: str, *, first_byte: int = 0) -> Iterator[http.client.HTTPResponse]:
        address = urllib.parse.urlsplit(self.endpoint)
        if address.scheme not in {"http", "https"} or not address.netloc:
            raise DownloadError(
                f"{self.endpoint!r} is not the address of a hub", hint="give an https:// address"
            )
        request = urllib.request.Request(self.endpoint.rstrip("/") + path, headers={"User-Agent": "stretto"})  # noqa: S310
        if first_byte:
            request.add_header("Range", f"bytes={first_byte}-")
        if self.token is not None:  # not sent to the target of a redirect
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            answer = _opener().open(request, timeout=self.timeout_s)
        except urllib.error.HTTPError as error:
            error.close()
            raise _refusal(error.code, path) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise DownloadError(f"the hub does not answer: {_reason(error)}") from None
        with answer:
            if address.scheme == "https" and urllib.parse.urlsplit(answer.url).scheme != "https":
                raise DownloadError("the hub redirects from https to an unprotected address")
            yield answer


def choose(files: Sequence[RemoteFile], quant: str | None) -> tuple[RemoteFile, ...]:
    """The files of one model, with all shards: the requested type, or the preferred one."""
    models = [file for file in files if not file.name.lower().startswith(("mmproj", "imatrix"))]
    groups: dict[str, list[RemoteFile]] = {}
    for file in sorted(models, key=lambda file: file.path):
        groups.setdefault(SHARD.sub(".gguf", file.path), []).append(file)
    if not groups:
        raise ModelNotFoundError("the repository has no GGUF file", hint="choose a repository of GGUF files")
    wanted = [quant] if quant is not None else list(PREFERRED)
    for name in wanted:
        found = [group for path, group in groups.items() if _has_quant(path, name)]
        if found:
            return tuple(_whole(min(found, key=lambda group: len(group[0].path))))
    if quant is None:
        return tuple(_whole(min(groups.values(), key=lambda group: sum(file.size for file in group))))
    offered = sorted({match[1].upper() for path in groups if (match := _QUANT_IN_NAME.search(path))})
    raise ModelNotFoundError(
        f"the repository has no {quant} file", hint=f"it has {', '.join(offered) or 'no named types'}"
    )


_QUANT_IN_NAME = re.compile(r"[-.](I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32)(?=[-.])", re.IGNORECASE)


def quant_of(path: str) -> str | None:
    """The weight type in a file's name."""
    found = _QUANT_IN_NAME.findall(path)
    return found[-1].upper() if found else None


def _has_quant(path: str, name: str) -> bool:
    return quant_of(path) == name.upper()


def _whole(group: Sequence[RemoteFile]) -> Sequence[RemoteFile]:
    shard = SHARD.search(group[0].path)
    if shard is not None and len(group) != int(shard[2]):
        raise DownloadError(f"the hub has {len(group)} of {int(shard[2])} parts of {group[0].name}")
    return group


def _remote_file(entry: object) -> RemoteFile | None:
    """An entry of a listing, if it is a GGUF file with an acceptable name."""
    if not isinstance(entry, dict) or not isinstance(path := entry.get("path"), str):
        return None
    *folders, name = path.split("/")
    if not _FILE.fullmatch(name) or not all(_FOLDER.fullmatch(folder) for folder in folders):
        return None
    large = entry.get("lfs")
    size = entry.get("size")
    digest = large.get("oid") if isinstance(large, dict) else None
    if not isinstance(size, int) or not 0 < size < 1 << 45:
        return None
    if digest is not None and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise DownloadError(f"the hub's digest of {name} is not a sha256")
    return RemoteFile(path, size, digest)


def _check_room(folder: Path, file: RemoteFile, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    free = shutil.disk_usage(folder).free
    if file.size - have + DISK_BYTES_SPARE > free:
        raise DiskFullError(f"{file.name} needs {file.size - have:,} bytes, the disk has {free:,}")


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[IO[bytes]]:
    """The part file, locked by one process at a time."""
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.fstat(descriptor).st_ino == part.stat().st_ino  # else another process finished it
        except OSError:
            mine = False
        if not mine:
            raise DownloadError(f"{part.stem} is being downloaded by another process", hint="wait for it")
        yield file


def _sha256(file: IO[bytes]) -> str:
    file.flush()
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()


def _opener() -> urllib.request.OpenerDirector:
    """HTTP only: urllib's default opener would follow a redirect to ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _read(answer: http.client.HTTPResponse, count: int) -> bytes:
    try:
        return answer.read(count)
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(f"the connection broke: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(inner) or type(inner).__name__


def _refusal(code: int, path: str) -> Exception:
    if code in {401, 403}:
        return InvalidModelNameError(
            "the hub refuses this repository", hint="check the name; a private one needs a token"
        )
    if code == 404:
        return ModelNotFoundError(
            f"the hub does not know {path.partition('?')[0]}", hint="check the repository's name"
        )
    return DownloadError(f"the hub answered {code}")
