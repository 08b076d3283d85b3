"""Texts that cannot fit are refused before they are sent; what might fit, or is cut, is sent."""

from __future__ import annotations

import pytest

from stretto.client.text_limits import TextLimits
from stretto.errors import PromptTooLongError
from stretto.rpc import messages as m

WINDOW, LONGEST = 100, 8
LONG = "a" * (WINDOW * LONGEST + 64)


@pytest.fixture
def limits() -> TextLimits:
    found = TextLimits()
    bound = m.TextBound(tokens_max=WINDOW, token_bytes_max=LONGEST, uncounted=b"\x00")
    found.note([m.ModelInfo(id="m", text_bound=bound), m.ModelInfo(id="unbounded")])
    return found


def generate(**fields):
    return m.GenerateParams(stream_id="s", **{"model_id": "m", **fields})


def said(role: str, content: object) -> dict:
    return {"role": role, "content": content}


SMALL = said("user", "hi")
REFUSED = {
    "prompt": generate(prompt=LONG),
    "pieces": generate(pieces=[1, LONG]),
    "user": generate(messages=[said("user", LONG)]),
    "parts": generate(messages=[said("user", [{"type": "text", "text": LONG}])]),
    "together": generate(messages=[said("user", LONG[:500])] * 3),
    "tool result": generate(messages=[SMALL, said("tool", LONG)]),
    "last turn, truncated": generate(messages=[SMALL, said("user", LONG)], truncate_messages=True),
    "system, truncated": generate(messages=[said("system", LONG), SMALL], truncate_messages=True),
    "tokenize": m.TokenizeParams(model_id="m", text="a" * (1 << 21)),
    "truncated tokens": generate(prompt="a" * (1 << 21), truncate_prompt_tokens=5),
    "embed": m.EmbedParams(model_id="m", inputs=["hi", LONG]),
    "rerank": m.RerankParams(model_id="m", query="hi", documents=[LONG]),
}
SENT = {
    "fits": generate(prompt="a" * (WINDOW * LONGEST - LONGEST)),
    "other model": generate(model_id="unbounded", prompt=LONG),
    "bytes without a token": generate(prompt="\x00" * len(LONG)),
    "spaces that a template strips": generate(messages=[said("user", " " * len(LONG))]),
    "reasoning that a template drops": generate(messages=[SMALL, said("assistant", LONG), SMALL]),
    "oldest turn, truncated": generate(messages=[said("user", LONG), SMALL], truncate_messages=True),
    "truncated tokens": generate(prompt=LONG, truncate_prompt_tokens=5),
    "tokenize": m.TokenizeParams(model_id="m", text=LONG),
    "count": m.TokenizeParams(model_id="m", messages=[said("user", LONG)]),
    "embed, truncated": m.EmbedParams(model_id="m", inputs=[LONG], truncate="right"),
    "tokens": generate(tokens=[1] * len(LONG)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_cannot_fit_is_refused_with_the_window(limits, name):
    with pytest.raises(PromptTooLongError, match=r"tokens"):
        limits.check(REFUSED[name])


@pytest.mark.parametrize("name", SENT)
def test_texts_that_might_fit_are_sent(limits, name):
    limits.check(SENT[name])
