"""Tries to load a file with llama.cpp in a child process, and caches the result by the file's identity.

llama.cpp aborts on some damaged files, so a child process loads them first. Parent: `probe` and `require`.
Child: `python -m stretto.model_files.probe PATH`, the only code here that imports llama_cpp. It prints one
JSON line per stage (vocabulary, model, context, decode) and one with what llama.cpp reports about the model.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stretto.errors import ModelError, ModelRefusedError
from stretto.model_files import gguf, kind
from stretto.model_files.child import limit_self, run_child
from stretto.model_files.identity import FileIdentity

DECODE_BYTES_MAX = 4 << 30  # larger weights are mapped but not read
MEMORY_BYTES_EXTRA = 4 << 30
STACK_BYTES = 8 << 20  # llama.cpp checks each tensor in a thread of its own, all of them at once
STACKS_MAX = 1024  # a file that claims more tensors gets no more memory
TIMEOUT_S_MIN = 60.0
BYTES_PER_S = 100e6  # a slow disk
RESULTS_MAX = 512
CACHE_FILE = "probe.json"
TRIAL = 2  # 1: refused some good files on machines with many processors


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Whether the file loads; if so what llama.cpp reports, otherwise the stage and the reason."""

    loads: bool
    stage: str
    reason: str = ""
    hybrid: bool = False
    recurrent: bool = False
    window: int = 0
    vocabulary_size: int = 0
    decoded: bool = False
    seconds: float = 0.0
    cached: bool = False


def probe(
    path: Path | str,
    *,
    cache_dir: Path | None,
    timeout_s: float | None = None,
    decode: bool | None = None,
) -> ProbeResult:
    """Load the file in a child; an invalid header raises before that.

    `decode` runs one token through the weights (default: up to 4 GiB of them).
    """
    path = Path(os.path.abspath(path))
    file = gguf.read(path)
    identity = file.identity
    if decode is None:
        decode = identity.size <= DECODE_BYTES_MAX
    key = _key(identity, decode=decode)
    known = _cached_results(cache_dir).get(key) if cache_dir is not None else None
    if known is not None:
        return replace(known, cached=True)
    result, timed_out = _try_load(path, file, timeout_s, decode=decode)
    if FileIdentity.of(path) != identity:
        return replace(result, loads=False, reason="the file changed while it was tried")
    if cache_dir is not None and not timed_out:  # a time-out may be due to a busy machine
        _cache_result(cache_dir, key, result)
    return result


def require(
    path: Path | str,
    *,
    cache_dir: Path | None,
    timeout_s: float | None = None,
    decode: bool | None = None,
) -> ProbeResult:
    """Like `probe`, but raises if the file does not load."""
    result = probe(path, cache_dir=cache_dir, timeout_s=timeout_s, decode=decode)
    if not result.loads:
        raise ModelRefusedError(f"{path} does not load (stage {result.stage}): {result.reason}")
    return result


def _try_load(
    path: Path, file: gguf.GgufFile, timeout_s: float | None, *, decode: bool
) -> tuple[ProbeResult, bool]:
    size = file.identity.size
    limit_s = timeout_s if timeout_s is not None else TIMEOUT_S_MIN + size / BYTES_PER_S
    stages = ["start"]
    facts: dict[str, Any] = {}

    def on_line(line: str) -> None:
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict):
                stages.append(str(said.pop("stage", stages[-1])))
                facts.update(said)

    arguments = [
        str(path),
        "--memory-bytes",
        str(2 * size + MEMORY_BYTES_EXTRA + min(len(file.tensors), STACKS_MAX) * STACK_BYTES),
        "--cpu-s",
        str(int(limit_s) + 5),
    ]
    started = time.monotonic()
    end = run_child(
        __name__, [*arguments, *(["--decode"] if decode else [])], timeout_s=limit_s, on_line=on_line
    )
    seconds = round(time.monotonic() - started, 3)
    if end.code == 0 and not end.timed_out and stages[-1] == "done":
        return _result({"loads": True, "stage": "done", "seconds": seconds, **facts}), False
    return ProbeResult(loads=False, stage=stages[-1], reason=end.reason, seconds=seconds), end.timed_out


# ── cached results ───────────────────────────────────────────────────────────────────────────────


def _key(identity: FileIdentity, *, decode: bool) -> str:
    try:
        version = importlib.metadata.version("llama_cpp_python")
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(
            "llama-cpp-python is not installed", hint="pip install 'stretto[llamacpp]'"
        ) from None
    parts = (TRIAL, version, identity.device, identity.inode, identity.size, identity.mtime_ns, int(decode))
    return ":".join(map(str, parts))


def _result(fields: dict[str, Any]) -> ProbeResult:
    return ProbeResult(
        loads=bool(fields["loads"]),
        stage=str(fields["stage"]),
        reason=str(fields.get("reason", "")),
        hybrid=bool(fields.get("hybrid", False)),
        recurrent=bool(fields.get("recurrent", False)),
        window=int(fields.get("window", 0)),
        vocabulary_size=int(fields.get("vocabulary_size", 0)),
        decoded=bool(fields.get("decoded", False)),
        seconds=float(fields.get("seconds", 0.0)),
    )


def _cached_results(cache_dir: Path) -> dict[str, ProbeResult]:
    """Cached results; a damaged cache is treated as empty."""
    try:
        stored = json.loads((cache_dir / CACHE_FILE).read_bytes())
        return {str(key): _result(fields) for key, fields in stored.items()}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return {}


def _cache_result(cache_dir: Path, key: str, result: ProbeResult) -> None:
    cache_dir.mkdir(parents=True, exist_ok=True)
    results = _cached_results(cache_dir)
    results.pop(key, None)
    results[key] = result
    kept = list(results.items())[-RESULTS_MAX:]
    text = json.dumps({name: asdict(found) for name, found in kept}, indent=1)
    handle, part = tempfile.mkstemp(dir=cache_dir, prefix=CACHE_FILE)
    with open(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(part).replace(cache_dir / CACHE_FILE)


# ── the child ────────────────────────────────────────────────────────────────────────────────────


def _say(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _fail(text: str) -> None:
    sys.stderr.write(text + "\n")
    raise SystemExit(1)


def _load(path: str, *, decode: bool, generates: bool) -> None:
    import ctypes

    import llama_cpp as library

    def on_log(level: int, text: bytes, _: object) -> None:
        if level >= 4:  # GGML_LOG_LEVEL_ERROR
            sys.stderr.write(text.decode("utf-8", "replace"))

    callback = library.llama_log_callback(on_log)  # must outlive the library, which calls it
    library.llama_log_set(callback, ctypes.c_void_p())
    library.llama_backend_init()
    params = library.llama_model_default_params()
    no_devices = (ctypes.c_void_p * 1)()
    params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
    params.n_gpu_layers = 0
    params.use_extra_bufts = False  # no second copy of the weights
    params.load_mode = library.LLAMA_LOAD_MODE_MMAP if decode else library.LLAMA_LOAD_MODE_NONE
    _say(stage="vocabulary")
    params.vocab_only = True
    vocabulary = library.llama_model_load_from_file(path.encode(), params)
    if not vocabulary:
        _fail("llama.cpp refused the vocabulary")
    library.llama_model_free(vocabulary)
    _say(stage="model")
    params.vocab_only = False
    params.no_alloc = not decode
    params.check_tensors = decode
    model = library.llama_model_load_from_file(path.encode(), params)
    if not model:
        _fail("llama.cpp refused the model")
    _say(
        hybrid=library.llama_model_is_hybrid(model),
        recurrent=library.llama_model_is_recurrent(model),
        window=library.llama_model_n_swa(model),
        vocabulary_size=library.llama_vocab_n_tokens(library.llama_model_get_vocab(model)),
    )
    _use(library, model, decode=decode, generates=generates)


def _use(library: Any, model: Any, *, decode: bool, generates: bool) -> None:
    """Create the smallest possible context and run one token through it."""
    _say(stage="context")
    params = library.llama_context_default_params()
    params.n_ctx = 256
    params.n_batch = params.n_ubatch = 32
    params.n_threads = params.n_threads_batch = 1
    params.offload_kqv = params.op_offload = False
    params.embeddings = not generates
    context = library.llama_init_from_model(model, params)
    if not context:
        _fail("llama.cpp refused to make a context")
    if decode:
        _say(stage="decode")
        tokens = (library.llama_token * 1)(0)
        code = library.llama_decode(context, library.llama_batch_get_one(tokens, 1))
        if code != 0:
            _fail(f"llama_decode answered {code}")
    _say(stage="done", decoded=decode)


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a model once in this process and report the result.")
    parser.add_argument("path")
    parser.add_argument("--memory-bytes", type=int, default=16 << 30)
    parser.add_argument("--cpu-s", type=int, default=600)
    parser.add_argument("--decode", action="store_true")
    options = parser.parse_args()
    limit_self(memory_bytes=options.memory_bytes, cpu_s=options.cpu_s, file_bytes=16 << 20)
    try:
        generates = kind.shape_of(gguf.read(options.path)).generates
        _load(options.path, decode=options.decode, generates=generates)
    except ModelError as error:
        _fail(error.message)
    sys.stdout.flush()
    os._exit(0)  # the result is printed: skip teardown, which could crash


if __name__ == "__main__":
    main()
