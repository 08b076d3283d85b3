"""How a request ended, in the words of callers: the error behind an end."""

from __future__ import annotations

from stretto.core.request import Priority
from stretto.core.tick import End, Preempted, Terminal
from stretto.errors import DeadlineError, PreemptedError, StrettoError, by_code


def error_of(terminal: Terminal) -> StrettoError | None:
    """The error behind an end; None for a request that finished or that its own caller cancelled."""
    if terminal.end is End.FINISHED or (terminal.end is End.CANCELLED and terminal.reason == "client"):
        return None
    if terminal.end is End.CANCELLED and terminal.reason == "deadline":
        return DeadlineError(f"the deadline passed after {terminal.generated_tokens} tokens")
    if terminal.preempted is not None:
        return PreemptedError(preempted_text(terminal.preempted))
    kind = by_code("shutting_down" if terminal.reason == "shutdown" else terminal.reason)
    return kind(f"the request ended: {kind.code.replace('_', ' ')}")


def stream_of(request_id: str) -> str:
    """Requests are named `connection/stream`, so that two connections never clash."""
    return request_id.partition("/")[2] or request_id


def preempted_text(record: Preempted) -> str:
    """Which request took the slot, and after how long. Another tenant's request is not named."""
    by = f"queued request {stream_of(record.waiter_id)}" if record.same_tenant else "a queued request"
    priority = Priority(record.waiter_priority).name.lower()
    return (
        f"preempted by {by} (priority {priority}), which had waited {record.waited_s:.1f} s for a slot; "
        f"this request had held it for {record.held_s:.1f} s"
    )
