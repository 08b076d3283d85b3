"""Log-probabilities in OpenAI's two shapes: a list of objects (chat), columns (legacy completions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.rpc.messages import TokenLogprob

_FLOOR = -9999.0  # JSON has no minus infinity


def _finite(value: float) -> float:
    return value if value > _FLOOR else _FLOOR  # also for NaN, which is not greater


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
    """The legacy shape. Offsets count characters from the start of the answer's text."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset

    def take(
        self, items: Sequence[TokenLogprob], *, top: bool, prompt: Sequence[TokenLogprob] = ()
    ) -> dict[str, Any]:
        """`prompt`: its tokens, if echoed. The first one has no context and no log-probability."""
        offsets = []
        for item in (*prompt, *items):
            offsets.append(self._offset)
            self._offset += len(item.token)
        values = [_finite(item.logprob) for item in (*prompt, *items)]
        ranked = [_ranked(item) for item in (*prompt, *items)] if top else None
        return {
            "tokens": [item.token for item in (*prompt, *items)],
            "token_logprobs": [None, *values[1:]] if prompt else values,
            "top_logprobs": [None, *ranked[1:]] if prompt and ranked else ranked,
            "text_offset": offsets,
        }


def prompt_logprobs(items: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
    """vLLM's shape: per token an object from token ids to logprobs; null for the first."""
    return [None if at == 0 else _by_id(item) for at, item in enumerate(items)]


def _by_id(item: TokenLogprob) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rank, (token, token_id, logprob, _) in enumerate(item.top, 1):
        found[str(token_id)] = {"logprob": _finite(logprob), "rank": rank, "decoded_token": token}
    own = {"logprob": _finite(item.logprob), "rank": None, "decoded_token": item.token}
    found.setdefault(str(item.token_id), own)
    return found


def _ranked(item: TokenLogprob) -> dict[str, float]:
    """Two tokens may have the same text: the more likely one is kept."""
    found: dict[str, float] = {}
    for token, _, logprob, _ in item.top:
        found.setdefault(token, _finite(logprob))
    found.setdefault(item.token, _finite(item.logprob))
    return found
