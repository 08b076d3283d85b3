"""A vocabulary from `tokenizer.json`, through `tokenizers`, and the chat template beside it.

Implements `stretto.text.tokenizer.Tokenizer`. Thread-safe: has two immutable tokenizers, one that recognizes
the names of control tokens and one that treats them as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto.backends.torch.config import ids_of, read_json
from stretto.errors import BrokenTemplateError, InvalidRequestError, ModelFileError

TEXT_BYTES_MAX = 1 << 28
TEMPLATE_BYTES_MAX = 1 << 20
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class HfTokenizer:
    """Built from a tokenizer's JSON. `vocab` is the width of the model's logits, which may be larger."""

    def __init__(
        self, source: str, *, vocab: int, bos: int | None, eos: frozenset[int], adds_bos: bool | None = None
    ) -> None:
        self._special = _parse(source)
        self._plain = _parse(source)
        self._plain.encode_special_tokens = True  # treats control token names as text
        added = self._special.get_added_tokens_decoder()
        self._added: dict[int, str] = {token: entry.content for token, entry in added.items()}
        self._control = frozenset(token for token, entry in added.items() if entry.special)
        self._bytes = _piece_reader(json.loads(source))
        self._pieces: dict[int, bytes] = {}
        self.vocab_size = vocab
        self.bos = bos
        self.eos = frozenset(token for token in eos if 0 <= token < vocab)
        if adds_bos is None:
            first = self._special.encode("", add_special_tokens=True).ids[:1]
            adds_bos = bos is not None and first == [bos]
        self.adds_bos = adds_bos

    def encode(self, text: str, special: bool) -> list[int]:
        if len(text) > TEXT_BYTES_MAX // 4:
            raise InvalidRequestError(f"a text of {len(text)} characters is too long to tokenize")
        text = text.encode("utf-8", "replace").decode("utf-8")
        chosen = self._special if special else self._plain
        ids: list[int] = chosen.encode(text, add_special_tokens=False).ids
        return ids

    def token_bytes(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read(token)
        return piece

    def _read(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise IndexError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        if token in self._added:
            return self._added[token].encode()
        text: str | None = self._special.id_to_token(token)
        return b"" if text is None else self._bytes(text)  # logits may be wider than the vocabulary

    def is_control(self, token: int) -> bool:
        return token in self._control


def _parse(source: str) -> Any:
    import tokenizers

    try:
        made = tokenizers.Tokenizer.from_str(source)
    except Exception as error:  # the library raises plain Exception
        raise ModelFileError(f"the tokenizer cannot be read: {error}") from None
    made.no_truncation()
    made.no_padding()
    return made


def _piece_reader(tree: dict[str, Any]) -> Callable[[str], bytes]:
    """Decodes a piece of the vocabulary: GPT-2's byte alphabet or SentencePiece."""
    if "ByteLevel" in json.dumps([tree.get("pre_tokenizer"), tree.get("decoder")]):
        table = _byte_alphabet()
        return lambda text: b"".join(
            bytes([table[letter]]) if letter in table else letter.encode() for letter in text
        )

    def sentence_piece(text: str) -> bytes:
        byte = _BYTE.fullmatch(text)
        return bytes([int(byte[1], 16)]) if byte else text.replace("▁", " ").encode()

    return sentence_piece


def _byte_alphabet() -> dict[str, int]:
    """GPT-2 writes printable bytes as themselves and the others as characters from 256 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + at): byte for at, byte in enumerate(hidden)}


# ── a Hugging Face folder ───────────────────────────────────────────────────────────────────────


def read_tokenizer(folder: Path, *, vocab: int, bos: int | None, eos: frozenset[int]) -> HfTokenizer | None:
    """None if the folder has no `tokenizer.json`: such a model accepts token ids only."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    config = _optional(folder / "tokenizer_config.json")
    generation = _optional(folder / "generation_config.json")
    source = path.read_text(encoding="utf-8")
    made = HfTokenizer(source, vocab=vocab, bos=bos, eos=eos | ids_of(generation.get("eos_token_id")))
    named = {name: _named(made, config.get(f"{name}_token")) for name in ("bos", "eos")}
    made.bos = named["bos"] if named["bos"] is not None else bos
    made.eos |= frozenset() if named["eos"] is None else frozenset({named["eos"]})
    if isinstance(config.get("add_bos_token"), bool):
        made.adds_bos = config["add_bos_token"] and made.bos is not None
    return made


def read_template(folder: Path) -> str | None:
    """`chat_template.jinja`, or the entry in `tokenizer_config.json` (of several, the one named default)."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        if path.stat().st_size > TEMPLATE_BYTES_MAX:
            raise BrokenTemplateError(f"{path} is longer than {TEMPLATE_BYTES_MAX >> 10} KiB")
        return path.read_text(encoding="utf-8")
    found = _optional(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _named(tokenizer: HfTokenizer, token: Any) -> int | None:
    """A token's id by its name, which may be wrapped in an object."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return None
    ids = tokenizer.encode(text, True)
    return ids[0] if len(ids) == 1 else None
