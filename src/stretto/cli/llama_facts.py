"""What llama.cpp says about its build, asked in a child process: a build for another CPU dies of an illegal
instruction, and `doctor` is the one command that must survive that.

Child: `python -m stretto.cli.llama_facts` prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

ASK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class LlamaFacts:
    """Features are llama.cpp's own names (AVX2, NEON, …); `problem` says why there are none."""

    version: str = ""
    features: tuple[str, ...] = ()
    gpu: bool = False
    problem: str = ""


def ask() -> LlamaFacts:
    from stretto.models.child import run_child

    lines: list[str] = []
    end = run_child(__name__, [], timeout_s=ASK_TIMEOUT_S, on_line=lines.append)
    try:
        said = json.loads(lines[-1])
        return LlamaFacts(said["version"], tuple(said["features"]), said["gpu"])
    except (LookupError, ValueError, TypeError):
        return LlamaFacts(problem=end.reason)


def _facts() -> dict[str, object]:
    import llama_cpp

    said = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    pairs = [part.rpartition(":")[2].split("=") for part in said.split("|") if "=" in part]
    features = [name.strip() for name, value in pairs if value.strip() not in {"0", ""}]
    return {
        "version": llama_cpp.__version__,
        "features": features,
        "gpu": bool(llama_cpp.llama_supports_gpu_offload()),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_facts()) + "\n")
