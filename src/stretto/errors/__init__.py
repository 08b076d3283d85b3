"""Every error that Stretto answers with, in one tree. The modules hold it by area; import from here.

StrettoError
├── InvariantError              a bug in Stretto: crash what broke, never answer with it
├── InvalidRequestError         the caller must change something
│   ├── PromptTooLongError      the prompt does not fit the window or the memory
│   ├── EmptyPromptError
│   ├── DuplicateRequestError   the id is already in use
│   ├── InvalidTokenError       a token id outside the vocabulary
│   ├── InvalidMessageError     a message has a shape or a part that cannot be rendered
│   ├── TemplateRefusedError    the template itself refused these messages (raise_exception)
│   ├── InvalidMediaError       a picture or a sound that cannot be read
│   ├── InvalidStopError        too many stop strings, or one too long or empty
│   ├── InvalidToolError        a tool definition or tool_choice that makes no sense
│   ├── InvalidGrammarError     a schema, regex or grammar that does not compile
│   ├── GrammarTooComplexError  it compiles, but costs more than the limits allow
│   ├── RequestRefusedError     it crashed the worker twice: not tried again for a while
│   ├── ReplyTooLargeError      the answer does not fit a message between client and worker
│   ├── InvalidJsonError        a body that is not a JSON object, or nests too deep
│   ├── FieldError              one field of a body; `param` names it
│   │   ├── MissingFieldError
│   │   ├── UnknownFieldError
│   │   ├── InvalidFieldError     a value of the wrong type or out of range
│   │   └── UnsupportedFieldError a field or a part that is known, but not supported
│   │       └── ThreadUnsupportedError  no stored conversations; Anthropic's clients then send them whole
│   ├── UnsupportedByModelError the model cannot do this at all (embeddings, reranking, chat)
│   ├── MediaTypeError          the body is not sent as JSON
│   ├── InvalidEncodingError    the body has an unsupported Content-Encoding, or is damaged
│   ├── UnknownRouteError       no route has this path
│   └── WrongMethodError        the route has other methods
├── AccessError                 the caller or its origin is not allowed
│   ├── InvalidKeyError         no API key, or an unknown one
│   ├── HostRefusedError        the Host header names another server
│   └── OriginRefusedError      the request comes from a web page of another site
├── TooLargeError               larger or slower than the server accepts
│   ├── BodyTooLargeError
│   ├── HeadersTooLargeError
│   ├── UrlTooLongError
│   └── SlowRequestError        the client took too long to send its request
├── CapacityError               try again later
│   ├── ConnectionLimitError    every connection is in use
│   ├── MemoryLimitError        the memory for request bodies is in use
│   ├── ConcurrencyLimitError   this key has its maximum of requests running
│   ├── NotReadyError           no model can answer now: loading, restarting or hung
│   ├── QueueFullError          too many requests wait, or this one waited too long
│   ├── ServerBusyError         every slot was building a cache for too long
│   ├── ModelBusyError          the model has running requests and cannot be unloaded
│   ├── ModelMemoryError        busy models hold the memory that this one needs
│   ├── PreemptedError          a queued request took the slot (preemption: fail)
│   └── ShuttingDownError
├── DeadlineError               the request's own deadline passed
├── BackendError                the model could not compute this request
│   ├── PassFailedError         the forward pass failed, even with this request alone in the batch
│   ├── BadOutputError          NaN logits or a token outside the vocabulary
│   ├── OutOfMemoryError        the request does not fit even alone
│   ├── TorchError              the CUDA context is unusable: the worker must restart
│   ├── TorchMissingError       the extra is not installed, or does not load
│   ├── DeterminismError        deterministic: on cannot be kept with this model, setting or machine
│   └── LlamaCppError           llama.cpp failed before any request ran
│       ├── LlamaCppMissingError  the extra is not installed, or its library does not load
│       ├── ModelLoadError        llama.cpp refused a file with a valid header
│       └── ContextError          no context with these options: they contradict, or memory is short
├── ModelError                  a model's name, file or download
│   ├── InvalidModelNameError   not a name, or one that leaves the store
│   ├── ModelNotFoundError      no such file, or nothing of that name in the store
│   ├── ModelFileError          the file is not a model that can be loaded
│   │   ├── NotGgufError          another kind of file
│   │   ├── TruncatedModelError   the file is shorter than its header says
│   │   └── UnsupportedModelError a version, byte order or tensor type that llama.cpp does not read
│   ├── AdapterNotFoundError    the model has no adapter of that name
│   ├── AdapterFileError        the adapter is damaged, or was made for another model
│   ├── ModelRefusedError       the test load in a child process failed, crashed or took too long
│   ├── ModelTooLargeError      the model does not fit the memory budget even alone
│   ├── ConversionError         the conversion process failed
│   └── DownloadError           the hub did not answer, or sent an unexpected answer
│       ├── DigestMismatchError   the file does not match the hub's checksum
│       └── DiskFullError         the file does not fit on the disk
├── RpcError                    between client and worker
│   ├── FrameError              a frame too large, or not a message: the connection is closed
│   ├── UnknownMethodError      no such method
│   ├── PeerRefusedError        a process of another user, or a wrong token
│   ├── RuntimeLostError        the worker died or hung, and its running requests are lost
│   ├── RuntimeUnavailableError no worker to call: it keeps failing, or too many calls wait
│   ├── CallTimeoutError        the worker did not answer a call in time
│   ├── StreamTimeoutError      no token for too long, or a generation longer than allowed
│   └── SlowConsumerError       the client read its stream too slowly
├── BenchError                  a benchmark cannot run: no server, or an invalid trace
├── BrokenTemplateError         the model file's chat template does not work
└── SettingsError               an invalid setting

Each class has `code` (stable, for machines), `http_status`, `retryable` and `hint` (what to do about it).
Programmer errors crash what broke; operating errors are answered to the request they belong to.
"""

from __future__ import annotations

from stretto.errors.access import (
    AccessError,
    BodyTooLargeError,
    HeadersTooLargeError,
    HostRefusedError,
    InvalidKeyError,
    OriginRefusedError,
    SlowRequestError,
    TooLargeError,
    UrlTooLongError,
)
from stretto.errors.backend import (
    BackendError,
    BadOutputError,
    ContextError,
    DeterminismError,
    LlamaCppError,
    LlamaCppMissingError,
    ModelLoadError,
    OutOfMemoryError,
    PassFailedError,
    TorchError,
    TorchMissingError,
)
from stretto.errors.base import (
    InvariantError,
    StrettoError,
    by_code,
    one_line,
)
from stretto.errors.capacity import (
    CapacityError,
    ConcurrencyLimitError,
    ConnectionLimitError,
    DeadlineError,
    MemoryLimitError,
    ModelBusyError,
    ModelMemoryError,
    NotReadyError,
    PreemptedError,
    QueueFullError,
    ServerBusyError,
    ShuttingDownError,
)
from stretto.errors.model import (
    AdapterFileError,
    AdapterNotFoundError,
    ConversionError,
    DigestMismatchError,
    DiskFullError,
    DownloadError,
    InvalidModelNameError,
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    ModelRefusedError,
    ModelTooLargeError,
    NotGgufError,
    TruncatedModelError,
    UnsupportedModelError,
)
from stretto.errors.operator import (
    BenchError,
    BrokenTemplateError,
    SettingsError,
)
from stretto.errors.request import (
    DuplicateRequestError,
    EmptyPromptError,
    FieldError,
    GrammarTooComplexError,
    InvalidEncodingError,
    InvalidFieldError,
    InvalidGrammarError,
    InvalidJsonError,
    InvalidMediaError,
    InvalidMessageError,
    InvalidRequestError,
    InvalidStopError,
    InvalidTokenError,
    InvalidToolError,
    MediaTypeError,
    MissingFieldError,
    PromptTooLongError,
    ReplyTooLargeError,
    RequestRefusedError,
    TemplateRefusedError,
    ThreadUnsupportedError,
    UnknownFieldError,
    UnknownRouteError,
    UnsupportedByModelError,
    UnsupportedFieldError,
    WrongMethodError,
)
from stretto.errors.rpc import (
    CallTimeoutError,
    FrameError,
    PeerRefusedError,
    RpcError,
    RuntimeLostError,
    RuntimeUnavailableError,
    SlowConsumerError,
    StreamTimeoutError,
    UnknownMethodError,
)

__all__ = [
    "AccessError",
    "AdapterFileError",
    "AdapterNotFoundError",
    "BackendError",
    "BadOutputError",
    "BenchError",
    "BodyTooLargeError",
    "BrokenTemplateError",
    "CallTimeoutError",
    "CapacityError",
    "ConcurrencyLimitError",
    "ConnectionLimitError",
    "ContextError",
    "ConversionError",
    "DeadlineError",
    "DeterminismError",
    "DigestMismatchError",
    "DiskFullError",
    "DownloadError",
    "DuplicateRequestError",
    "EmptyPromptError",
    "FieldError",
    "FrameError",
    "GrammarTooComplexError",
    "HeadersTooLargeError",
    "HostRefusedError",
    "InvalidEncodingError",
    "InvalidFieldError",
    "InvalidGrammarError",
    "InvalidJsonError",
    "InvalidKeyError",
    "InvalidMediaError",
    "InvalidMessageError",
    "InvalidModelNameError",
    "InvalidRequestError",
    "InvalidStopError",
    "InvalidTokenError",
    "InvalidToolError",
    "InvariantError",
    "LlamaCppError",
    "LlamaCppMissingError",
    "MediaTypeError",
    "MemoryLimitError",
    "MissingFieldError",
    "ModelBusyError",
    "ModelError",
    "ModelFileError",
    "ModelLoadError",
    "ModelMemoryError",
    "ModelNotFoundError",
    "ModelRefusedError",
    "ModelTooLargeError",
    "NotGgufError",
    "NotReadyError",
    "OriginRefusedError",
    "OutOfMemoryError",
    "PassFailedError",
    "PeerRefusedError",
    "PreemptedError",
    "PromptTooLongError",
    "QueueFullError",
    "ReplyTooLargeError",
    "RequestRefusedError",
    "RpcError",
    "RuntimeLostError",
    "RuntimeUnavailableError",
    "ServerBusyError",
    "SettingsError",
    "ShuttingDownError",
    "SlowConsumerError",
    "SlowRequestError",
    "StreamTimeoutError",
    "StrettoError",
    "TemplateRefusedError",
    "ThreadUnsupportedError",
    "TooLargeError",
    "TorchError",
    "TorchMissingError",
    "TruncatedModelError",
    "UnknownFieldError",
    "UnknownMethodError",
    "UnknownRouteError",
    "UnsupportedByModelError",
    "UnsupportedFieldError",
    "UnsupportedModelError",
    "UrlTooLongError",
    "WrongMethodError",
    "by_code",
    "one_line",
]
