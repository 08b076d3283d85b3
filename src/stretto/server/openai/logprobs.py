"""Log-probabilities in OpenAI's two shapes: a list of objects (chat), columns (legacy completions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.rpc.messages import TokenLogprob

_FLOOR = -9999.0  # JSON has no minus infinity


def _finite(value: float) -> float:
    return value if value > _FLOOR else _FLOOR  # NaN too: it is not greater


def chat_logprobs(items: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {"content": [_entry(item) for item in items], "refusal": None}


def _entry(item: TokenLogprob) -> dict[str, Any]:
    return {
        "token": item.token,
        "logprob": _finite(item.logprob),
        "bytes": list(item.raw),
        "top_logprobs": [
            {"token": token, "logprob": _finite(logprob), "bytes": list(raw)}
            for token, _, logprob, raw in item.top
        ],
    }


class Columns:
    """The legacy shape. Offsets count characters from the beginning of the answer's text."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset

    def take(self, items: Sequence[TokenLogprob], *, top: bool) -> dict[str, Any]:
        offsets = []
        for item in items:
            offsets.append(self._offset)
            self._offset += len(item.token)
        return {
            "tokens": [item.token for item in items],
            "token_logprobs": [_finite(item.logprob) for item in items],
            "top_logprobs": [_ranked(item) for item in items] if top else None,
            "text_offset": offsets,
        }


def _ranked(item: TokenLogprob) -> dict[str, float]:
    """Two tokens may spell the same text: the likelier one stays."""
    found: dict[str, float] = {}
    for token, _, logprob, _ in item.top:
        found.setdefault(token, _finite(logprob))
    found.setdefault(item.token, _finite(item.logprob))
    return found
