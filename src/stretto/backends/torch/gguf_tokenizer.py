"""A tokenizer from the metadata of a GGUF file, for byte-level BPE vocabularies with known pre-tokenizers.

Builds the JSON that `tokenizers` reads and passes it to `HfTokenizer`. Other vocabularies are rejected.
"""

from __future__ import annotations

import json
from typing import Any

from stretto.backends.torch.tokenizer import HfTokenizer
from stretto.errors import ModelFileError, UnsupportedModelError
from stretto.model_files.gguf import GgufFile, LazyArray

CONTROL, USER_DEFINED = 3, 4
ENDS = ("eos", "eot", "eom")
ENDING_NAMES = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "</s>",
    "<reponame>",
    "<|file_sep|>",
    "<|repo_name|>",
)  # control tokens that llama.cpp also treats as the end
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, words: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words}


def _split(numbers: str) -> dict[str, Any]:
    pattern = {"Regex": _WORDS + numbers + _REST}
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_byte_level(words=True)],
    "smollm": [{"type": "Digits", "individual_digits": True}, _byte_level(words=True)],
    "qwen2": [_split(r"\p{N}"), _byte_level(words=False)],
    "llama-bpe": [_split(r"\p{N}{1,3}"), _byte_level(words=False)],
}


def gguf_tokenizer(file: GgufFile, *, vocab: int) -> HfTokenizer:
    kind, pre = (file.metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if kind != "gpt2" or pre not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"the torch backend does not support the GGUF vocabulary {kind}/{pre}",
            hint="use the model's safetensors, or leave out backend: torch",
        )
    words, types = _items(file, "tokens"), _items(file, "token_type")
    source = json.dumps(_tree(words, types, _items(file, "merges"), PRE_TOKENIZERS[str(pre)]))
    ids = {
        f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in (*ENDS, "bos")
    }
    eos = {token for name in ENDS if isinstance(token := ids[f"{name}_token_id"], int)}
    eos |= {token for token, word in enumerate(words) if word in ENDING_NAMES and types[token] == CONTROL}
    bos = ids["bos_token_id"]
    adds = file.metadata.get("tokenizer.ggml.add_bos_token", False)
    return HfTokenizer(
        source,
        vocab=vocab,
        bos=bos if isinstance(bos, int) else None,
        eos=frozenset(eos),
        adds_bos=adds is True and isinstance(bos, int),
    )


def _items(file: GgufFile, name: str) -> tuple[Any, ...]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if isinstance(value, LazyArray):
        return value.read()
    if not isinstance(value, tuple):
        raise ModelFileError(f"{file.path} has no tokenizer.ggml.{name}")
    return value


def _tree(
    words: tuple[str, ...], types: tuple[int, ...], merges: tuple[str, ...], pre: list[dict[str, Any]]
) -> dict[str, Any]:
    added = [
        {
            "id": token,
            "content": words[token],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == CONTROL,
        }
        for token, kind in enumerate(types)
        if kind in (CONTROL, USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {word: token for token, word in enumerate(words)},
            "merges": [merge.split(" ", 1) for merge in merges],
            "ignore_merges": False,
        },
    }
