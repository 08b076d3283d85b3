"""The processor families that we have kernels for: what they need, and what is compiled. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

HALF_PRECISION = "asimdhp"
ROWS_ALL = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorFamily:
    """`originals`: functions of ours that take the addresses of llama.cpp's, by name, and of which."""

    name: str
    machine: str  # as `platform.machine` calls it
    needed: frozenset[str]  # features of the processor
    better: frozenset[str] = frozenset()  # llama.cpp has better kernels for these
    built_with: tuple[bytes, ...] = ()  # in llama.cpp's own words, without which ours would not be called
    attention_heads: tuple[int, ...]  # head sizes of our attention
    attention_rows_max: int  # rows of a sequence in a pass, beyond which llama.cpp's attention computes
    same_bits: bool  # as llama.cpp's kernels give for a single row
    sources: tuple[str, ...]
    headers: tuple[str, ...]
    flags: tuple[str, ...]
    originals: Mapping[str, tuple[str, ...]] = field(hash=False)

    def suits(self, machine: str, features: frozenset[str]) -> bool:
        return machine == self.machine and features >= self.needed and not features & self.better


# No contraction of sums: fusing multiply and add changes the last bit.
_FLAGS = ("-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fPIC")
_ATTENTION = ("ggml_compute_forward_flash_attn_ext",)

ARM = ProcessorFamily(
    name="arm",
    machine="aarch64",
    needed=frozenset({"asimddp", HALF_PRECISION}),  # dot products, 16-bit arithmetic
    better=frozenset({"i8mm", "sve"}),
    built_with=(b"DOTPROD = 1", b"FP16_VA = 1", b"REPACK = 1"),  # else llama.cpp does not repack weights
    attention_heads=(64, 128),
    attention_rows_max=63,
    same_bits=True,
    sources=("gemm.c", "few_rows.c", "attention.c", "tile_attention.c", "elementwise.c"),
    headers=("interpose.h", "tensors.h", "weights.h"),
    flags=(*_FLAGS, "-O3", "-march=armv8.2-a+dotprod+fp16"),
    originals={
        "stretto_original_matrices": (
            "ggml_gemm_q4_0_4x4_q8_0",
            "ggml_gemm_q8_0_4x4_q8_0",
            "ggml_quantize_mat_q8_0_4x4",
            "ggml_cpu_fp32_to_fp16",
        ),
        "stretto_original_products": (
            "ggml_cpu_extra_compute_forward",
            "quantize_row_q8_0",
            "ggml_backend_buffer_get_type",
            "ggml_barrier",
            "ggml_threadpool_chunk_set",
            "ggml_threadpool_chunk_add",
        ),
        "stretto_original_attention": _ATTENTION,
        "stretto_original_elementwise": (
            "ggml_compute_forward_unary",
            "ggml_compute_forward_cpy",
            "ggml_table_gelu_f16",
            "ggml_table_gelu_quick_f16",
        ),
    },
)

_X86 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mfma", "-mf16c", "-mbmi")

X86 = ProcessorFamily(
    name="x86",
    machine="x86_64",
    needed=frozenset({"avx512f", "avx512bw", "avx512vl", "fma", "f16c", "bmi1"}),
    attention_heads=tuple(range(16, 257, 16)),
    attention_rows_max=ROWS_ALL,
    same_bits=False,
    sources=("x86_attention.c",),
    headers=("interpose.h", "tensors.h"),
    flags=(*_FLAGS, *_X86, "-O3"),
    originals={"stretto_original_attention": _ATTENTION},
)

X86_VNNI = replace(
    X86,
    name="x86-vnni",
    needed=X86.needed | {"avx512_vnni"},
    sources=(*X86.sources, "x86_products.c", "x86_few_rows.c", "x86_tiles.c"),
    headers=(*X86.headers, "x86_products.h", "x86_weights.h"),
    flags=(*_FLAGS, *_X86, "-O1", "-mavx512vnni"),  # a few percent slower than -O2, compiled in half the time
    originals={
        **X86.originals,
        "stretto_original_products": (
            "ggml_cpu_extra_compute_forward",
            "ggml_backend_buffer_get_type",
            "ggml_backend_buffer_is_host",
            "ggml_barrier",
            "ggml_threadpool_chunk_set",
            "ggml_threadpool_chunk_add",
        ),
    },
)

FAMILIES = (ARM, X86_VNNI, X86)  # the first that suits computes


def family_of(system: str, machine: str, features: frozenset[str]) -> ProcessorFamily | None:
    """None: there are no kernels for this processor."""
    if system != "Linux":
        return None
    return next((one for one in FAMILIES if one.suits(machine, features)), None)
