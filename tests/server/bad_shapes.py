"""The second half of the table: messages, tools, shapes, contradictions, prompts and vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.server.bad_inputs import (
    ANTHROPIC_TOOL,
    CHAT,
    COUNT,
    DETOKENIZE,
    EMBED,
    FLAT_TOOL,
    GOOD,
    INVALID,
    MESSAGES,
    MISSING,
    RERANK,
    RESPONSES,
    SCHEMA_FORMAT,
    TEXT,
    TOKENIZE,
    TOOL,
    UNKNOWN,
    UNSUPPORTED,
    USER,
    Case,
    wrong,
)

# --- messages --------------------------------------------------------------------------------------

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PICTURE = "data:image/png;base64,AAAA"
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
FLAC = {"data": "AAAA", "format": "flac"}
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
    ([{"role": "user", "content": [{"type": "image_url"}]}], MISSING),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}], INVALID),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x,y"}}]}], INVALID),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": "data:audio/wav;base64,AA"}]}],
        INVALID,
    ),
    ([{"role": "assistant", "content": [{"type": "image_url", "image_url": PICTURE}]}], INVALID),
    ([{"role": "system", "content": [{"type": "image_url", "image_url": PICTURE}]}], INVALID),
    ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], MISSING),
    ([{"role": "user", "content": [{"type": "input_audio", "input_audio": FLAC}]}], INVALID),
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
    ([{"role": "developer", "content": "x"}], INVALID),
    ([{"role": "user", "content": None}], INVALID),
    ([{"role": "user", "content": []}], INVALID),
    ([{"role": "user", "content": [{"type": "text"}]}], MISSING),
    ([{"role": "user", "content": [{"text": "x"}]}], INVALID),
    ([{"role": "user", "content": [{"type": "image"}]}], MISSING),
    ([{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "data": "AA"}}]}], MISSING),
    ([{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]}], INVALID),
    ([{"role": "assistant", "content": [{"type": "image", "source": SOURCE}]}], INVALID),
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
        MISSING,
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
    ([{"type": "no_such_call", "id": "x"}], UNSUPPORTED),
    ([{"role": "user", "content": [{"type": "input_image"}]}], MISSING),
    ([{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}], INVALID),
    ([{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}], UNSUPPORTED),
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
    ({"type": "allowed_tools", "allowed_tools": {}}, MISSING),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, INVALID),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_named("g")]}}, INVALID),
    ({"type": "web_search"}, UNSUPPORTED),
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
    ({"type": "json_object", "schema": "{}"}, INVALID),
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
    for path in (CHAT, RESPONSES):
        yield replace(wrong(path, "tools", [{"type": "web_search"}], UNSUPPORTED), strict_only=True)
    custom = [{"type": "custom", "custom": {"name": "f"}}]
    yield replace(wrong(CHAT, "tools", custom, UNSUPPORTED), strict_only=True)
    yield wrong(RESPONSES, "tools", [{"type": "namespace", "name": "n"}], MISSING)
    yield wrong(RESPONSES, "tools", [{"type": "namespace", "name": "n", "tools": [{}]}], INVALID)
    yield wrong(RESPONSES, "tools", [{"type": "custom"}], MISSING)
    yield wrong(RESPONSES, "tools", [{"type": "function"}], MISSING)
    yield wrong(RESPONSES, "tools", [FLAT_TOOL, FLAT_TOOL], INVALID)
    yield replace(wrong(RESPONSES, "tools", [TOOL], UNKNOWN), missing_without=True)
    yield wrong(RESPONSES, "tools", [{**FLAT_TOOL, "strict": "very"}], INVALID)
    yield wrong(CHAT, "tools", [{"type": "function", "function": {"name": "f", "strict": 1}}], INVALID)
    yield wrong(RESPONSES, "text", {"format": {"type": "json_schema", "name": "s"}}, MISSING)
    yield wrong(RESPONSES, "text", {"format": {"type": "xml"}}, INVALID)
    yield wrong(RESPONSES, "reasoning", {"effort": "heroic"}, INVALID)
    yield replace(wrong(RESPONSES, "include", ["file_search_call.results"], INVALID), strict_only=True)
    yield wrong(RESPONSES, "truncation", "middle", INVALID)
    yield wrong(RESPONSES, "metadata", {"a": 1}, INVALID)
    yield wrong(CHAT, "reasoning_effort", "heroic", INVALID)
    yield wrong(CHAT, "chat_template_kwargs", {"tokenize": True}, UNKNOWN)
    yield wrong(CHAT, "chat_template_kwargs", {"enable_thinking": "yes"}, INVALID)
    yield wrong(CHAT, "stream_options", {"include_usage": "yes"}, INVALID)
    yield wrong(MESSAGES, "tools", [{"type": "bash_20250124", "name": "bash"}], UNSUPPORTED)
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
        (TEXT, {"prompt_logprobs": 1, "stream": True}, UNSUPPORTED),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, INVALID),
        (CHAT, {"continue_final_message": True}, INVALID),
        (CHAT, {"truncate_prompt_tokens": 0}, INVALID),
        (CHAT, {"guided_json": "{", "max_tokens": 1}, INVALID),
        (CHAT, {"guided_regex": "a", "guided_choice": ["a"]}, INVALID),
        (CHAT, {"structured_outputs": {"regex": "a", "choice": ["a"]}}, INVALID),
        (CHAT, {"json_schema": {"type": "object"}, "regex": "a"}, INVALID),
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

EMBEDDING_INPUTS: list[Any] = ["", [""], [1, "a"], ["a", [1]], [[1], "a"], [["a"]]]
PROMPTS: list[Any] = [
    [],
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
    [1, "a", [1]],
    ["a", None],
    [[1, None]],
    [[[1]]],
    [[1, True]],
    [[-5]],
    [{}],
]


def value_cases() -> Iterator[Case]:
    for prompt in PROMPTS:
        yield wrong(TEXT, "prompt", prompt, INVALID)
        yield wrong(EMBED, "input", prompt, INVALID)
    for prompt in EMBEDDING_INPUTS:
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


MAKERS = (message_cases, tool_cases, contradiction_cases, value_cases)
