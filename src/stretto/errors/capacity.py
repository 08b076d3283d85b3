"""Errors that pass with time: the server is full, loading or stopping, or a deadline was too early."""

from __future__ import annotations

from stretto.errors.base import StrettoError


class CapacityError(StrettoError):
    code = "over_capacity"
    http_status = 429
    retryable = True


class ConnectionLimitError(CapacityError):
    code = "too_many_connections"
    http_status = 503
    hint = "try again later with fewer connections, or raise connections_max"


class MemoryLimitError(CapacityError):
    code = "too_many_bodies"
    http_status = 503
    hint = "try again later, or send smaller requests"


class ConcurrencyLimitError(CapacityError):
    code = "concurrency_limit"
    hint = "wait for one of your requests to end, or ask for a higher concurrency_max"


class NotReadyError(CapacityError):
    code = "not_ready"
    http_status = 503
    hint = "retry shortly; /health says what the server is waiting for"


class QueueFullError(CapacityError):
    code = "queue_full"
    hint = "retry later, or raise max_queue, max_queue_wait_s or n_seq_max"


class ServerBusyError(CapacityError):
    code = "server_busy"
    http_status = 503
    hint = "every slot is building a cache; retry shortly, or raise n_seq_max"


class ModelBusyError(CapacityError):
    code = "model_busy"
    http_status = 409
    hint = "wait until its requests have ended, or cancel them"


class ModelMemoryError(CapacityError):
    code = "model_memory"
    http_status = 503
    hint = "retry when other models are idle, or raise runtime.memory_budget_bytes"


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
    http_status = 408  # the caller set it: nothing is wrong with the server
    retryable = True
    hint = "send a later deadline, or lower max_tokens"
