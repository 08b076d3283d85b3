"""A model's vocabulary: text to tokens and back, and which tokens end a text.

Implements `stretto.text.tokenizer.Tokenizer`. Thread-safe: llama.cpp's vocabulary is never written after
loading, every call has buffers of its own. Holds its model, so that the vocabulary cannot outlive it.
"""

from __future__ import annotations

import ctypes
import unicodedata
from collections.abc import Iterable
from typing import Any

from stretto.backends.llamacpp.library import Weights
from stretto.errors import InvalidRequestError, InvariantError

TEXT_BYTES_MAX = 1 << 28
_PIECE_BYTES = 64
_WORD_PIECE = 3  # LLAMA_VOCAB_TYPE_WPM


class Vocabulary:
    def __init__(self, lib: Any, weights: Weights) -> None:
        self._lib = lib
        self._weights = weights
        self._pointer = lib.llama_model_get_vocab(weights.handle)
        self._pieces: dict[int, bytes] = {}
        vocab = self._pointer
        size = int(lib.llama_vocab_n_tokens(vocab))
        self.vocab_size = size
        self.eos = frozenset(token for token in range(size) if lib.llama_vocab_is_eog(vocab, token))
        self._control = frozenset(token for token in range(size) if lib.llama_vocab_is_control(vocab, token))
        self.suppressed = self._read_suppressed()
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(self._vocab))
        self._strips_accents = int(lib.llama_vocab_type(vocab)) == _WORD_PIECE and _says_strip(lib, weights)

    @property
    def _vocab(self) -> Any:
        if self._weights.closed:
            raise InvariantError("the model was closed and its vocabulary is used all the same")
        return self._pointer

    @property
    def bos(self) -> int | None:
        token = int(self._lib.llama_vocab_bos(self._vocab))
        return token if token >= 0 else None

    def _read_suppressed(self) -> frozenset[int]:
        count = ctypes.c_int32(0)
        found = self._lib.llama_vocab_get_suppress_tokens(self._vocab, ctypes.byref(count))
        return frozenset(int(token) for token in found[: count.value]) if found else frozenset()

    def encode(self, text: str, special: bool) -> list[int]:
        """Tokens of a text, nothing added. Without `special` the names of control tokens are plain text."""
        if self._strips_accents and not text.isascii():
            text = _without_accents(text)
        raw = text.encode("utf-8", "replace")
        if len(raw) > TEXT_BYTES_MAX:
            raise InvalidRequestError(f"a text of {len(raw)} bytes is too long to tokenize")
        room = len(raw) + 8
        for _ in range(2):
            buffer = (ctypes.c_int32 * room)()
            count = int(
                self._lib.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, bool(special))
            )
            if count >= 0:
                return list(buffer[:count])
            room = -count
        raise InvalidRequestError("llama.cpp could not tokenize the text")

    def token_bytes(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def _read_piece(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise IndexError(f"token {token} is outside the vocabulary of {self.vocab_size}")
        room = _PIECE_BYTES
        for _ in range(2):
            buffer = ctypes.create_string_buffer(room)
            count = int(self._lib.llama_token_to_piece(self._vocab, token, buffer, room, 0, True))
            if count >= 0:
                return buffer.raw[:count]
            room = -count
        return b""

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The whole text of some tokens, control tokens left out."""
        parts = [self.token_bytes(token) for token in tokens if not self.is_control(token)]
        return b"".join(parts).decode("utf-8", "replace")

    def is_control(self, token: int) -> bool:
        return token in self._control


def _says_strip(lib: Any, weights: Weights) -> bool:
    """A cased vocabulary keeps its accents, unless the file says otherwise."""
    said = [
        _flag(lib, weights, f"tokenizer.ggml.normalizer.{name}") for name in ("strip_accents", "lowercase")
    ]
    return next((value for value in said if value is not None), True)


def _flag(lib: Any, weights: Weights, key: str) -> bool | None:
    buffer = ctypes.create_string_buffer(8)
    found = int(lib.llama_model_meta_val_str(weights.handle, key.encode(), buffer, len(buffer)))
    return buffer.value == b"true" if found > 0 else None


def _without_accents(text: str) -> str:
    """What a lower-casing WordPiece vocabulary wants. llama.cpp's own decomposition drops Korean vowels."""
    return "".join(part for part in unicodedata.normalize("NFD", text) if unicodedata.category(part) != "Mn")
