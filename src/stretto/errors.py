"""Every error that Stretto answers with, in one tree.

StrettoError
├── InvariantError              our bug: crash what broke, never answer with it
├── InvalidRequestError         the caller must change something
│   ├── PromptTooLongError      the prompt does not fit the window or the memory
│   ├── EmptyPromptError
│   ├── DuplicateRequestError   the id is already in use
│   ├── InvalidTokenError       a token id outside the vocabulary
│   ├── InvalidMessageError     a message has a shape or a part that we cannot render
│   ├── TemplateRefusedError    the template itself refused these messages (raise_exception)
│   ├── InvalidStopError        too many stop strings, or one too long or empty
│   ├── InvalidToolError        a tool definition or tool_choice that makes no sense
│   ├── InvalidGrammarError     a schema, regex or grammar that does not compile
│   ├── GrammarTooComplexError  it compiles, but costs more than the limits allow
│   ├── RequestRefusedError     the runtime died of it, twice: it is not tried again for a while
│   ├── ReplyTooLargeError      the answer does not fit a message between engine and runtime
│   ├── InvalidJsonError        a body that is no JSON object, or nests too deep
│   ├── FieldError              one field of a body; `param` names it
│   │   ├── MissingFieldError
│   │   ├── UnknownFieldError
│   │   ├── InvalidFieldError     a value of the wrong type or out of range
│   │   └── UnsupportedFieldError a field or a part that is known, but cannot be honoured
│   │       └── ThreadUnsupportedError  conversations are not kept; Anthropic's clients then send them whole
│   ├── UnsupportedByModelError the model cannot do this at all (embeddings, reranking, chat)
│   ├── MediaTypeError          the body is not sent as JSON
│   ├── InvalidEncodingError    the body is compressed in a way that is not read, or damaged
│   ├── UnknownRouteError       nothing lives at this address
│   └── WrongMethodError        something does, but it takes other methods
├── AccessError                 who asks, or from where, is not let in
│   ├── InvalidKeyError         no API key, or one that is not known
│   ├── HostRefusedError        called by a name that is not this server's
│   └── OriginRefusedError      called from a web page of another site
├── TooLargeError               more than the server reads
│   ├── BodyTooLargeError
│   ├── HeadersTooLargeError
│   ├── UrlTooLongError
│   └── SlowRequestError        the client took too long to send its request
├── CapacityError               try again later
│   ├── ConnectionLimitError    every connection is in use
│   ├── MemoryLimitError        the bodies of other requests take the memory for bodies
│   ├── ConcurrencyLimitError   this key's requests already fill its share
│   ├── NotReadyError           no model can answer now: loading, restarting or hung
│   ├── QueueFullError          too many callers wait, or one waited too long
│   ├── ServerBusyError         every slot built a cache for too long
│   ├── ModelBusyError          the model is at work and cannot be unloaded
│   ├── ModelMemoryError        models at work take the memory that another one needs
│   ├── PreemptedError          a queued request took the slot (preemption: fail)
│   └── ShuttingDownError
├── DeadlineError               the request's own deadline passed
├── BackendError                the model could not compute this request
│   ├── PassFailedError         the forward pass failed, also when this request ran alone
│   ├── BadOutputError          NaN logits or a token outside the vocabulary
│   ├── OutOfMemoryError        the request does not fit even alone
│   ├── TorchError              the GPU failed for good: the process must start again
│   ├── DeterminismError        deterministic: on cannot be kept with this model, setting or machine
│   └── LlamaCppError           between us and llama.cpp, before any request runs
│       ├── LlamaCppMissingError  the extra is not installed, or its library does not load
│       ├── ModelLoadError        llama.cpp refused a file that looked sound
│       └── ContextError          no context with these options: they contradict, or memory is short
├── ModelError                  a model's name, file or download
│   ├── InvalidModelNameError   not a name, or one that leaves the store
│   ├── ModelNotFoundError      no such file, or nothing of that name in the store
│   ├── ModelFileError          the file is not a model that can be loaded
│   │   ├── NotGgufError          another kind of file
│   │   ├── TruncatedModelError   the file ends before what its header promises
│   │   └── UnsupportedModelError a version, byte order or tensor type that llama.cpp does not read
│   ├── ModelRefusedError       the trial load in a child process failed, crashed or took too long
│   ├── ModelTooLargeError      the model does not fit the memory budget even alone
│   ├── ConversionError         the child that converts a model failed
│   └── DownloadError           the hub did not answer, or answered something else
│       ├── DigestMismatchError   the bytes are not the ones the hub promised
│       └── DiskFullError         the file does not fit on the disk
├── RpcError                    between engine and runtime
│   ├── FrameError              a frame too large, or not a message: the connection is closed
│   ├── UnknownMethodError      no such method
│   ├── PeerRefusedError        another user's process, or a wrong token
│   ├── RuntimeLostError        the runtime died or hung, and what it had begun is lost
│   ├── RuntimeUnavailableError no runtime to call now: it failed again and again, or too many calls wait
│   ├── CallTimeoutError        the runtime did not answer a call in time
│   ├── StreamTimeoutError      no token for too long, or a generation longer than allowed
│   └── SlowConsumerError       the reader did not take what was generated for it
├── BenchError                  a benchmark cannot run: no server there, or a trace that is none
├── BrokenTemplateError         the model file's chat template does not work: the operator's to fix
└── SettingsError               a setting that cannot be used, with what to write instead

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


class InvalidMessageError(InvalidRequestError):
    code = "invalid_message"
    hint = "send messages as {role, content}; roles: system, developer, user, assistant, tool"


class TemplateRefusedError(InvalidRequestError):
    code = "template_refused"
    hint = "change the order or the roles of the messages as this model wants them"


class InvalidStopError(InvalidRequestError):
    code = "invalid_stop"
    hint = "send at most 16 stop strings of 1 to 256 characters"


class InvalidToolError(InvalidRequestError):
    code = "invalid_tool"
    hint = "send tools as {type: function, function: {name, description, parameters}}"


class InvalidGrammarError(InvalidRequestError):
    code = "invalid_grammar"
    hint = "correct the schema, regex or grammar"


class GrammarTooComplexError(InvalidRequestError):
    code = "grammar_too_complex"
    hint = "simplify the schema, regex or grammar"


class RequestRefusedError(InvalidRequestError):
    code = "request_refused"
    http_status = 422
    hint = "change the request; the log says how the runtime died"


class ReplyTooLargeError(InvalidRequestError):
    code = "reply_too_large"
    hint = "ask for less at once"


class InvalidJsonError(InvalidRequestError):
    code = "invalid_json"
    hint = "send one JSON object"


class FieldError(InvalidRequestError):
    code = "invalid_field"
    param = ""

    def __init__(self, message: str, *, param: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.param = param


class MissingFieldError(FieldError):
    code = "missing_field"


class UnknownFieldError(FieldError):
    code = "unknown_field"


class InvalidFieldError(FieldError):
    code = "invalid_value"


class UnsupportedFieldError(FieldError):
    code = "unsupported_field"


class ThreadUnsupportedError(UnsupportedFieldError):
    code = "thread_unsupported_request"  # the name that Anthropic's clients look for
    hint = "send the whole conversation, without thread"


class UnsupportedByModelError(InvalidRequestError):
    code = "unsupported_by_model"
    hint = "choose a model that can; /v1/models lists what is served"


class MediaTypeError(InvalidRequestError):
    code = "unsupported_media_type"
    http_status = 415
    hint = "send the header content-type: application/json"


class InvalidEncodingError(InvalidRequestError):
    code = "invalid_encoding"
    http_status = 415
    hint = "send the body plain, or as one gzip or deflate stream with that Content-Encoding"


class UnknownRouteError(InvalidRequestError):
    code = "not_found"
    http_status = 404
    hint = "/openapi.json lists what there is"


class WrongMethodError(InvalidRequestError):
    code = "method_not_allowed"
    http_status = 405


class AccessError(StrettoError):
    code = "access_refused"
    http_status = 403


class InvalidKeyError(AccessError):
    code = "invalid_api_key"
    http_status = 401
    hint = "send `Authorization: Bearer KEY` (or `x-api-key: KEY`)"


class HostRefusedError(AccessError):
    code = "host_refused"
    http_status = 403
    hint = "call the server by its address, or add the name to allowed_hosts"


class OriginRefusedError(AccessError):
    code = "origin_refused"
    http_status = 403
    hint = "add the page's origin to cors_origins"


class TooLargeError(StrettoError):
    code = "too_large"
    http_status = 413


class BodyTooLargeError(TooLargeError):
    code = "body_too_large"
    hint = "send less, or raise body_bytes_max"


class HeadersTooLargeError(TooLargeError):
    code = "headers_too_large"
    http_status = 431
    hint = "send fewer or shorter headers"


class UrlTooLongError(TooLargeError):
    code = "url_too_long"
    http_status = 414
    hint = "put the data into the body"


class SlowRequestError(TooLargeError):
    code = "request_timeout"
    http_status = 408
    retryable = True
    hint = "send the whole request at once, or raise read_timeout_s"


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


class TorchError(BackendError):
    code = "torch_error"
    hint = "restart the runtime; the log has the GPU's own words"


class LlamaCppError(BackendError):
    code = "llamacpp_error"
    retryable = False


class LlamaCppMissingError(LlamaCppError):
    code = "llamacpp_missing"
    hint = "pip install 'stretto[llamacpp]'"


class ModelLoadError(LlamaCppError):
    code = "model_load_failed"
    hint = "check the free memory and the file; n_gpu_layers: 0 keeps the model off the GPU"


class ContextError(LlamaCppError):
    code = "context_failed"
    hint = "lower context_window or n_seq_max; `stretto estimate MODEL` shows what fits"


class DeterminismError(BackendError):
    code = "not_deterministic"
    retryable = False
    hint = "set deterministic: auto"


class ModelError(StrettoError):
    code = "model_error"
    http_status = 400


class InvalidModelNameError(ModelError):
    code = "invalid_model_name"
    hint = "name a model as user/repo, user/repo:QUANT, a name from `stretto ls`, or a path to a .gguf file"


class ModelNotFoundError(ModelError):
    code = "model_not_found"
    http_status = 404
    hint = "`stretto ls` lists what is here; `stretto pull user/repo` brings a model"


class ModelFileError(ModelError):
    code = "bad_model_file"
    hint = "the file is damaged or hostile: download it again from a source you trust"


class NotGgufError(ModelFileError):
    code = "not_gguf"
    hint = "give a .gguf model file; safetensors models are given as their directory"


class TruncatedModelError(ModelFileError):
    code = "model_truncated"
    hint = "the download was cut short: remove the file and pull it again"


class UnsupportedModelError(ModelFileError):
    code = "unsupported_model"
    hint = "convert the model again with a current llama.cpp"


class ModelRefusedError(ModelError):
    code = "model_refused"
    hint = "llama.cpp cannot load this file: check its source, or update llama-cpp-python"


class ModelTooLargeError(ModelError):
    code = "model_too_large"
    http_status = 507
    hint = "lower context_window or n_seq_max, or raise runtime.memory_budget_bytes"


class ConversionError(ModelError):
    code = "conversion_failed"
    http_status = 500
    hint = "use the model as it is, or convert it with another type"


class DownloadError(ModelError):
    code = "download_failed"
    http_status = 502
    retryable = True
    hint = "check the network and the name, then run the same command again: it resumes"


class DigestMismatchError(DownloadError):
    code = "digest_mismatch"
    hint = "the file was deleted; pull it again"


class DiskFullError(DownloadError):
    code = "disk_full"
    http_status = 507
    retryable = False
    hint = "free some space (`stretto rm`), or choose a smaller quantization"


class RpcError(StrettoError):
    code = "rpc_error"
    http_status = 502


class FrameError(RpcError):
    code = "bad_frame"
    hint = "engine and runtime must be of the same version"


class UnknownMethodError(RpcError):
    code = "unknown_method"
    http_status = 501
    hint = "runtime/info lists what this runtime can do"


class PeerRefusedError(RpcError):
    code = "peer_refused"
    http_status = 403
    hint = "connect as the user who started the runtime, with the token from its file"


class RuntimeLostError(RpcError):
    code = "runtime_lost"
    http_status = 503
    retryable = True
    hint = "retry: the runtime is being restarted"


class RuntimeUnavailableError(RpcError):
    code = "runtime_unavailable"
    http_status = 503
    retryable = True
    hint = "retry shortly; if it lasts, the log of the runtime says why"


class CallTimeoutError(RpcError):
    code = "call_timeout"
    http_status = 504
    retryable = True
    hint = "retry; if it happens again the runtime is overloaded or hangs"


class StreamTimeoutError(RpcError):
    code = "stream_timeout"
    http_status = 504
    retryable = True
    hint = "lower max_tokens, or raise engine.stream_timeout_s or engine.stream_idle_timeout_s"


class SlowConsumerError(RpcError):
    code = "slow_consumer"
    http_status = 408
    hint = "read faster, or raise engine.stream_buffer_bytes or engine.slow_consumer_timeout_s"


class BenchError(StrettoError):
    code = "bench_failed"
    hint = "see `stretto bench --help`"


class BrokenTemplateError(StrettoError):
    code = "broken_template"
    http_status = 500
    hint = "set chat_template to a file with a template that works, or send plain prompts"


class SettingsError(StrettoError):
    code = "invalid_settings"
    http_status = 500
    hint = "see `stretto config show --origin`"


def _tree(root: type[StrettoError]) -> dict[str, type[StrettoError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


_known: dict[str, type[StrettoError]] = {}


def by_code(code: str) -> type[StrettoError]:
    """The class behind a code, as it travels in events and over the wire."""
    if code not in _known:
        _known.update(_tree(StrettoError))  # walking the tree costs more than everything else about an error
    return _known.get(code, StrettoError)


def one_line(text: str, *, chars_max: int = 240) -> str:
    """The first line that says something, without control characters, cut to length."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    line = "".join(character if character.isprintable() else " " for character in line)
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"
