"""Measures seconds from process start to the first token, with a cold and with a warm kernel cache.

    PYTHONPATH=src python benchmarks/gpu/startup.py --model qwen3-8b [--json FILE] [--check]

Random weights, a prompt of 512 tokens, then eight decode tokens, after the warm-up that a server does. The
cache is a temporary directory, so earlier runs have no effect. Bars of Qwen3-8B on an H200: 6 s warm, 40 s
cold, and nothing compiled or captured after the warm-up.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARM_S_MAX, COLD_S_MAX = 6.0, 40.0
MARK = "startup-result:"


def child(options: Any, started: float) -> int:
    """The fresh process. Seconds are counted from its start by the parent."""
    marks = {"python": time.time() - started}

    def mark(name: str) -> None:
        marks[name] = time.time() - started - sum(marks.values())

    import torch  # noqa: F401

    mark("import torch")
    from offline import OfflineLoop, find_shape, make_request, torch_options

    from stretto.backends.torch.loading import open_model

    mark("import stretto")
    opened = open_model(
        find_shape(options.model),
        torch_options(
            options,
            slots=16,
            window=2048,
            rows_max=2048,
        ),
    )
    mark("load")
    loop = OfflineLoop(opened.backend)
    run = loop.run([make_request("first", [3 + n % 400 for n in range(512)], 9, temperature=0.0)])
    mark("nine tokens")
    now_minus_clock = time.time() - time.perf_counter()
    times = [at + now_minus_clock - started for at in run.token_times["first"]]
    loop.run([make_request("second", [5 + n % 300 for n in range(512)], 9, temperature=0.0)])
    mark("nine tokens again")
    result = {
        "first_token_s": times[0],
        "ninth_token_s": times[-1],
        "parts_s": marks,
        "load_parts_s": opened.seconds,
        "late": opened.backend.late_work._asdict(),
    }
    print(MARK + json.dumps(result))
    return 0


def spawn(cache: str) -> dict[str, Any]:
    environment = {**os.environ, "TRITON_CACHE_DIR": cache}
    arguments = [sys.executable, *sys.argv, "--child", repr(time.time())]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        raise SystemExit(
            f"the child failed ({done.returncode}):\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
    found: dict[str, Any] = json.loads(lines[0].removeprefix(MARK))
    return found


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def main() -> int:
    began = time.time()
    sys.path.insert(0, str(Path(__file__).parent))
    if "--child" in sys.argv:  # its time is measured: import nothing before this check
        at = sys.argv.index("--child")
        started = float(sys.argv[at + 1])
        del sys.argv[at : at + 2]
        return child(_light_options(), started)
    from offline import finish, parser

    options = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="stretto-triton-") as cache:
        cold = spawn(cache)
        warm = min((spawn(cache) for _ in range(2)), key=lambda one: one["first_token_s"])
    result: dict[str, Any] = {
        "what": "seconds from process start to the first token",
        "model": options.model,
        "cold": rounded(cold),
        "warm": rounded(warm),
        "took_s": round(time.time() - began, 1),
    }
    import torch

    if torch.cuda.is_available() and options.model == "qwen3-8b":
        late = sum(sum(one["late"].values()) for one in (cold, warm))
        result["bars"] = {
            "warm, seconds to spare": (WARM_S_MAX - warm["first_token_s"], 0.0),
            "cold, seconds to spare": (COLD_S_MAX - cold["first_token_s"], 0.0),
            "nothing compiled or captured late": (-late, 0),
        }
    return finish(options, result)


def _light_options() -> Any:
    """The same flags, read without importing torch first."""
    import argparse

    made = argparse.ArgumentParser()
    made.add_argument("--model", default="qwen3-0.6b")
    made.add_argument("--device", default="auto")
    made.add_argument("--dtype", default="auto")
    made.add_argument("--page-tokens", type=int, default=32)
    made.add_argument("--threads", type=int, default=0)
    made.add_argument("--no-graphs", action="store_true")
    return made.parse_known_args()[0]


if __name__ == "__main__":
    sys.exit(main())
