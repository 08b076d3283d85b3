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


def wrong(path: str, name: str, value: Any, answer: tuple[int, str]) -> Case:
    """The good request of a route with one field changed; a dot in the name goes one level down."""
    body = dict(GOOD[path])
    if value is ABSENT:
        del body[name]
    else:
        body[name] = value
    shown = "absent" if value is ABSENT else repr(value)[:48]
    return Case(f"{path} {name}={shown}", path, *answer, body=body)


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
    (TEXT, "max_tokens", 0),
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
        "verbosity": "low",
        "draft_model": "small",
        "prompt_embeds": "AAAA",
        "logits_processors": ["x"],
    },
    TEXT: {"suffix": "end", "draft_model": "small", "prompt_embeds": "AAAA", "best_of": 3},
    RESPONSES: {
        "previous_response_id": "resp_1",
        "conversation": "conv_1",
        "prompt": {"id": "p"},
        "background": True,
        "truncation": "auto",
        "max_tool_calls": 3,
        "context_management": [],
        "draft_model": "small",
        "text": {"verbosity": "low"},
    },
    MESSAGES: {"mcp_servers": [], "container": "c", "draft_model": "small"},
    COUNT: {"mcp_servers": [], "container": "c"},
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
        yield wrong(path, "priority", 0, INVALID)
        yield wrong(path, "cache_salt", 5, INVALID)
        yield wrong(path, "cache_salt", "s" * 257, INVALID)
        yield wrong(path, "ignore_eos", "yes", INVALID)
        yield wrong(path, "logit_bias", {"a": 1}, INVALID)
        yield wrong(path, "logit_bias", {"-1": 1}, INVALID)
        yield wrong(path, "logit_bias", {"1": 101}, INVALID)
        yield wrong(path, "logit_bias", {"1": "5"}, INVALID)
        yield wrong(path, "logit_bias", [1], INVALID)
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


# --- messages --------------------------------------------------------------------------------------

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT_MESSAGES: list[tuple[Any, tuple[int, str]]] = [
    ([], INVALID),
    ({}, INVALID),
    ("Hello?", INVALID),
    ([None], INVALID),
    (["Hello?"], INVALID),
    ([{}], MISSING),
    ([{"content": "x"}], MISSING),
    ([{"role": "user"}], MISSING),
    ([{"role": "user", "content": None}], MISSING),
    ([{"role": "robot", "content": "x"}], INVALID),
    ([{"role": 5, "content": "x"}], INVALID),
    ([{"role": "user", "content": 5}], INVALID),
    ([{"role": "user", "content": []}], INVALID),
    ([{"role": "user", "content": {"type": "text", "text": "x"}}], INVALID),
    ([{"role": "user", "content": ["x"]}], INVALID),
    ([{"role": "user", "content": [{"type": "text"}]}], MISSING),
    ([{"role": "user", "content": [{"type": "text", "text": 5}]}], INVALID),
    ([{"role": "user", "content": [{"type": "poem", "text": "x"}]}], INVALID),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "file", "file": {}}]}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "video_url", "video_url": {}}]}], UNSUPPORTED),
    ([{"role": "user", "content": "x", "mood": "good"}], UNKNOWN),
    ([{"role": "user", "content": "x", "name": 5}], INVALID),
    ([{"role": "user", "content": "x", "name": "n" * 257}], INVALID),
    ([{"role": "user", "content": "x", "tool_calls": [CALL]}], INVALID),
    ([{"role": "tool", "content": "x"}], MISSING),
    ([{"role": "tool", "tool_call_id": "c"}], MISSING),
    ([{"role": "tool", "content": "x", "tool_call_id": 5}], INVALID),
    ([{"role": "assistant", "content": None}], MISSING),
    ([{"role": "assistant", "tool_calls": []}], MISSING),
    ([{"role": "assistant", "tool_calls": [{}]}], MISSING),
    ([{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}], INVALID),
    ([{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f"}}]}], MISSING),
    ([{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "", "arguments": ""}}]}], INVALID),
    ([{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}], INVALID),
    ([{"role": "assistant", "content": "x", "audio": {"id": "a"}}], UNSUPPORTED),
    ([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}], UNSUPPORTED),
    ([USER] * 4097, INVALID),
]
ANTHROPIC_MESSAGES: list[tuple[Any, tuple[int, str]]] = [
    ([], INVALID),
    ("Hello?", INVALID),
    ([{}], MISSING),
    ([{"role": "user"}], MISSING),
    ([{"role": "system", "content": "x"}], INVALID),
    ([{"role": "user", "content": None}], INVALID),
    ([{"role": "user", "content": []}], INVALID),
    ([{"role": "user", "content": [{"type": "text"}]}], MISSING),
    ([{"role": "user", "content": [{"text": "x"}]}], INVALID),
    ([{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "document", "source": {}}]}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "server_tool_use", "id": "s"}]}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}], INVALID),
    ([{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}], INVALID),
    ([{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}], MISSING),
    (
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "{}"}]}],
        INVALID,
    ),
    ([{"role": "user", "content": [{"type": "tool_result"}]}], MISSING),
    (
        [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}],
            }
        ],
        UNSUPPORTED,
    ),
    ([{"role": "user", "content": "x", "name": "n"}], UNKNOWN),
]
ITEMS: list[tuple[Any, tuple[int, str]]] = [
    ("", INVALID),
    (5, INVALID),
    ([], INVALID),
    (["x"], INVALID),
    ([{}], MISSING),
    ([{"role": "user"}], MISSING),
    ([{"role": "tool", "content": "x"}], INVALID),
    ([{"type": "item_reference", "id": "x"}], UNSUPPORTED),
    ([{"type": "web_search_call", "id": "x"}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "input_text"}]}], MISSING),
    ([{"role": "user", "content": []}], INVALID),
    ([{"type": "function_call", "name": "f", "arguments": "{}"}], MISSING),
    ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}], INVALID),
    ([{"type": "function_call_output", "call_id": "c"}], MISSING),
    ([{"type": "function_call_output", "call_id": "c", "output": 5}], INVALID),
    ([{"type": "message", "role": "user", "content": "x", "mood": 1}], UNKNOWN),
]


def message_cases() -> Iterator[Case]:
    for messages, answer in CHAT_MESSAGES:
        yield wrong(CHAT, "messages", messages, answer)
        yield Case(f"{TOKENIZE} messages={messages!r:.48}", TOKENIZE, *answer, body={"messages": messages})
    for messages, answer in ANTHROPIC_MESSAGES:
        yield wrong(MESSAGES, "messages", messages, answer)
        yield wrong(COUNT, "messages", messages, answer)
    for items, answer in ITEMS:
        yield wrong(RESPONSES, "input", items, answer)
    for path in (MESSAGES, COUNT):
        yield wrong(path, "system", 5, INVALID)
        yield wrong(path, "system", [{"type": "image"}], UNSUPPORTED)


# --- tools and shapes ------------------------------------------------------------------------------


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


TOOLS: list[tuple[Any, tuple[int, str]]] = [
    ([], INVALID),
    ({}, INVALID),
    (["f"], INVALID),
    ([{}], MISSING),
    ([{"type": "function"}], MISSING),
    ([{"type": "web_search"}], UNSUPPORTED),
    ([{"type": "custom", "custom": {"name": "f"}}], UNSUPPORTED),
    ([{"type": "function", "function": {}}], MISSING),
    ([_named("")], INVALID),
    ([_named("two words")], INVALID),
    ([_named("n" * 65)], INVALID),
    ([_named("naïve")], INVALID),
    ([_named("f\n")], INVALID),
    ([{"type": "function", "function": {"name": "f", "parameters": []}}], INVALID),
    ([{"type": "function", "function": {"name": "f", "parameters": "{}"}}], INVALID),
    ([{"type": "function", "function": {"name": "f", "description": 5}}], INVALID),
    ([{"type": "function", "function": {"name": "f"}, "extra": 1}], UNKNOWN),
    ([TOOL, TOOL], INVALID),
    ([_named(f"f{i}") for i in range(129)], INVALID),
]
CHOICES: list[tuple[Any, tuple[int, str]]] = [
    ("any", INVALID),
    ("f", INVALID),
    (5, INVALID),
    ({}, MISSING),
    ({"type": "function"}, MISSING),
    (_named("g"), INVALID),
    ({"type": "allowed_tools", "allowed_tools": {}}, UNSUPPORTED),
]
FORMATS: list[tuple[Any, tuple[int, str]]] = [
    ("json", INVALID),
    ({}, INVALID),
    ({"type": "xml"}, INVALID),
    ({"type": "json_schema"}, MISSING),
    ({"type": "json_schema", "json_schema": {}}, MISSING),
    ({"type": "json_schema", "json_schema": {"name": "s"}}, MISSING),
    ({"type": "json_schema", "json_schema": {"name": "s", "schema": "{}"}}, INVALID),
    ({"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}, INVALID),
    ({"type": "json_schema", "json_schema": {"name": "s", "schema": {"a": "x" * 300_000}}}, INVALID),
    ({"type": "json_object", "schema": {}}, UNKNOWN),
    ({"type": "text", "extra": 1}, UNKNOWN),
]


def tool_cases() -> Iterator[Case]:
    for tools, answer in TOOLS:
        yield wrong(CHAT, "tools", tools, answer)
    for choice, answer in CHOICES:
        body = {**GOOD[CHAT], "tools": [TOOL], "tool_choice": choice}
        yield Case(f"{CHAT} tool_choice={choice!r:.48}", CHAT, *answer, body=body)
    for shape, answer in FORMATS:
        yield wrong(CHAT, "response_format", shape, answer)
        yield wrong(TEXT, "response_format", shape, answer)
    yield wrong(RESPONSES, "tools", [{"type": "web_search"}], UNSUPPORTED)
    yield wrong(RESPONSES, "tools", [{"type": "function"}], MISSING)
    yield wrong(RESPONSES, "tools", [FLAT_TOOL, FLAT_TOOL], INVALID)
    yield wrong(RESPONSES, "tools", [TOOL], UNKNOWN)
    yield wrong(RESPONSES, "text", {"format": {"type": "json_schema", "name": "s"}}, MISSING)
    yield wrong(RESPONSES, "text", {"format": {"type": "xml"}}, INVALID)
    yield wrong(RESPONSES, "reasoning", {"effort": "heroic"}, INVALID)
    yield wrong(RESPONSES, "include", ["file_search_call.results"], INVALID)
    yield wrong(RESPONSES, "metadata", {"a": 1}, INVALID)
    yield wrong(CHAT, "reasoning_effort", "heroic", INVALID)
    yield wrong(CHAT, "chat_template_kwargs", {"tokenize": True}, UNKNOWN)
    yield wrong(CHAT, "chat_template_kwargs", {"enable_thinking": "yes"}, INVALID)
    yield wrong(CHAT, "stream_options", {"include_usage": "yes"}, INVALID)
    yield wrong(MESSAGES, "tools", [{"type": "web_search_20250305", "name": "web_search"}], UNSUPPORTED)
    yield wrong(MESSAGES, "tools", [{"name": "f"}], MISSING)
    yield wrong(MESSAGES, "tools", [{"name": "a b", "input_schema": {}}], INVALID)
    yield wrong(MESSAGES, "tool_choice", {"type": "required"}, INVALID)
    yield wrong(MESSAGES, "thinking", {"type": "hard"}, INVALID)
    yield wrong(MESSAGES, "thinking", {"type": "enabled", "budget_tokens": 0}, INVALID)
    yield wrong(MESSAGES, "output_config", {"format": {"type": "json_schema"}}, MISSING)


def contradiction_cases() -> Iterator[Case]:
    shaped = {"response_format": SCHEMA_FORMAT}
    pairs: list[tuple[str, dict[str, Any], tuple[int, str]]] = [
        (CHAT, {"stream_options": {"include_usage": True}}, INVALID),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, INVALID),
        (CHAT, {"parallel_tool_calls": False}, INVALID),
        (CHAT, {"tool_choice": "required"}, INVALID),
        (CHAT, {"tool_choice": _named("f")}, INVALID),
        (CHAT, {"regex": "a", "grammar": 'root ::= "a"'}, INVALID),
        (CHAT, {"regex": "a", **shaped}, INVALID),
        (CHAT, {"grammar": 'root ::= "a"', **shaped}, INVALID),
        (CHAT, {"tools": [TOOL], **shaped}, INVALID),
        (CHAT, {"tools": [TOOL], "tool_choice": "required", "regex": "a"}, INVALID),
        (TEXT, {"stream_options": {"include_usage": True}}, INVALID),
        (TEXT, {"echo": True, "logprobs": 1}, UNSUPPORTED),
        (TEXT, {"n": 2, "best_of": 3}, UNSUPPORTED),
        (TEXT, {"prompt": ["a"] * 64, "n": 3}, INVALID),
        (TEXT, {"regex": "a", **shaped}, INVALID),
        (RESPONSES, {"tool_choice": "required"}, INVALID),
        (RESPONSES, {"tools": [FLAT_TOOL], "text": {"format": {"type": "json_object"}}}, INVALID),
        (RESPONSES, {"tools": [FLAT_TOOL], "tool_choice": {"type": "function", "name": "g"}}, INVALID),
        (MESSAGES, {"tool_choice": {"type": "any"}}, INVALID),
        (MESSAGES, {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "tool"}}, INVALID),
        (MESSAGES, {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "auto", "name": "f"}}, INVALID),
        (MESSAGES, {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "tool", "name": "g"}}, INVALID),
        (MESSAGES, {"tools": [ANTHROPIC_TOOL], "regex": "a"}, INVALID),
        (TOKENIZE, {"content": "b"}, INVALID),
        (TOKENIZE, {"messages": [USER]}, INVALID),
        (TOKENIZE, {"tools": [TOOL]}, INVALID),
    ]
    for path, fields, answer in pairs:
        name = f"{path} {' and '.join(fields)}"
        yield Case(name, path, *answer, body={**GOOD[path], **fields})


# --- prompts, vectors, tokens ----------------------------------------------------------------------

PROMPTS: list[Any] = [
    "",
    [],
    [""],
    [[]],
    5,
    True,
    {},
    None,
    [None],
    [True],
    [1.5],
    [-1],
    [1 << 31],
    [1, "a"],
    ["a", [1]],
    [[1], "a"],
    [["a"]],
    [[[1]]],
    [[1, True]],
    [[-5]],
    [{}],
]


def value_cases() -> Iterator[Case]:
    for prompt in PROMPTS:
        yield wrong(TEXT, "prompt", prompt, INVALID)
        yield wrong(EMBED, "input", prompt, INVALID)
    yield wrong(TEXT, "prompt", ["a"] * 65, INVALID)
    yield wrong(TEXT, "echo", "yes", INVALID)
    yield wrong(EMBED, "input", ["a"] * 2049, INVALID)
    yield wrong(EMBED, "encoding_format", "int8", INVALID)
    yield wrong(EMBED, "truncate", "middle", INVALID)
    yield wrong(EMBED, "normalize", 1, INVALID)
    for tokens in ("x", {}, [1.5], ["1"], [True], [-1], [1 << 31], [[1]], None, 5):
        yield wrong(DETOKENIZE, "tokens", tokens, INVALID)
    for text in (5, [], {}, True):
        yield wrong(TOKENIZE, "prompt", text, INVALID)
    yield wrong(TOKENIZE, "special", "yes", INVALID)
    for query in ("", 5, None, ["q"]):
        yield wrong(RERANK, "query", query, INVALID)
    for documents in ([], "d", [""], [5], [None], [{"text": 5}], [{"title": "d"}], [{}], ["d"] * 2049):
        yield wrong(RERANK, "documents", documents, INVALID)
    yield wrong(RERANK, "return_documents", "yes", INVALID)
    yield wrong(RERANK, "raw_scores", 1, INVALID)
    yield wrong(EMBED, "model", "tiny", (400, "unsupported_by_model"))
    yield wrong(RERANK, "model", "tiny", (400, "unsupported_by_model"))


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
    yield Case("too large", CHAT, 413, "body_too_large", body=b" " * (5 << 20))


def all_cases() -> list[Case]:
    makers = (
        raw_cases,
        number_cases,
        name_cases,
        common_cases,
        message_cases,
        tool_cases,
        contradiction_cases,
        value_cases,
        http_cases,
    )
    return [case for make in makers for case in make()]
