"""Maps the terminal state of a request to the error its caller sees."""

from __future__ import annotations

from stretto.core.request import Priority
from stretto.core.tick import End, Preempted, Terminal
from stretto.errors import DeadlineError, PreemptedError, StrettoError, by_code


def error_of(terminal: Terminal) -> StrettoError | None:
    """The error of an end; None for a request that finished or was cancelled by its caller."""
    if terminal.end is End.FINISHED or (terminal.end is End.CANCELLED and terminal.reason == "client"):
        return None
    if terminal.error is not None:
        return terminal.error
    if terminal.end is End.CANCELLED and terminal.reason == "deadline":
        return DeadlineError(f"the deadline passed after {terminal.generated_tokens} tokens")
    if terminal.preempted is not None:
        return PreemptedError(preempted_text(terminal.preempted))
    kind = by_code("shutting_down" if terminal.reason == "shutdown" else terminal.reason)
    return kind(f"the request ended: {kind.code.replace('_', ' ')}")


def stream_of(request_id: str) -> str:
    """The stream id: request ids are `connection/stream`, unique across connections."""
    return request_id.partition("/")[2] or request_id


def preempted_text(record: Preempted) -> str:
    """Which request took the slot, and after how long. Another tenant's request is not named."""
    by = f"queued request {stream_of(record.waiter_id)}" if record.same_tenant else "a queued request"
    priority = Priority(record.waiter_priority).name.lower()
    return (
        f"preempted by {by} (priority {priority}), which had waited {record.waited_s:.1f} s for a slot; "
        f"this request had held it for {record.held_s:.1f} s"
    )
