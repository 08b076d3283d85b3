"""Which weight types are fast on which CPU, as measured, and what that means for a file.

The only figures here are ones that were measured, with what they were measured on. A CPU of another
architecture is told so in place of being promised the same.
"""

from __future__ import annotations

import platform
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ARM = ("aarch64", "arm64")
SOURCE = (
    "SmolLM2-135M-Instruct on the ARM machine that Stretto was measured on: prefill, and 16 slots at once"
)
CACHE_SOURCE = (
    "SmolLM2-135M Q4_0, Neoverse-N1, one thread, a 64-token chunk after 2,000: "
    "f16 837 ms, q8_0 2,316, bf16 5,913"
)
FAST = ("Q4_0", "Q8_0", "F16")
SLOW = ("Q4_1", "Q5_0", "Q5_1")
BEST = "Q4_0"


@dataclass(frozen=True, slots=True)
class Measured:
    """Tokens per second of one weight type."""

    type: str
    prefill: int
    decode_16_slots: int

    @property
    def is_fast(self) -> bool:
        return self.type in FAST


MEASURED = (Measured("Q4_1", 134, 123), Measured("Q8_0", 405, 333), Measured("Q4_0", 459, 369))


def measured_here() -> bool:
    """Whether the figures are from a CPU of this architecture."""
    return platform.machine().lower() in ARM


def rows() -> list[dict[str, Any]]:
    return [{**asdict(row), "fast": row.is_fast} for row in MEASURED]


def advice() -> list[str]:
    """What the figures say, in lines."""
    lines = [
        f"weight types with fast kernels: {', '.join(FAST)}; slow ones: {', '.join(SLOW)} (source: {SOURCE})",
        f"keep cache_type_k and cache_type_v at f16 on a CPU (source: {CACHE_SOURCE})",
    ]
    if not measured_here():
        lines.append(
            f"these were measured on ARM; this CPU is {platform.machine()}, where the order may differ: "
            "try a type with `stretto quantize` and `stretto run --stats`"
        )
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
    if type_name not in SLOW or not measured_here():
        return None
    rates = {row.type: row for row in MEASURED}
    slow, best = rates.get(type_name), rates[BEST]
    figures = f" ({slow.decode_16_slots} against {best.decode_16_slots} tok/s at 16 slots)" if slow else ""
    command = f"stretto quantize {name} {Path(name).stem}.{BEST}.gguf {BEST}"
    return f"{type_name} is slow on ARM CPUs{figures}: `{command}`"
