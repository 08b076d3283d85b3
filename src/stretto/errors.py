"""Every error that Stretto answers with, in one tree.

StrettoError
├── InvariantError            our bug: crash what broke, never answer with it
├── InvalidRequestError       the caller must change something
│   ├── PromptTooLongError    the prompt does not fit the window or the memory
│   ├── EmptyPromptError
│   ├── DuplicateRequestError the id is already in use
│   └── InvalidTokenError     a token id outside the vocabulary
├── CapacityError             try again later
│   ├── QueueFullError        too many callers wait, or one waited too long
│   ├── ServerBusyError       every slot built a cache for too long
│   ├── PreemptedError        a queued request took the slot (preemption: fail)
│   └── ShuttingDownError
├── DeadlineError             the request's own deadline passed
└── BackendError              the model could not compute this request
    ├── PassFailedError       the forward pass failed, also when this request ran alone
    ├── BadOutputError        NaN logits or a token outside the vocabulary
    └── OutOfMemoryError      the request does not fit even alone

Each class has `code` (stable, for machines), `http_status`, `retryable` and `hint` (what to do about it).
Programmer errors crash what broke; operating errors are answered to the one request they belong to.
"""

from __future__ import annotations


class StrettoError(Exception):
    """The root. `message` says what happened, `hint` what to do."""

    code = "internal_error"
    http_status = 500
    retryable = False
    hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint


class InvariantError(StrettoError):
    """A law of the system is broken: a defect of ours, never of the caller."""

    code = "invariant_broken"
    hint = "this is a bug in Stretto; please report it with the trace"


class InvalidRequestError(StrettoError):
    code = "invalid_request"
    http_status = 400


class PromptTooLongError(InvalidRequestError):
    code = "prompt_too_long"
    hint = "shorten the prompt, or raise context_window"


class EmptyPromptError(InvalidRequestError):
    code = "empty_prompt"
    hint = "send at least one token"


class DuplicateRequestError(InvalidRequestError):
    code = "duplicate_request_id"
    http_status = 409
    hint = "use a new id for each request"


class InvalidTokenError(InvalidRequestError):
    code = "invalid_token"
    hint = "tokenize with this model's tokenizer"


class CapacityError(StrettoError):
    code = "over_capacity"
    http_status = 429
    retryable = True


class QueueFullError(CapacityError):
    code = "queue_full"
    hint = "retry later, or raise max_queue, max_queue_wait_s or n_seq_max"


class ServerBusyError(CapacityError):
    code = "server_busy"
    http_status = 503
    hint = "every slot is building a cache; retry shortly, or raise n_seq_max"


class PreemptedError(CapacityError):
    code = "preempted"
    http_status = 503
    hint = "retry; with `preemption: resume` the request would have continued by itself"


class ShuttingDownError(CapacityError):
    code = "shutting_down"
    http_status = 503
    hint = "retry against another server, or when this one is back"


class DeadlineError(StrettoError):
    code = "deadline_exceeded"
    http_status = 504
    retryable = True
    hint = "send a later deadline, or lower max_tokens"


class BackendError(StrettoError):
    code = "backend_error"
    retryable = True


class PassFailedError(BackendError):
    code = "pass_failed"
    hint = "retry; if it happens again the model or its memory is at fault"


class BadOutputError(BackendError):
    code = "bad_output"
    hint = "the model produced no valid token; check the model file and the sampling parameters"


class OutOfMemoryError(BackendError):
    code = "out_of_memory"
    http_status = 503
    hint = "shorten the prompt, or give the KV cache more memory"


def _tree(root: type[StrettoError]) -> dict[str, type[StrettoError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def by_code(code: str) -> type[StrettoError]:
    """The class behind a code, as it travels in events and over the wire."""
    return _tree(StrettoError).get(code, StrettoError)
