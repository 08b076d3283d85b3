"""Results of the SDK: plain frozen values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.core.tick import End
from stretto.errors import StrettoError
from stretto.worker.output import TextDelta
from stretto.worker.terminal_errors import error_of


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    proposed_drafts: int = 0
    accepted_drafts: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds since the request was submitted."""

    queue_wait_s: float
    ttft_s: float | None
    duration_s: float


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer. `finish_reason` is stop, length or cancelled."""

    text: str
    reasoning: str
    tokens: tuple[int, ...]
    finish_reason: str
    usage: Usage
    timing: Timing
    preemptions: int = 0
    logprobs: tuple[object, ...] = ()
    index: int = 0
    error: StrettoError | None = None

    def __str__(self) -> str:
        return self.text


def assemble(deltas: Sequence[TextDelta], index: int = 0) -> Completion:
    """All deltas of one stream as one answer. The last delta carries the end."""
    terminal = deltas[-1].end
    assert terminal is not None, "a stream without an end"
    cancelled = terminal.end is End.CANCELLED
    return Completion(
        text="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        finish_reason="cancelled" if cancelled else terminal.reason,
        usage=Usage(
            terminal.prompt_tokens,
            terminal.cached_tokens,
            terminal.tokens_kept,
            terminal.proposed_drafts,
            terminal.accepted_drafts,
        ),
        timing=Timing(terminal.queue_wait_s, terminal.ttft_s, terminal.duration_s),
        preemptions=terminal.preemptions,
        logprobs=tuple(delta.extras for delta in deltas if delta.extras is not None),
        index=index,
        error=error_of(terminal),
    )
