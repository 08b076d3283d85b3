"""Fuzzes a running server with mutated pictures and sounds, beside a client that asks for text.

    python benchmarks/fuzz_media.py [--encoder simulated] [--count 2000] [--seed 1] [--quick] [--json FILE]
                                    [--check]

Every case is a chat request with a picture (PNG, JPEG, GIF, WebP, BMP) or a sound (WAV) with one to three
changes; some are good ones. A text neighbour asks the same question all the time. Each encoder has a server
of its own and all cases:

    simulated   the simulated backend, whose encoder takes whatever was decoded
    sees        the model of tests/models with its projector, in llama.cpp; it refuses sounds
    hears       a tiny gemma3 with random projectors for pictures and sounds, in llama.cpp

`--check` exits 1 if a request got no answer or one of 500 and above, the worker was replaced, or an answer of
the neighbour failed, changed, or took longer than 5 s. `--quick`: 200 cases.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fuzzed.media_files import mutated, seeds
from benchmarks.server_process import ServerProcess, conditions, memory_bytes
from stretto.testing import tiny_models, tiny_projectors

COUNT, QUICK = 2_000, 200
CONCURRENT = 4
ANSWER_S_MAX = 60.0
NEIGHBOUR_S_MAX = 5.0
SEES = Path(__file__).resolve().parent.parent / "tests" / "models" / "sees.gguf"
REAL = ("--n-seq-max", "6", "--context-window", "1024")
ENCODERS = ("simulated", "sees", "hears")


def flags(encoder: str) -> tuple[str, ...]:
    """Of the server whose encoder this is."""
    if encoder == "simulated":
        return ("--backend", "simulated", "--mmproj", "eyes", "--simulated-tick-ms", "2")
    if encoder == "sees":
        return (str(SEES), *REAL)
    model, projector = tiny_models.make("swa"), tiny_projectors.make(hears=True)
    return (str(model), "--mmproj", str(projector), *REAL)


@dataclass
class FoundMedia:
    encoder: str = ""
    cases: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    slowest_s: float = 0.0
    neighbour_answers: int = 0
    neighbour_failures: int = 0
    neighbour_changes: int = 0
    neighbour_slowest_s: float = 0.0
    same_worker: bool = True
    encoded: int = 0
    encode_s: float = 0.0
    worker_mb: tuple[float, float] = (0.0, 0.0)  # before and after
    cache_mb: float = 0.0  # of it, rows of media and prefixes that are kept on purpose
    seconds: float = 0.0

    def missed(self) -> list[str]:
        failed = sum(count for status, count in self.statuses.items() if status >= 500)
        bars = {
            f"{self.unanswered} requests had no answer": self.unanswered > 0,
            f"{failed} requests were answered with 500 or above": failed > 0,
            "the worker was replaced": not self.same_worker,
            f"the neighbour failed {self.neighbour_failures} times": self.neighbour_failures > 0,
            f"the neighbour's text changed {self.neighbour_changes} times": self.neighbour_changes > 0,
            f"the neighbour waited {self.neighbour_slowest_s:.1f} s": self.neighbour_slowest_s
            > NEIGHBOUR_S_MAX,
            "the neighbour was never served": not self.neighbour_answers,
            "no case was encoded": not self.encoded or not self.statuses[200],
            "no case was refused": not self.statuses[400],
        }
        return [f"{self.encoder}: {text}" for text, missed in bars.items() if missed]


def part(kind: str, data: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}}
    return {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}}


def asked(url: str, content: Any, tokens: int) -> tuple[int, dict[str, Any]]:
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
        "seed": 1,
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refusal:
        return refusal.code, json.load(refusal)


class _Neighbour:
    def __init__(self, url: str, found: FoundMedia) -> None:
        self._url, self._found = url, found
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._expected = self._text()
        self._thread.start()

    def _text(self) -> str:
        status, reply = asked(self._url, "Count from 3 to 12.", 32)
        if status != 200:
            raise RuntimeError(f"the neighbour got {status}")
        return str(reply["choices"][0]["message"]["content"])

    def _run(self) -> None:
        found = self._found
        while not self._over.wait(0.05):
            started_s = time.monotonic()
            try:
                found.neighbour_changes += self._text() != self._expected
                found.neighbour_answers += 1
            except (OSError, RuntimeError, ValueError):
                found.neighbour_failures += 1
            found.neighbour_slowest_s = max(found.neighbour_slowest_s, time.monotonic() - started_s)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(ANSWER_S_MAX)


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=ANSWER_S_MAX) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def fuzz(count: int, seed: int, encoder: str = "simulated") -> FoundMedia:
    found, lock = FoundMedia(encoder, cases=count), threading.Lock()
    good = seeds()
    others = [data for _, data in good]

    def one(number: int) -> None:
        random = Random(f"{seed}/{number}")
        kind, data = random.choice(good)
        if random.random() > 0.05:
            data = mutated(data, others, random)
        started_s = time.monotonic()
        try:
            status, reply = asked(server.url, [{"type": "text", "text": "Look:"}, part(kind, data)], 2)
        except (OSError, ValueError):
            status, reply = 0, {}
        with lock:
            found.slowest_s = max(found.slowest_s, time.monotonic() - started_s)
            found.unanswered += status == 0
            found.statuses[status] += 1
            if status >= 400:
                found.reasons[f"{status} {reply.get('error', {}).get('message', '')[:60]}"] += 1

    with ServerProcess(*flags(encoder)) as server:
        worker = server.worker_pid()
        asked(server.url, [{"type": "text", "text": "Look:"}, part(*good[0])], 2)  # starts the decoder
        before, started_s = memory_bytes(worker), time.monotonic()
        neighbour = _Neighbour(server.url, found)
        with ThreadPoolExecutor(CONCURRENT) as pool:
            list(pool.map(one, range(count)))
        neighbour.stop()
        found.seconds = round(time.monotonic() - started_s, 1)
        found.same_worker = server.worker_pid() == worker
        found.encoded = int(metric(server.url, "stretto_media_encoded_total"))
        found.encode_s = round(metric(server.url, "stretto_media_encode_seconds_total"), 2)
        kept = ("stretto_media_cache_bytes", "stretto_prefix_cache_bytes")
        found.cache_mb = round(sum(metric(server.url, name) for name in kept) / 1e6, 1)
        found.worker_mb = (round(before / 1e6, 1), round(memory_bytes(worker) / 1e6, 1))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encoder", choices=ENCODERS, action="append")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    count = QUICK if given.quick else given.count
    runs = [fuzz(count, given.seed, encoder) for encoder in given.encoder or ENCODERS]
    missed = [text for found in runs for text in found.missed()]
    report = {"runs": [_shown(found) for found in runs], "conditions": conditions(), "missed": missed}
    print(json.dumps(report, indent=2))
    if given.json:
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    return 1 if given.check and missed else 0


def _shown(found: FoundMedia) -> dict[str, Any]:
    return {
        **asdict(found),
        "statuses": {str(status): count for status, count in sorted(found.statuses.items())},
        "reasons": dict(found.reasons.most_common(20)),
    }


if __name__ == "__main__":
    sys.exit(main())
