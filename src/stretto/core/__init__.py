"""The scheduler: a state machine without clock, thread, log, randomness or I/O.

`__all__` is its public surface: what a caller asks (`Request`), what the operator sets (`Limits`), what a
backend can do (`Capabilities`), `Scheduler`, and what crosses between it and a backend (`Tick` out, `Outcome`
back, `Events` up). The other modules serve these, and the test kit. Names are looked up when they are first
asked for: settings need `Limits` and must not load the scheduler for it.
"""

__all__ = [
    "Binding",
    "Capabilities",
    "End",
    "Events",
    "Idle",
    "KvOp",
    "Limits",
    "MediaChunk",
    "MediaRows",
    "Note",
    "OpKind",
    "OpResult",
    "Outcome",
    "PassFailure",
    "PreemptReason",
    "Preempted",
    "Preemption",
    "Priority",
    "Progress",
    "PromptScores",
    "Request",
    "Rewind",
    "SamplingParams",
    "Scheduler",
    "Scope",
    "Share",
    "Span",
    "Started",
    "Submitted",
    "TableUpdate",
    "Terminal",
    "Tick",
]

TYPE_CHECKING = False

if TYPE_CHECKING:
    from stretto.core.capabilities import Capabilities, Rewind, Share
    from stretto.core.limits import Limits, Preemption
    from stretto.core.media import MediaRows
    from stretto.core.ops import KvOp, OpKind, OpResult
    from stretto.core.request import Priority, Request, SamplingParams, Scope
    from stretto.core.scheduler import Scheduler, Submitted
    from stretto.core.tick import (
        Binding,
        End,
        Events,
        Idle,
        MediaChunk,
        Note,
        Outcome,
        PassFailure,
        Preempted,
        PreemptReason,
        Progress,
        PromptScores,
        Span,
        Started,
        TableUpdate,
        Terminal,
        Tick,
    )

if not TYPE_CHECKING:  # a type checker must not take every unknown name for granted

    def __getattr__(name: str) -> object:
        if name in __all__:
            from stretto.core import capabilities, limits, media, ops, request, scheduler, tick

            for module in (capabilities, limits, media, ops, request, scheduler, tick):
                if name in vars(module):
                    return vars(module)[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
