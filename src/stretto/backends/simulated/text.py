"""A tokenizer for the simulated model: one token per byte, with readable output.

Prompts are bytes (token = byte + 1); tokens beyond those are spelled in letters.
"""

from __future__ import annotations

LETTERS = b"abcdefghijklmnopqrstuvwxyz "


class SpellingTokenizer:
    def __init__(self, vocab: int = 512, eos: int = 0) -> None:
        self.vocab_size = vocab
        self.bos: int | None = None
        self.eos = frozenset({eos})

    def encode(self, text: str, special: bool) -> list[int]:
        return [byte + 1 for byte in text.encode()]

    @property
    def byte_bound(self) -> tuple[int, bytes]:
        return 1, b""

    def tokens_at_least(self, text: str) -> int:
        return len(text)

    def token_bytes(self, token: int) -> bytes:
        if token in self.eos:
            return b"<end>"
        return bytes([token - 1]) if 32 < token <= 127 else LETTERS[token % 27 : token % 27 + 1]

    def is_control(self, token: int) -> bool:
        return token in self.eos
