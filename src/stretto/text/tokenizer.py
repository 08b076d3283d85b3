"""Prompts → token ids, with control tokens from template text only.

Defines the `Tokenizer` protocol that backends implement, and applies it to a `Rendered` prompt so that user
text never becomes a control token while the tokens otherwise equal those of the whole text. Does not know any
vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stretto.text.media_marks import split_at
from stretto.text.provenance import Segment
from stretto.text.templates import Rendered


class Tokenizer(Protocol):
    """One model's vocabulary. Implementations are thread-safe and add no tokens.

    `encode` depends on its text alone and adds no BOS or EOS. With `special` the names of control tokens
    (`<|im_end|>`) become those tokens; without it they are ordinary text, and the result must not contain a
    control token. Text after a control token is encoded by a separate call, as llama.cpp does inside one
    call, so a prefix that SentencePiece adds to a text is added here too.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos(self) -> int | None: ...

    @property
    def eos(self) -> frozenset[int]:
        """All tokens that end a generation."""
        ...

    def encode(self, text: str, special: bool) -> list[int]: ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; for a control token, its name."""
        ...

    def is_control(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Input for `core.Request`: ids, and ascending offsets at which messages end.

    `places`: media by their numbers, each with the offset of the token before which it stands.
    """

    tokens: array[int]
    boundaries: tuple[int, ...] = ()
    places: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class _Piece:
    """Text that is encoded in one call, or whose tokens are known; or the mark of a medium."""

    text: str
    known: list[int] | None = None
    user: bool = False
    medium: int = -1

    def ids(self, tokenizer: Tokenizer, text: str) -> list[int]:
        return tokenizer.encode(text, not self.user) if self.known is None else self.known


def encode_prompt(
    rendered: Rendered, tokenizer: Tokenizer, *, add_bos: bool = False, marks: Sequence[str] = ()
) -> PromptTokens:
    """The prompt's tokens, its boundaries in tokens, and where the marks of media were.

    A boundary is kept only if the tokens of the text before it are a prefix of the prompt's tokens. `add_bos`
    prepends BOS unless the template did.
    """
    pieces = _pieces(rendered.segments, tokenizer, marks)
    tokens: array[int] = array("i")
    offsets: list[int] = []
    places: list[tuple[int, int]] = []
    wanted = list(rendered.boundaries)
    position = 0
    for piece in pieces:
        ids = piece.ids(tokenizer, piece.text)
        end = position + len(piece.text)
        while wanted and wanted[0] <= end:
            length = wanted.pop(0) - position
            before = ids if length == len(piece.text) else piece.ids(tokenizer, piece.text[:length])
            if (piece.known is None and ids[: len(before)] == before) or length == len(piece.text):
                offsets.append(len(tokens) + len(before))
        if piece.medium >= 0:
            places.append((piece.medium, len(tokens)))
        tokens.extend(ids)
        position = end
    shift = 0
    if add_bos and tokenizer.bos is not None and (not tokens or tokens[0] != tokenizer.bos):
        tokens.insert(0, tokenizer.bos)
        shift = 1
    kept = sorted({offset + shift for offset in offsets if offset > 0})
    return PromptTokens(tokens, tuple(kept), tuple((number, at + shift) for number, at in places))


def encode_text(text: str, tokenizer: Tokenizer, *, add_bos: bool = False) -> PromptTokens:
    """A bare prompt (completions API): all of it is user text."""
    return encode_prompt(Rendered((Segment(text, user=True),)), tokenizer, add_bos=add_bos)


def _pieces(segments: tuple[Segment, ...], tokenizer: Tokenizer, marks: Sequence[str]) -> list[_Piece]:
    """Splits the prompt at control tokens and media; text between two of them is one piece, whatever its
    origin.

    Splitting where the origin changes too would give tokens that the model was not trained on
    (`[INST] Hi` → `▁`, `Hi` instead of `▁Hi`). A piece with any user text is encoded without specials.
    """
    pieces: list[_Piece] = []
    for segment in segments:
        for part in _parts(segment, tokenizer, marks):
            last = pieces[-1] if pieces else None
            if last is not None and last.known is None and part.known is None:
                last.text += part.text
                last.user = last.user or part.user
            elif part.text or part.known is not None:
                pieces.append(part)
    return pieces


def _parts(segment: Segment, tokenizer: Tokenizer, marks: Sequence[str]) -> Iterator[_Piece]:
    for index, text in enumerate(split_at(segment.text, marks)):
        if index % 2:
            yield _Piece(text, known=[], medium=marks.index(text))
        elif segment.user:
            yield _Piece(text, user=True)
        else:
            yield from _template_pieces(text, tokenizer)


def _template_pieces(text: str, tokenizer: Tokenizer) -> list[_Piece]:
    """Template text, split at its control tokens, which are located by their names."""
    pieces: list[_Piece] = []
    done = 0
    ids = tokenizer.encode(text, True)
    for token in ids:
        if not tokenizer.is_control(token):
            continue
        name = tokenizer.token_bytes(token).decode("utf-8", "replace")
        start = text.find(name, done) if name else -1
        if start < 0:
            return [_Piece(text, known=ids)]  # the token is not spelled as in the text: do not split
        pieces += [_Piece(text[done:start]), _Piece(name, known=[token])]
        done = start + len(name)
    return [*pieces, _Piece(text[done:])]
