"""Errors between the client and the worker process."""

from __future__ import annotations

from stretto.errors.base import StrettoError


class RpcError(StrettoError):
    code = "rpc_error"
    http_status = 502


class FrameError(RpcError):
    code = "bad_frame"
    hint = "client and worker must have the same version"


class UnknownMethodError(RpcError):
    code = "unknown_method"
    http_status = 501
    hint = "runtime/info lists the methods of this worker"


class PeerRefusedError(RpcError):
    code = "peer_refused"
    http_status = 403
    hint = "connect as the user that started the worker, with the token from its file"


class RuntimeLostError(RpcError):
    code = "runtime_lost"
    http_status = 503
    retryable = True
    hint = "retry: the worker is being restarted"


class RuntimeUnavailableError(RpcError):
    code = "runtime_unavailable"
    http_status = 503
    retryable = True
    hint = "retry shortly; if it persists, see the log of the worker"


class CallTimeoutError(RpcError):
    code = "call_timeout"
    http_status = 504
    retryable = True
    hint = "retry; if it happens again, the worker is overloaded or hangs"


class StreamTimeoutError(RpcError):
    code = "stream_timeout"
    http_status = 504
    retryable = True
    hint = "lower max_tokens, or raise engine.stream_timeout_s or engine.stream_idle_timeout_s"


class SlowConsumerError(RpcError):
    code = "slow_consumer"
    http_status = 408
    hint = "read faster, or raise engine.stream_buffer_bytes or engine.slow_consumer_timeout_s"
