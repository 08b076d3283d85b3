"""A model's vocabulary: text to tokens and back, and which tokens end a text.

Implements `stretto.text.tokenizer.Tokenizer`. Thread-safe: llama.cpp's vocabulary is never written after
loading, and every call has its own buffers. References its model, so that it cannot outlive it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from stretto.backends.llamacpp.native.library import Weights
from stretto.errors import InvalidRequestError, ShuttingDownError
from stretto.text.wordpiece import WordPiece

TEXT_BYTES_MAX = 1 << 28
_PIECE_BYTES = 64
_WORD_PIECE = 3  # LLAMA_VOCAB_TYPE_WPM
_SENTENCE_PIECE, _BYTE_PAIRS = 1, 2  # LLAMA_VOCAB_TYPE_SPM, _BPE
_STRIPS = 128 | 256  # LLAMA_TOKEN_ATTR_LSTRIP, _RSTRIP
_UNKNOWN_DEFAULT = 100  # llama.cpp's own for such vocabularies


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
        self._is_word_piece = int(lib.llama_vocab_type(vocab)) == _WORD_PIECE

    @property
    def _vocab(self) -> Any:
        if self._weights.closed:
            raise ShuttingDownError("the model is closed")
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
        """Tokens of a text, without BOS or EOS. Without `special`, names of control tokens are plain text."""
        if self._is_word_piece and not special:
            return self._word_piece.encode(text)
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

    @cached_property
    def _word_piece(self) -> WordPiece:
        """Our own WordPiece: llama.cpp's drops letters of some scripts."""
        lib, vocab = self._lib, self._vocab
        plain = [token for token in range(self.vocab_size) if token not in self._control]
        pieces = {lib.llama_vocab_get_text(vocab, token).decode("utf-8", "replace"): token for token in plain}
        lowercase = self._flag("lowercase", default=True)
        return WordPiece(
            pieces,
            unknown=self._unknown(),
            lowercase=lowercase,
            strip_accents=self._flag("strip_accents", default=lowercase),
        )

    def _unknown(self) -> int:
        buffer = ctypes.create_string_buffer(16)
        key = b"tokenizer.ggml.unknown_token_id"
        found = self._lib.llama_model_meta_val_str(self._weights.handle, key, buffer, len(buffer))
        return int(buffer.value) if int(found) > 0 else _UNKNOWN_DEFAULT

    def _flag(self, name: str, *, default: bool) -> bool:
        """A normalizer flag of the file. A cased vocabulary keeps accents unless the file says otherwise."""
        buffer = ctypes.create_string_buffer(8)
        key = f"tokenizer.ggml.normalizer.{name}".encode()
        found = self._lib.llama_model_meta_val_str(self._weights.handle, key, buffer, len(buffer))
        return buffer.value == b"true" if int(found) > 0 else default

    def tokens_at_least(self, text: str) -> int:
        """A lower bound without tokenizing: no token has more bytes than the longest one.

        llama.cpp drops bytes that the vocabulary cannot represent, and spaces beside some tokens: neither is
        counted. WordPiece and unigram vocabularies make one token of any unknown word: 0.
        """
        longest, dropped = self.byte_bound
        if longest == 0:
            return 0
        return -(-len(text.encode("utf-8", "replace").translate(None, dropped)) // longest)

    @cached_property
    def byte_bound(self) -> tuple[int, bytes]:
        """Bytes of the longest token, or 0 if that is no bound; and bytes that may be dropped."""
        if int(self._lib.llama_vocab_type(self._vocab)) not in (_SENTENCE_PIECE, _BYTE_PAIRS):
            return 0, b""
        pieces = [self.token_bytes(token) for token in range(self.vocab_size)]
        single = {piece for piece in pieces if len(piece) == 1}
        dropped = bytes(byte for byte in range(256) if bytes([byte]) not in single)
        stripping = any(
            int(self._lib.llama_vocab_get_attr(self._vocab, token)) & _STRIPS
            for token in range(self.vocab_size)
        )
        return max(4, *map(len, pieces)), dropped + (b" \t\n\r\v\f" if stripping else b"")

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
        """The text of these tokens, without control tokens."""
        parts = [self.token_bytes(token) for token in tokens if not self.is_control(token)]
        return b"".join(parts).decode("utf-8", "replace")

    def is_control(self, token: int) -> bool:
        return token in self._control
