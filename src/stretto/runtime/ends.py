"""How a request ended, in the words of callers: the error behind an end."""

from __future__ import annotations

from stretto.core.tick import End, Terminal
from stretto.errors import DeadlineError, StrettoError, by_code


def error_of(terminal: Terminal) -> StrettoError | None:
    """The error behind an end; None for a request that finished or that its own caller cancelled."""
    if terminal.end is End.FINISHED or (terminal.end is End.CANCELLED and terminal.reason == "client"):
        return None
    if terminal.end is End.CANCELLED and terminal.reason == "deadline":
        return DeadlineError(f"the deadline passed after {terminal.generated_tokens} tokens")
    kind = by_code("shutting_down" if terminal.reason == "shutdown" else terminal.reason)
    return kind(f"the request ended: {kind.code.replace('_', ' ')}")
