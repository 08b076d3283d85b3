"""A table of requests that must be refused, each with the exact status and code.

Expectations come from what the fields are documented to take, never from what the server happened to answer.
Built from a good request for each route and one thing wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ABSENT = object()
USER = {"role": "user", "content": "Hello?"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FLAT_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
ANTHROPIC_TOOL = {"name": "f", "input_schema": {"type": "object"}}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}

CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
TOKENIZE, DETOKENIZE, EMBED, RERANK = "/tokenize", "/detokenize", "/v1/embeddings", "/v1/rerank"
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    TEXT: {"prompt": "Once"},
    RESPONSES: {"input": "Hello?"},
    MESSAGES: {"messages": [USER], "max_tokens": 8},
    COUNT: {"messages": [USER]},
    TOKENIZE: {"prompt": "Once"},
    DETOKENIZE: {"tokens": [1, 2]},
    EMBED: {"input": "Once"},
    RERANK: {"query": "q", "documents": ["d"]},
}
GENERATING = (CHAT, TEXT, RESPONSES, MESSAGES)

INVALID = (400, "invalid_value")
UNSUPPORTED = (400, "unsupported_field")
UNKNOWN = (400, "unknown_field")
MISSING = (400, "missing_field")
NOT_JSON = (400, "invalid_json")


@dataclass(frozen=True)
class Case:
    name: str
    path: str
    status: int
    code: str
    body: Any = None  # sent as JSON; bytes are sent as they are
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    param: str = ""  # the field that the error must name
    strict_only: bool = False  # with unknown fields ignored, so is this
    missing_without: bool = False  # with unknown fields ignored, a required one is missing


def wrong(path: str, name: str, value: Any, answer: tuple[int, str]) -> Case:
    """The good request of a route with one field changed: an error about a field must name it."""
    body = dict(GOOD[path])
    if value is ABSENT:
        del body[name]
    else:
        body[name] = value
    shown = "absent" if value is ABSENT else repr(value)[:48]
    param = name[:64] if answer in (INVALID, UNSUPPORTED, UNKNOWN, MISSING) else ""
    return Case(f"{path} {name}={shown}", path, *answer, body=body, param=param)


# --- bytes that are no object ----------------------------------------------------------------------

RAW = {
    "nothing": b"",
    "a brace": b"{",
    "a list": b"[]",
    "null": b"null",
    "a number": b"1",
    "a string": b'"x"',
    "a boolean": b"true",
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": Infinity}',
    "1e999": b'{"temperature": 1e999}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "Latin-1": b'{"model": "\xe9"}',
    "a lone surrogate": b'{"model": "\\ud800"}',
    "words after it": b"{} x",
    "single quotes": b"{'model': 'tiny'}",
    "a raw NUL": b'{"model": "\x00"}',
    "5000 digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "a comma too many": b'{"model": "tiny",}',
    "70 levels": b'{"metadata": ' + b"[" * 70 + b"]" * 70 + b"}",
    "100000 levels": b"[" * 100_000,
}


def raw_cases() -> Iterator[Case]:
    for path in GOOD:
        for name, data in RAW.items():
            yield Case(f"{path} {name}", path, *NOT_JSON, body=data)


# --- numbers ---------------------------------------------------------------------------------------

FLOATS = {
    "temperature": (-0.01, 100.01),
    "top_p": (-0.01, 1.01),
    "min_p": (-1, 1.5),
    "typical_p": (-1, 2),
    "xtc_probability": (-0.5, 1.5),
    "xtc_threshold": (-0.5, 1.5),
    "dry_multiplier": (-1, 101),
    "dry_base": (0.5, 101),
    "repetition_penalty": (0, 101),
    "frequency_penalty": (-101, 101),
    "presence_penalty": (-101, 101),
    "deadline_ms": (0, 1e12),
}
INTEGERS = {
    "top_k": (-2, 1 << 31),
    "dry_allowed_length": (-1, (1 << 20) + 1),
    "dry_penalty_last_n": (-2, 1 << 25),
    "repeat_last_n": (-2, 1 << 25),
    "min_tokens": (-1, 1 << 25),
    "draft_tokens": (-1, 65),
    "seed": (-(1 << 63) - 1, 1 << 63),
}
OWN_INTEGERS = [
    (CHAT, "n", 0),
    (CHAT, "n", 17),
    (CHAT, "n", -1),
    (CHAT, "n", True),
    (CHAT, "n", 1.5),
    (CHAT, "max_tokens", 0),
    (CHAT, "max_tokens", -5),
    (CHAT, "max_tokens", 1 << 30),
    (CHAT, "max_tokens", "8"),
    (CHAT, "max_completion_tokens", 0),
    (CHAT, "top_logprobs", 21),
    (CHAT, "top_logprobs", -1),
    (CHAT, "top_logprobs", 3),  # without logprobs
    (CHAT, "logprobs", 1),
    (TEXT, "n", 17),
    (TEXT, "max_tokens", -2),
    (TEXT, "logprobs", 21),
    (TEXT, "logprobs", True),
    (TEXT, "best_of", 0),
    (RESPONSES, "max_output_tokens", 0),
    (RESPONSES, "top_logprobs", 21),
    (MESSAGES, "max_tokens", 0),
    (MESSAGES, "max_tokens", "8"),
    (MESSAGES, "max_tokens", None),
    (EMBED, "dimensions", 0),
    (EMBED, "dimensions", 1 << 20),
    (EMBED, "dimensions", "3"),
    (RERANK, "top_n", 0),
    (RERANK, "top_n", -1),
    (RERANK, "top_n", True),
]


def number_cases() -> Iterator[Case]:
    for name, edges in FLOATS.items():
        for value in (*edges, "1", True, [0.5]):
            yield wrong(CHAT, name, value, INVALID)
    for name, edges in INTEGERS.items():
        for value in (*edges, 1.5, "1", True):
            yield wrong(CHAT, name, value, INVALID)
    for path in (TEXT, RESPONSES, MESSAGES):
        for name, (low, high) in {**FLOATS, **INTEGERS}.items():
            yield wrong(path, name, low, INVALID)
            yield wrong(path, name, high, INVALID)
    for path, name, value in OWN_INTEGERS:
        yield wrong(path, name, value, INVALID)


# --- fields by name --------------------------------------------------------------------------------

REFUSED: dict[str, dict[str, Any]] = {
    CHAT: {
        "audio": {"voice": "alloy", "format": "wav"},
        "modalities": ["text", "audio"],
        "functions": [{"name": "f"}],
        "function_call": "auto",
        "web_search_options": {},
        "draft_model": "small",
        "prompt_embeds": "AAAA",
        "logits_processors": ["x"],
        "use_beam_search": True,
        "mirostat": 2,
    },
    TEXT: {"suffix": "end", "draft_model": "small", "prompt_embeds": "AAAA", "best_of": 3},
    RESPONSES: {
        "previous_response_id": "resp_1",
        "conversation": "conv_1",
        "prompt": {"id": "p"},
        "background": True,
        "draft_model": "small",
    },
    MESSAGES: {"mcp_servers": [{"type": "url"}], "container": "c", "draft_model": "small"},
    COUNT: {"mcp_servers": [{"type": "url", "url": "https://a"}], "container": "c"},
}


def name_cases() -> Iterator[Case]:
    for path, fields in REFUSED.items():
        for name, value in fields.items():
            yield wrong(path, name, value, UNSUPPORTED)
    for path in GOOD:
        for name in ("temprature", "__proto__", "x" * 300, "", "Model"):
            yield wrong(path, name, 1, UNKNOWN)
    for path, good in GOOD.items():
        for name in good:
            if (path, name) != (TOKENIZE, "prompt"):
                yield wrong(path, name, ABSENT, MISSING)
    yield Case("/tokenize nothing", TOKENIZE, *MISSING, body={})


# --- the model and the switches --------------------------------------------------------------------


def common_cases() -> Iterator[Case]:
    for path in GOOD:
        yield wrong(path, "model", "no/such-model:Q4", (404, "model_not_found"))
        yield wrong(path, "model", 7, INVALID)
        yield wrong(path, "model", "m" * 513, INVALID)
    for path in GENERATING:
        yield wrong(path, "stream", "true", INVALID)
        yield wrong(path, "stream", 1, INVALID)
        yield wrong(path, "priority", "highest", INVALID)
        yield wrong(path, "priority", True, INVALID)
        yield wrong(path, "cache_salt", 5, INVALID)
        yield wrong(path, "cache_salt", "s" * 257, INVALID)
        yield wrong(path, "ignore_eos", "yes", INVALID)
        yield wrong(path, "logit_bias", {"a": 1}, INVALID)
        yield wrong(path, "logit_bias", {"-1": 1}, INVALID)
        yield wrong(path, "logit_bias", {"1": 101}, INVALID)
        yield wrong(path, "logit_bias", {"1": "5"}, INVALID)
        yield wrong(path, "logit_bias", [1], INVALID)
        yield wrong(path, "logit_bias", [[1]], INVALID)
        yield wrong(path, "logit_bias", [[1, True]], INVALID)
        yield wrong(path, "logit_bias", [["", 1]], INVALID)
        yield wrong(path, "logit_bias", [[-1, 1]], INVALID)
        yield wrong(path, "logit_bias", [[1, 101]], INVALID)
        yield wrong(path, "logit_bias", {"1": False}, INVALID)
        yield wrong(path, "logit_bias", {str(i): 1 for i in range(1025)}, INVALID)
        yield wrong(path, "stop_token_ids", [-1], INVALID)
        yield wrong(path, "stop_token_ids", ["1"], INVALID)
        yield wrong(path, "stop_token_ids", list(range(17)), INVALID)
        yield wrong(path, "regex", "", INVALID)
        yield wrong(path, "regex", "a" * 70_000, INVALID)
        yield wrong(path, "grammar", 5, INVALID)
    for path, name in ((CHAT, "stop"), (TEXT, "stop"), (MESSAGES, "stop_sequences")):
        yield wrong(path, name, [""], INVALID)
        yield wrong(path, name, ["s" * 257], INVALID)
        yield wrong(path, name, [f"s{i}" for i in range(17)], INVALID)
        yield wrong(path, name, [5], INVALID)
        yield wrong(path, name, 5, INVALID)


# --- addresses, methods, content types -------------------------------------------------------------


def http_cases() -> Iterator[Case]:
    for path in ("/nothing", "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/x", "/v2/chat/completions"):
        yield Case(f"GET {path}", path, 404, "not_found", method="GET")
        yield Case(f"POST {path}", path, 404, "not_found", body={})
    yield Case("GET /v1/messages/batches", "/v1/messages/batches", 404, "not_found", method="GET")
    for path, good in GOOD.items():
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            body = None if method == "GET" else good
            yield Case(f"{method} {path}", path, 405, "method_not_allowed", method=method, body=body)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/xml", "json"):
            headers = {"content-type": kind}
            yield Case(f"{path} as {kind}", path, 415, "unsupported_media_type", body=good, headers=headers)
        yield Case(f"{path} untyped", path, 415, "unsupported_media_type", body=good, headers={})
    for name in ("no", "no/such", "%00", "..%2f..%2fetc%2fpasswd", "tiny/", "TINY", "%F0%9F%A6%8A"):
        yield Case(f"GET model {name}", f"/v1/models/{name}", 404, "model_not_found", method="GET")
    yield Case("POST /v1/models", "/v1/models", 405, "method_not_allowed", body={})
    yield Case("too large", CHAT, 413, "body_too_large", body=b" " * (17 << 20))


def all_cases() -> list[Case]:
    from tests.server import bad_shapes

    makers = (raw_cases, number_cases, name_cases, common_cases, http_cases, *bad_shapes.MAKERS)
    return [case for make in makers for case in make()]
