"""llama.cpp's build features and speed on this machine, queried in a child process: a build for another CPU
dies of an illegal instruction, which `doctor` must survive.

Child: `python -m stretto.cli.llama_facts CACHE_DIR MEASURE_S THREADS` prints a line of JSON with the facts,
then one for each type that it measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ASK_TIMEOUT_S = 60.0
MEASURED_MAX = 16  # upper bound on the number of measured types


@dataclass(frozen=True, slots=True)
class LlamaFacts:
    """Features are llama.cpp's own names (AVX2, NEON, …); `problem` says why there are none.

    `kernels_not_ours`: why llama.cpp's kernels compute and not ours; empty where ours do. `weights` and
    `caches`: what was measured, one entry for each type; `problem_measuring` says why some are missing.
    """

    version: str = ""
    features: tuple[str, ...] = ()
    gpu: bool = False
    kernels_not_ours: str = ""
    media: bool = False  # libmtmd is there: models with a projector take pictures and sounds
    problem: str = ""
    weights: tuple[dict[str, Any], ...] = ()
    caches: tuple[dict[str, Any], ...] = ()
    problem_measuring: str = ""


def ask(
    cache_dir: Path, *, measure_s: float = 0.0, threads: int = 1, on_line: Callable[[], None] | None = None
) -> LlamaFacts:
    """`measure_s`: seconds for each weight type; 0: none. `on_line` is called as results arrive."""
    from stretto.model_files.child import run_child

    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        if on_line is not None:
            on_line()

    arguments = [str(cache_dir), str(measure_s), str(threads)]
    timeout_s = ASK_TIMEOUT_S + 2 * MEASURED_MAX * measure_s
    end = run_child(__name__, arguments, timeout_s=timeout_s, on_line=take)
    try:
        said = json.loads(lines[0])
        facts = said["version"], tuple(said["features"]), said["gpu"], said["kernels_not_ours"], said["media"]
        measured = [json.loads(line) for line in lines[1:]]
        weights = tuple(row["weight"] for row in measured if "weight" in row)
        caches = tuple(row["cache"] for row in measured if "cache" in row)
        return LlamaFacts(
            *facts, weights=weights, caches=caches, problem_measuring=end.reason if end.code else ""
        )
    except (LookupError, ValueError, TypeError):
        return LlamaFacts(problem=end.reason)


def _facts(cache_dir: Path) -> dict[str, object]:
    from stretto.backends.llamacpp.kernels.interpose import install
    from stretto.backends.llamacpp.native.library import library
    from stretto.backends.llamacpp.native.mtmd import is_there

    kernels_not_ours = install(cache_dir)  # before llama.cpp is loaded
    llama_cpp = library()
    said = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    pairs = [part.rpartition(":")[2].split("=") for part in said.split("|") if "=" in part]
    features = [name.strip() for name, value in pairs if value.strip() not in {"0", ""}]
    return {
        "version": llama_cpp.__version__,
        "features": features,
        "gpu": bool(llama_cpp.llama_supports_gpu_offload()),
        "kernels_not_ours": kernels_not_ours,
        "media": is_there(),
    }


def _measured(measure_s: float, threads: int) -> Iterator[dict[str, object]]:
    from stretto.backends.llamacpp.kernels import speed

    for weight in speed.weight_speeds(seconds=measure_s, threads=threads):
        yield {"weight": asdict(weight)}
    for name, milliseconds in speed.cache_speeds(seconds=measure_s / 3, threads=threads):
        yield {"cache": {"type": name, "attention_ms": milliseconds}}


def main(cache_dir: Path, measure_s: float, threads: int) -> None:
    print(json.dumps(_facts(cache_dir)), flush=True)
    if measure_s > 0:
        for row in _measured(measure_s, threads):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
