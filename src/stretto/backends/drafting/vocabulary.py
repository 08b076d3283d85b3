"""Whether a draft model has the vocabulary of its target: drafts are compared by their ids."""

from __future__ import annotations

from typing import Protocol

from stretto.errors import ModelLoadError

HINT = "choose a draft model of the same family"


class TokenBytes(Protocol):
    @property
    def vocab_size(self) -> int: ...
    def token_bytes(self, token: int) -> bytes: ...


def check_sizes(target: int, draft: int, name: str) -> None:
    if target != draft:
        raise ModelLoadError(
            f"{name} cannot be a draft model: it has {draft} tokens, the model has {target}", hint=HINT
        )


def check_tokens(target: TokenBytes, draft: TokenBytes, name: str) -> None:
    """Raises a ModelLoadError that names the first difference.

    One may have more ids than the other if those have no text: logits are padded to round widths.
    """
    for token in range(max(target.vocab_size, draft.vocab_size)):
        ours, theirs = _bytes(target, token), _bytes(draft, token)
        if ours != theirs:
            raise ModelLoadError(
                f"{name} cannot be a draft model: token {token} is {theirs!r}, in the model {ours!r}",
                hint=HINT,
            )


def _bytes(words: TokenBytes, token: int) -> bytes:
    return words.token_bytes(token) if token < words.vocab_size else b""
