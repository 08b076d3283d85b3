"""The tensor types of ggml: elements and bytes per block.

The sizes are ggml's own (0.25.3): gguf-py gives q8_1 40 bytes, ggml stores it in 36; no file uses that type.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorType:
    name: str
    number: int
    block_elements: int
    block_bytes: int


def _types(*rows: tuple[str, int, int, int]) -> dict[int, TensorType]:
    return {number: TensorType(name, number, elements, size) for name, number, elements, size in rows}


BY_NUMBER = _types(
    ("f32", 0, 1, 4),
    ("f16", 1, 1, 2),
    ("q4_0", 2, 32, 18),
    ("q4_1", 3, 32, 20),
    ("q5_0", 6, 32, 22),
    ("q5_1", 7, 32, 24),
    ("q8_0", 8, 32, 34),
    ("q8_1", 9, 32, 36),
    ("q2_k", 10, 256, 84),
    ("q3_k", 11, 256, 110),
    ("q4_k", 12, 256, 144),
    ("q5_k", 13, 256, 176),
    ("q6_k", 14, 256, 210),
    ("q8_k", 15, 256, 292),
    ("iq2_xxs", 16, 256, 66),
    ("iq2_xs", 17, 256, 74),
    ("iq3_xxs", 18, 256, 98),
    ("iq1_s", 19, 256, 50),
    ("iq4_nl", 20, 32, 18),
    ("iq3_s", 21, 256, 110),
    ("iq2_s", 22, 256, 82),
    ("iq4_xs", 23, 256, 136),
    ("i8", 24, 1, 1),
    ("i16", 25, 1, 2),
    ("i32", 26, 1, 4),
    ("i64", 27, 1, 8),
    ("f64", 28, 1, 8),
    ("iq1_m", 29, 256, 56),
    ("bf16", 30, 1, 2),
    ("tq1_0", 34, 256, 54),
    ("tq2_0", 35, 256, 66),
    ("mxfp4", 39, 32, 17),
    ("nvfp4", 40, 64, 36),
    ("q1_0", 41, 128, 18),
    ("q2_0", 42, 64, 18),
)
BY_NAME = {tensor_type.name: tensor_type for tensor_type in BY_NUMBER.values()}


def row_bytes(tensor_type: TensorType, elements: int) -> int:
    """The bytes of one row, which consists of whole blocks."""
    return -(-elements // tensor_type.block_elements) * tensor_type.block_bytes
