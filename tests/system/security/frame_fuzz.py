"""Mutated frames against a real worker process: no crash, no hang, no memory growth.

`python -m tests.system.security.frame_fuzz --count 1000000` is the full size; `make test` runs 20,000. The
server reads every frame: a frame that closes the connection ends its group, and the next group reconnects.
After each group the server must have answered a probe or closed the connection within `HANG_S`.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stretto.errors import FrameError
from stretto.rpc import messages as m
from stretto.rpc.envelope import Call, Malformed, Reply, result_of
from stretto.rpc.frames import FrameDecoder, decode, encode
from tests.system.process.running import Worker, running
from tests.system.security.frame_mutator import Mutator

HANG_S = 20.0
GROUP = 64
GROWTH_BYTES_MAX = 48 << 20
FLAGS = {"context_window": 64, "cache": "none", "max_queue": 64, "runtime.frame_bytes_max": 1 << 20}


KINDS = ("bad length", "closed", "answered", "served")  # a run must produce all of these


class Attack:
    def __init__(self, worker: Worker, seed: int) -> None:
        self._worker = worker
        self._mutator = Mutator(seed)
        self.counts: Counter[str] = Counter()

    def run(self, count: int) -> None:
        while self.counts["frames"] < count:
            self._group(min(GROUP, count - self.counts["frames"]))

    def memory_bytes(self) -> int:
        with self._connected() as link:
            link.sendall(encode(Call("memory", "stats", m.Empty())))
            return int(result_of("stats", self._until(link, "memory")).memory_bytes)

    def _group(self, size: int) -> None:
        """Frames up to one that must close the connection; a probe if there is none."""
        frames: list[bytes] = []
        fatal = False
        while len(frames) < size and not fatal:
            frames.append(self._mutator.frame())
            fatal = self._closes(frames[-1])
        self.counts["frames"] += len(frames)
        self.counts["groups"] += 1
        with self._connected() as link:
            data = b"".join(frames) + (b"" if fatal else encode(Call("probe", "runtime/info", m.Empty())))
            try:
                link.sendall(data)
                self._until(link, None if fatal else "probe")
            except (ConnectionResetError, BrokenPipeError):
                if not fatal:
                    raise

    def _closes(self, frame: bytes) -> bool:
        """Whether the server must close: not a frame, part of a frame, more than one, or not a call."""
        if int.from_bytes(frame[:4], "big") != len(frame) - 4:
            self.counts["bad length"] += 1
            return True
        try:
            found = decode(frame[4:])
        except FrameError:
            self.counts["closed"] += 1
            return True
        self.counts["answered" if isinstance(found, Malformed) else "served"] += 1
        return not isinstance(found, Call | Malformed)

    def _connected(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(HANG_S)
        link.connect(str(self._worker.socket))
        return link

    def _until(self, link: socket.socket, call_id: str | None) -> Reply:
        """Read until the reply to `call_id`; None: until the server has closed, after we did."""
        if call_id is None:
            link.shutdown(socket.SHUT_WR)
        decoder = FrameDecoder()
        while data := link.recv(1 << 16):
            for envelope in decoder.feed(data):
                if isinstance(envelope, Reply) and envelope.id == call_id:
                    return envelope
        if call_id is not None:
            raise ConnectionResetError("closed before the answer")
        return Reply(0)


def attack(count: int, seed: int) -> dict[str, Any]:
    """Counts and figures of a run. Raises if the server crashes, hangs or closes instead of answering."""
    with running(**FLAGS) as worker:
        attacking = Attack(worker, seed)
        started_s = time.monotonic()
        attacking.run(count // 5)
        before = attacking.memory_bytes()
        attacking.run(count)
        after = attacking.memory_bytes()
        if worker.process.poll() is not None:
            raise AssertionError(f"the worker ended with {worker.process.returncode}")
        return {
            **attacking.counts,
            "seconds": round(time.monotonic() - started_s),
            "memory_bytes_before": before,
            "memory_bytes_after": after,
            "errors_logged": worker.stderr().count("Traceback"),
            "first_error": _first_error(worker.stderr()),
        }


def _first_error(log: str) -> str:
    """The last lines of the first traceback, for the report."""
    if "Traceback" not in log:
        return ""
    lines = log[log.index("Traceback") :].splitlines()
    end = next((n for n, line in enumerate(lines[1:], 1) if not line.startswith(" ")), len(lines) - 1)
    return "\n".join(lines[max(0, end - 3) : end + 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = attack(options.count, options.seed)
    known = found["memory_bytes_before"] > 0 and all(found.get(kind) for kind in KINDS)
    flat = known and found["memory_bytes_after"] - found["memory_bytes_before"] < GROWTH_BYTES_MAX
    print(json.dumps(found, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if flat and not found["errors_logged"] else 1


if __name__ == "__main__":
    sys.exit(main())
