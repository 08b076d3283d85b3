"""One HTTP request as the operator's tools see it: made by `access_log`, found by whatever works for it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class RequestRecord:
    """Grows while the request runs. Times are of the monotonic clock."""

    request_id: str
    path: str
    arrived_s: float
    traceparent: str = ""
    rejected: str = ""  # the code of what refused it, once that is counted
    prompt_tokens: int = 0
    completion_tokens: int = 0


current_record: ContextVar[RequestRecord | None] = ContextVar("stretto_request", default=None)
