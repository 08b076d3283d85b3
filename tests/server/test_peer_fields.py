"""Fields that clients of vLLM, llama-server and Ollama send: each one has its effect on the generation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stretto.client.api import Delta
from stretto.rpc.messages import GenerateParams, PromptProgress
from tests.server.conftest import Rig
from tests.server.scripted import end, logprob, said

HELLO = [{"role": "user", "content": "Hello?"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def asked(rig: Rig, fields: dict[str, Any], path: str = CHAT) -> GenerateParams:
    body = {"messages": HELLO} if path == CHAT else {"prompt": "Once"}
    reply = rig.http.post(path, json={**body, **fields})
    assert reply.status_code == 200, reply.text
    assert "x-stretto-ignored-fields" not in reply.headers
    return rig.worker_client.last


@pytest.mark.parametrize(
    ("fields", "mode", "value"),
    [
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", SCHEMA),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["yes", "no (never)"]}, "regex", r"(yes|no \(never\))"),
        ({"guided_grammar": 'root ::= "a"'}, "grammar", 'root ::= "a"'),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"choice": ["a.b"]}}, "regex", r"(a\.b)"),
        ({"structured_outputs": {"json_object": True}}, "json_object", None),
        ({"json_schema": SCHEMA}, "json_schema", SCHEMA),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "json_schema", SCHEMA),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, "json_schema", SCHEMA),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            "json_schema",
            SCHEMA,
        ),
    ],
)
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_shapes(rig: Rig, path: str, fields: dict[str, Any], mode: str, value: Any) -> None:
    guidance = asked(rig, fields, path).guidance
    assert guidance is not None
    assert (guidance.mode, guidance.value) == (mode, value)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": True}, {"enable_thinking": True}),
        ({"think": False}, {"enable_thinking": False}),
        ({"think": "high"}, {"enable_thinking": True, "reasoning_effort": "high"}),
        ({"reasoning": {"effort": "low"}}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "reasoning_effort": "none"}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ],
)
def test_thinking_by_every_name(rig: Rig, fields: dict[str, Any], options: dict[str, Any]) -> None:
    assert asked(rig, fields).template_options == options


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"max_tokens": -1}, "max_tokens", None),
        ({"n_predict": 7}, "max_tokens", 7),
        ({"n_predict": -1}, "max_tokens", None),
        ({"options": {"num_predict": 9}}, "max_tokens", 9),
        ({"options": {"stop": ["x"]}}, "stops", ["x"]),
        ({"stop": ""}, "stops", []),
        ({"priority": -3}, "priority", "urgent"),
        ({"priority": 0}, "priority", "default"),
        ({"priority": 5}, "priority", "background"),
        ({"truncate_prompt_tokens": 100}, "truncate_prompt_tokens", 100),
        ({"skip_special_tokens": False}, "show_control", True),
        ({"include_stop_str_in_output": True}, "include_stop", True),
        ({"add_generation_prompt": False}, "add_generation_prompt", False),
        ({"logit_bias": [["Paris", False], ["x", 2]]}, "bias_texts", [("Paris", -100.0), ("x", 2.0)]),
        ({"keep_alive": "5m"}, "max_tokens", None),
    ],
)
def test_values(rig: Rig, fields: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(asked(rig, fields), name) == value


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"repeat_penalty": 1.3}, {"repeat_penalty": 1.3}),
        ({"logit_bias": [[12, -1.5], [13, False]]}, {"logit_bias": {12: -1.5, 13: -100.0}}),
        ({"options": {"temperature": 0.1, "top_k": 3}}, {"temperature": 0.1, "top_k": 3}),
        ({"options": {"temperature": 0.1, "seed": 5}, "temperature": 0.9}, {"temperature": 0.9, "seed": 5}),
    ],
)
def test_sampling(rig: Rig, fields: dict[str, Any], sampling: dict[str, Any]) -> None:
    found = asked(rig, fields).sampling
    assert {name: found[name] for name in sampling} == sampling


def test_cache_prompt_false_does_not_share_prefixes(rig: Rig) -> None:
    first = asked(rig, {"cache_prompt": False}).cache_salt
    second = asked(rig, {"cache_prompt": False}).cache_salt
    assert first
    assert second
    assert first != second
    assert asked(rig, {"cache_prompt": True}).cache_salt == ""


def test_options_that_have_no_meaning_here_are_named(rig: Rig) -> None:
    reply = rig.http.post(CHAT, json={"messages": HELLO, "options": {"num_ctx": 4096}, "verbosity": "low"})
    assert reply.headers["x-stretto-ignored-fields"] == "options.num_ctx, verbosity"


def test_a_last_message_of_the_assistant_is_continued(rig: Rig) -> None:
    begun = {"messages": [*HELLO, {"role": "assistant", "content": "Hel"}]}
    assert asked(rig, begun).continue_final
    assert not asked(rig, {**begun, "continue_final_message": False}).continue_final
    assert not asked(rig, {**begun, "add_generation_prompt": True}).continue_final
    assert not asked(rig, {}).continue_final


def test_refusals_become_assistant_content(rig: Rig) -> None:
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "refusal": "I will not."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Because."}]},
        *HELLO,
    ]
    found = asked(rig, {"messages": messages}).messages
    assert found is not None
    assert found[1]["content"] == "I will not."
    assert found[3]["content"] == [{"type": "text", "text": "Because."}]


def test_allowed_tools(rig: Rig) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("a", "b", "c")]
    allowed = [{"type": "function", "function": {"name": name}} for name in ("b", "c")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": allowed}}
    use = asked(rig, {"tools": tools, "tool_choice": choice}).tool_use
    assert use is not None
    assert use.choice == "required"
    assert [tool["function"]["name"] for tool in use.tools] == ["b", "c"]


def test_hosted_tools_are_left_out_and_named(rig: Rig) -> None:
    tools = [{"type": "web_search"}, {"type": "function", "function": {"name": "a"}}]
    reply = rig.http.post(CHAT, json={"messages": HELLO, "tools": tools})
    assert reply.headers["x-stretto-ignored-fields"] == "tools.web_search"
    assert rig.worker_client.last.tool_use is not None
    assert [tool["function"]["name"] for tool in rig.worker_client.last.tool_use.tools] == ["a"]


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        (["Once ", 12, "upon"], [{"pieces": ["Once ", 12, "upon"]}]),
        ([["a", 1], "b", [2, 3]], [{"pieces": ["a", 1]}, {"prompt": "b"}, {"tokens": [2, 3]}]),
        ("", [{"prompt": ""}]),
    ],
)
def test_mixed_prompts(rig: Rig, prompt: Any, fields: list[dict[str, Any]]) -> None:
    asked(rig, {"prompt": prompt}, TEXT)
    for call, wanted in zip(rig.worker_client.calls, fields, strict=True):
        for name in ("prompt", "tokens", "pieces"):
            assert getattr(call, name) == wanted.get(name)


# --- streams -----------------------------------------------------------------------------------------


def events(rig: Rig, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = rig.http.post(path, json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_usage_in_every_chunk(rig: Rig, path: str) -> None:
    rig.worker_client.script = said("a", "b", "c", completion_tokens=3)
    body = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = events(rig, path, {**body, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts)
    assert {1, 2, 3} <= set(counts)
    assert all(chunk["usage"]["prompt_tokens"] == 7 for chunk in found)
    assert found[-1]["choices"] == []


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_progress_of_the_prompt(rig: Rig, path: str) -> None:
    half = Delta(progress=PromptProgress(computed=8, total=16, cached=4, time_s=0.25))
    rig.worker_client.script = lambda params: [half, Delta(text="a", token_count=1), end()]
    body = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    found = events(rig, path, {**body, "return_progress": True})
    assert rig.worker_client.last.progress
    assert found[0]["prompt_progress"] == {"total": 16, "cache": 4, "processed": 8, "time_ms": 250}
    assert not any("prompt_progress" in chunk for chunk in found[1:])


def test_the_fingerprint_is_stable(rig: Rig) -> None:
    whole = rig.http.post(CHAT, json={"messages": HELLO}).json()["system_fingerprint"]
    assert whole.startswith("fp_")
    assert {chunk["system_fingerprint"] for chunk in events(rig, CHAT, {"messages": HELLO})} == {whole}


# --- prompts that are measured -------------------------------------------------------------------------

MEASURED = [logprob("On", 0.0), logprob("ce", -1.5, ("ce", -1.5)), logprob(" upon", -0.25, (" a", -0.1))]


def measured(params: GenerateParams) -> list[Any]:
    assert params.sampling["prompt_logprobs"] == 1
    answer = Delta(text="!", token_count=1, logprobs=[logprob("!", -2.0, ("!", -2.0))])
    return [Delta(prompt_logprobs=MEASURED[:2]), Delta(prompt_logprobs=MEASURED[2:]), answer, end()]


def test_echo_with_logprobs(rig: Rig) -> None:
    rig.worker_client.script = measured
    body = {"prompt": "Once upon", "echo": True, "logprobs": 1, "max_tokens": 1}
    (choice,) = rig.http.post(TEXT, json=body).json()["choices"]
    assert choice["text"] == "Once upon!"
    assert choice["logprobs"]["tokens"] == ["On", "ce", " upon", "!"]
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5, -0.25, -2.0]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["top_logprobs"][2] == {" a": -0.1, " upon": -0.25}
    assert choice["logprobs"]["text_offset"] == [0, 2, 4, 9]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_without_an_answer(rig: Rig, stream: bool) -> None:
    rig.worker_client.script = measured
    body = {"prompt": "Once upon", "echo": True, "logprobs": 1, "max_tokens": 0}
    if stream:
        found = events(rig, TEXT, {**body, "stream_options": {"include_usage": True}})
        choice, usage = found[0]["choices"][0], found[-1]["usage"]
    else:
        reply = rig.http.post(TEXT, json=body).json()
        (choice,), usage = reply["choices"], reply["usage"]
    assert choice["text"] == "Once upon"
    assert choice["logprobs"]["token_logprobs"] == [None, -1.5, -0.25]
    assert choice["finish_reason"] == "length"
    assert usage["completion_tokens"] == 0


def test_prompt_logprobs_as_vllm_shows_them(rig: Rig) -> None:
    rig.worker_client.script = measured
    reply = rig.http.post(CHAT, json={"messages": HELLO, "prompt_logprobs": 1}).json()
    first, second, third = reply["prompt_logprobs"]
    assert first is None
    assert second == {"1": {"logprob": -1.5, "rank": 1, "decoded_token": "ce"}}
    assert third["1"]["decoded_token"] in (" a", " upon")


def test_texts_are_banned_in_the_other_dialect_too(rig: Rig) -> None:
    body = {"messages": HELLO, "max_tokens": 8, "logit_bias": [["Paris", False], [3, 1]]}
    assert rig.http.post("/v1/messages", json=body).status_code == 200
    assert rig.worker_client.last.bias_texts == [("Paris", -100.0)]
    assert rig.worker_client.last.sampling["logit_bias"] == {3: 1.0}
