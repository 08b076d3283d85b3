"""What llama.cpp says about its build, asked in a child process: a build for another CPU dies of an illegal
instruction, and `doctor` is the one command that must survive that.

Child: `python -m stretto.cli.llama_facts CACHE_DIR` prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

ASK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class LlamaFacts:
    """Features are llama.cpp's own names (AVX2, NEON, …); `problem` says why there are none.

    `kernels_not_ours`: why llama.cpp's kernels compute and not ours; empty where ours do.
    """

    version: str = ""
    features: tuple[str, ...] = ()
    gpu: bool = False
    kernels_not_ours: str = ""
    problem: str = ""


def ask(cache_dir: Path) -> LlamaFacts:
    from stretto.model_files.child import run_child

    lines: list[str] = []
    end = run_child(__name__, [str(cache_dir)], timeout_s=ASK_TIMEOUT_S, on_line=lines.append)
    try:
        said = json.loads(lines[-1])
        return LlamaFacts(said["version"], tuple(said["features"]), said["gpu"], said["kernels_not_ours"])
    except (LookupError, ValueError, TypeError):
        return LlamaFacts(problem=end.reason)


def _facts(cache_dir: Path) -> dict[str, object]:
    from stretto.backends.llamacpp.kernels.interpose import install

    kernels_not_ours = install(cache_dir)  # before llama.cpp is loaded
    import llama_cpp

    said = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    pairs = [part.rpartition(":")[2].split("=") for part in said.split("|") if "=" in part]
    features = [name.strip() for name, value in pairs if value.strip() not in {"0", ""}]
    return {
        "version": llama_cpp.__version__,
        "features": features,
        "gpu": bool(llama_cpp.llama_supports_gpu_offload()),
        "kernels_not_ours": kernels_not_ours,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_facts(Path(sys.argv[1]))) + "\n")
