"""Prompts → token ids, with control tokens from the template's text only.

Knows the `Tokenizer` protocol that backends implement, and how to apply it to a `Rendered` prompt so that
user text can never become a control token while the tokens stay those of the whole text. Does not know
any vocabulary.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Protocol

from stretto.text.provenance import Segment
from stretto.text.templates import Rendered


class Tokenizer(Protocol):
    """One model's vocabulary. Implementations are thread-safe and add nothing of their own.

    `encode` is a function of its text alone: no BOS or EOS is added. With `special` the texts of control
    tokens (`<|im_end|>`) become those tokens; without it they are ordinary text, and no id of the result
    may be a control token. Text that follows a control token is encoded by a call of its own, as llama.cpp
    does inside one call, so what a SentencePiece vocabulary puts in front of a text belongs here too.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos(self) -> int | None: ...

    @property
    def eos(self) -> frozenset[int]:
        """Every token that ends a generation."""
        ...

    def encode(self, text: str, special: bool) -> list[int]: ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; a control token's are its name."""
        ...

    def is_control(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """What `core.Request` wants: ids, and ascending offsets at which messages end."""

    tokens: array[int]
    boundaries: tuple[int, ...] = ()


@dataclass(slots=True)
class _Piece:
    """A stretch of text that is encoded in one call, or one whose tokens are known."""

    text: str
    known: list[int] | None = None
    user: bool = False

    def ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        return tokenizer.encode(text, not self.user) if self.known is None else self.known


def encode_prompt(rendered: Rendered, tokenizer: Tokenizer, *, add_bos: bool = False) -> PromptTokens:
    """The prompt's tokens and its boundaries in tokens.

    A boundary is kept only where the tokens of the text before it are a prefix of the prompt's tokens.
    `add_bos` puts a BOS in front unless the template wrote one.
    """
    pieces = _pieces(rendered.segments, tokenizer)
    tokens: array[int] = array("i")
    offsets: list[int] = []
    wanted = list(rendered.boundaries)
    position = 0
    for piece in pieces:
        ids = piece.ids(tokenizer, piece.text)
        end = position + len(piece.text)
        while wanted and wanted[0] <= end:
            cut = wanted.pop(0) - position
            before = ids if cut == len(piece.text) else piece.ids(tokenizer, piece.text[:cut])
            if (piece.known is None and ids[: len(before)] == before) or cut == len(piece.text):
                offsets.append(len(tokens) + len(before))
        tokens.extend(ids)
        position = end
    shift = 0
    if add_bos and tokenizer.bos is not None and (not tokens or tokens[0] != tokenizer.bos):
        tokens.insert(0, tokenizer.bos)
        shift = 1
    kept = sorted({offset + shift for offset in offsets if offset > 0})
    return PromptTokens(tokens, tuple(kept))


def encode_text(text: str, tokenizer: Tokenizer, *, add_bos: bool = False) -> PromptTokens:
    """A bare prompt (completions API): all of it is user text."""
    return encode_prompt(Rendered((Segment(text, user=True),)), tokenizer, add_bos=add_bos)


def _pieces(segments: tuple[Segment, ...], tokenizer: Tokenizer) -> list[_Piece]:
    """Control tokens cut the prompt; text between two of them is one piece, whoever wrote it.

    Cutting also where the author changes would give other tokens than the model was trained on
    (`[INST] Hi` → `▁`, `Hi` in place of `▁Hi`). A piece with any user text is encoded without specials.
    """
    pieces: list[_Piece] = []
    for segment in segments:
        parts = (
            [_Piece(segment.text, user=True)] if segment.user else _template_pieces(segment.text, tokenizer)
        )
        for part in parts:
            last = pieces[-1] if pieces else None
            if last is not None and last.known is None and part.known is None:
                last.text += part.text
                last.user = last.user or part.user
            elif part.text or part.known is not None:
                pieces.append(part)
    return pieces


def _template_pieces(text: str, tokenizer: Tokenizer) -> list[_Piece]:
    """Template text, cut at its control tokens. Their places are found again by their names."""
    pieces: list[_Piece] = []
    done = 0
    ids = tokenizer.encode(text, True)
    for token in ids:
        if not tokenizer.is_control(token):
            continue
        name = tokenizer.token_bytes(token).decode("utf-8", "replace")
        start = text.find(name, done) if name else -1
        if start < 0:
            return [_Piece(text, known=ids)]  # it is not spelled as its text: nothing here can be cut
        pieces += [_Piece(text[done:start]), _Piece(name, known=[token])]
        done = start + len(name)
    return [*pieces, _Piece(text[done:])]
