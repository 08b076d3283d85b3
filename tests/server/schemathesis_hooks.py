"""Asks for a model that is served, where any name at all would do: else every good request ended with 404.

And for few tokens and enough time, so that what is tried is the server and not the model.
"""

from __future__ import annotations

import os
from typing import Any

import schemathesis

MODEL = os.environ["STRETTO_FUZZ_MODEL"]
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
TOKENS_MAX = 4
DEADLINE_MS = 600_000


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("model"), str) and len(body["model"]) <= 512:
        body["model"] = MODEL
    for name in LIMITS:
        value = body.get(name)
        if type(value) is int and TOKENS_MAX < value < 1 << 24:
            body[name] = TOKENS_MAX
    deadline = body.get("deadline_ms")
    if isinstance(deadline, int | float) and not isinstance(deadline, bool) and 1 <= deadline <= DEADLINE_MS:
        body["deadline_ms"] = DEADLINE_MS
    return body
