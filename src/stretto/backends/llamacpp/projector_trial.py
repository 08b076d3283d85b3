"""Tries a projector in a child process before this one loads it: what kills the child would have killed us.

Child: `python -m stretto.backends.llamacpp.projector_trial MODEL PROJECTOR PACKED MEMORY`. It loads the model
without its weights, then the projector, and encodes a small picture and a short sound. Results are kept by
the identity of both files and of llama.cpp's build.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from array import array
from pathlib import Path

from stretto.backends.llamacpp.kernels.support import build_of_llama_cpp, installed_version
from stretto.errors import ModelRefusedError, StrettoError
from stretto.model_files.child import limit_self, run_child
from stretto.model_files.identity import FileIdentity

MEMORY_BYTES_EXTRA = 8 << 30
TIMEOUT_S = 300.0
SIDE = 96  # pixels of the picture
KEPT_MAX = 256
CACHE_FILE = "projectors.json"


def require(model: Path, projector: Path, *, cache_dir: Path | None, packed: bool) -> None:
    """Raises ModelRefusedError where the child dies or the projector does not fit the model."""
    key = f"{_key(model, projector)}:{'packed' if packed else 'plain'}"
    known = _known(cache_dir)
    if key in known:
        return
    size = projector.stat().st_size + model.stat().st_size
    arguments = [str(model), str(projector), str(int(packed)), str(2 * size + MEMORY_BYTES_EXTRA)]
    end = run_child(__name__, arguments, timeout_s=TIMEOUT_S, on_line=lambda _: None)
    if end.code != 0 or end.timed_out:
        raise ModelRefusedError(
            f"{projector} does not load: {end.reason}", hint="is it this model's projector?"
        )
    if cache_dir is not None:
        cache_dir.mkdir(parents=True, exist_ok=True)
        part = cache_dir / f"{CACHE_FILE}.{os.getpid()}"
        part.write_text(json.dumps([*known, key][-KEPT_MAX:]), encoding="utf-8")
        part.replace(cache_dir / CACHE_FILE)


def _key(model: Path, projector: Path) -> str:
    files = [FileIdentity.of(path) for path in (model, projector)]
    parts = [part for one in files for part in (one.device, one.inode, one.size, one.mtime_ns)]
    return ":".join(map(str, (installed_version(), build_of_llama_cpp(), *parts)))


def _known(cache_dir: Path | None) -> list[str]:
    try:
        found = json.loads((cache_dir / CACHE_FILE).read_bytes()) if cache_dir is not None else []
        return [key for key in found if isinstance(key, str)] if isinstance(found, list) else []
    except (OSError, ValueError):
        return []


# ── the child ────────────────────────────────────────────────────────────────────────────────────


def _try(model: str, projector: str, *, packed: bool) -> None:
    from stretto.backends.llamacpp.native.library import Weights, claim_process, library
    from stretto.backends.llamacpp.projector import Projector
    from stretto.backends.media import MediaPart, Medium, Picture, Sound

    claim_process()
    lib = library()
    params = lib.llama_model_default_params()
    no_devices = (ctypes.c_void_p * 1)()
    params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
    params.n_gpu_layers = 0
    params.use_extra_bufts = False
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE
    params.no_alloc = True
    handle = lib.llama_model_load_from_file(os.fsencode(model), params)
    if not handle:
        raise ModelRefusedError("llama.cpp refused the model")
    made = Projector(Weights(lib, handle), Path(projector), n_threads=1, packed=packed)
    media: list[Medium] = []
    if "image" in made.kinds:
        media.append(Picture(SIDE, SIDE, bytes(range(256)) * (3 * SIDE * SIDE // 256)))
    if "audio" in made.kinds:
        media.append(Sound(made.sample_rate, array("f", bytes(4 * made.sample_rate))))
    for medium in media:
        parts = [part for part in made.expand(medium) if isinstance(part, MediaPart)]
        failed = next((found for found in made.encode(parts) if isinstance(found, StrettoError)), None)
        if failed is not None:
            raise failed


def main() -> None:
    model, projector, packed, memory_bytes = sys.argv[1:5]
    limit_self(memory_bytes=int(memory_bytes), cpu_s=int(TIMEOUT_S) + 5, file_bytes=16 << 20)
    try:
        _try(model, projector, packed=packed == "1")
    except StrettoError as error:
        sys.stderr.write(error.message + "\n")
        raise SystemExit(1) from None
    os._exit(0)  # skip teardown, which could crash


if __name__ == "__main__":
    main()
