"""The Python SDK: a model in this process, and many prompts in one batch.

    from stretto import LLM

    llm = LLM()                                  # SmolLM2, or a path, or a name from `stretto ls`
    print(llm.chat("Why is the sky blue?"))
    answers = llm.generate(["One", "Two"], max_tokens=32)

Calls may come from many threads and from a running event loop; they share the slots of one engine loop. Every
call has an async twin (`achat`, `agenerate`, `astream`). Closing a stream cancels its request. Events of
the scheduler go to Python's logger `stretto.events`, measurements to `LLM.on_tick` and `LLM.on_request_done`.
"""

from __future__ import annotations

from stretto.llm.client import LLM
from stretto.llm.embedding import Embeddings, Ranked
from stretto.llm.results import Completion, Timing, Usage
from stretto.llm.streams import AsyncStream, Stream
from stretto.llm.telemetry import RequestMeasures, Subscription, TickMeasures

__all__ = [
    "LLM",
    "AsyncStream",
    "Completion",
    "Embeddings",
    "Ranked",
    "RequestMeasures",
    "Stream",
    "Subscription",
    "TickMeasures",
    "Timing",
    "Usage",
]
