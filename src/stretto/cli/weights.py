"""Which weight types are fast: what `doctor` measured on this machine, and what that means for a file.

`show` and `pull` measure nothing. They name the types for which llama.cpp has no fast kernels on ARM, and
leave figures to `doctor`.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ARM = ("aarch64", "arm64")
SLOW_ON_ARM = ("Q4_1", "Q5_0", "Q5_1")
BEST_ON_ARM = "Q4_0"
FAST_SHARE = 0.5  # of the fastest type's rate, at 16 rows and at 256
CACHE_SHARE = 1.25  # of f16's time: a KV cache type that takes longer is advised against


def judged(measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was measured, with `fast`: at least half the rate of the fastest type with many rows."""
    best_16 = max((row["rows_16"] for row in measured), default=0.0)
    best_256 = max((row["rows_256"] for row in measured), default=0.0)
    return [
        {**row, "fast": row["rows_16"] >= FAST_SHARE * best_16 and row["rows_256"] >= FAST_SHARE * best_256}
        for row in measured
    ]


def advice(weights: Sequence[dict[str, Any]], caches: Sequence[dict[str, Any]]) -> list[str]:
    """What the figures of this machine say, in lines; none where nothing was measured."""
    lines: list[str] = []
    if weights:
        rows = judged(weights)
        fast, slow = ([row["type"] for row in rows if row["fast"] is flag] for flag in (True, False))
        lines.append(
            f"weight types with fast kernels here: {', '.join(fast)}; slower by half or more: "
            f"{', '.join(slow) or 'none'} (`stretto quantize` converts)"
        )
    times = {row["type"]: row["attention_ms"] for row in caches}
    slow_caches = [name for name, ms in times.items() if "f16" in times and ms > CACHE_SHARE * times["f16"]]
    if slow_caches:
        figures = ", ".join(f"{name} {times[name] / times['f16']:.1f} ×" for name in slow_caches)
        lines.append(f"keep cache_type_k and cache_type_v at f16: attention takes longer with {figures}")
    return lines


def main_type(path: Path) -> str | None:
    """The type that holds most of a file's bytes; None where the file cannot be read."""
    from stretto.errors import ModelError
    from stretto.model_files import gguf

    try:
        return type_of(gguf.read(path).tensors.values())
    except ModelError:
        return None


def type_of(tensors: Any) -> str | None:
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type.name.upper()] += tensor.size
    return sizes.most_common(1)[0][0] if sizes else None


def advice_for(type_name: str | None, name: str) -> str | None:
    """What to do about a file of a slow type; None where nothing is known against it."""
    if type_name not in SLOW_ON_ARM or platform.machine().lower() not in ARM:
        return None
    command = f"stretto quantize {name} {Path(name).stem}.{BEST_ON_ARM}.gguf {BEST_ON_ARM}"
    return f"llama.cpp has no fast kernels for {type_name} on ARM (`stretto doctor` measures it): `{command}`"
