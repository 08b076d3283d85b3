"""Fixtures for model files: tiny models, a builder of small GGUFs, and a local hub."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stretto.testing import tiny_models
from stretto.testing.tiny_models import key_value

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="session")
def tiny() -> Callable[[str], Path]:
    return tiny_models.make


@pytest.fixture(scope="session")
def smollm2() -> Path:
    from stretto.model_files import bundled

    return bundled.source()


def tensor_info(name: str, dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    raw = name.encode()
    head = struct.pack("<Q", len(raw)) + raw + struct.pack("<I", len(dims))
    return head + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


class GgufBuilder:
    """Writes small GGUFs, valid or not."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "model.gguf"

    def __call__(
        self,
        keys: list[bytes] | None = None,
        tensors: list[bytes] | None = None,
        *,
        magic: bytes = b"GGUF",
        version: int = 3,
        counts: tuple[int, int] | None = None,
        data: int = 128,
        alignment: int = 32,
    ) -> Path:
        keys = [key_value("general.architecture", "llama")] if keys is None else keys
        tensors = [tensor_info("a")] if tensors is None else tensors
        counts = (len(tensors), len(keys)) if counts is None else counts
        head = magic + struct.pack("<IQQ", version, *counts) + b"".join([*keys, *tensors])
        self._path.write_bytes(head + b"\0" * (-len(head) % alignment) + b"\0" * data)
        return self._path


@pytest.fixture
def build(tmp_path: Path) -> GgufBuilder:
    return GgufBuilder(tmp_path)


class FakeHub:
    """A hub with one repository, `them/tiny-GGUF`, with faults set by the test."""

    repository = "them/tiny-GGUF"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.digests: dict[str, str] = {}
        self.cut_after: int | None = None
        self.ignore_range = False
        self.redirect_to: str | None = None
        self.status = 200
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def tree(self) -> list[dict[str, object]]:
        return [
            {
                "type": "file",
                "path": name,
                "size": len(body),
                "lfs": {"oid": self.digests.get(name, hashlib.sha256(body).hexdigest()), "size": len(body)},
            }
            for name, body in self.files.items()
        ]

    def answer(self, path: str) -> bytes | None:
        if path == f"/api/models/{self.repository}/revision/main":
            return json.dumps({"id": self.repository, "sha": REVISION}).encode()
        if path == f"/api/models/{self.repository}/tree/{REVISION}?recursive=true":
            return json.dumps(self.tree()).encode()
        return self.files.get(path.removeprefix(f"/{self.repository}/resolve/{REVISION}/"))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append((self.path, dict(self.headers)))
                body = hub.answer(self.path)
                is_file = "/resolve/" in self.path
                if hub.status != 200 or body is None:
                    self.send_error(hub.status if hub.status != 200 else 404)
                    return
                if is_file and hub.redirect_to is not None:
                    self.send_response(302)
                    self.send_header("Location", hub.redirect_to + self.path)
                    self.end_headers()
                    return
                start = 0
                if is_file and "Range" in self.headers and not hub.ignore_range:
                    start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                end = len(body)
                if is_file and hub.cut_after is not None:
                    end = start + hub.cut_after
                    self.close_connection = True
                self.wfile.write(body[start:end])

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        return Handler


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    server = FakeHub()
    yield server
    server.close()
