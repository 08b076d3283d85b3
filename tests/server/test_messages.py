"""/v1/messages through Anthropic's own client."""

from __future__ import annotations

import asyncio

import anthropic
import pytest

from stretto.client.api import Delta
from stretto.errors import PassFailedError, PromptTooLongError, QueueFullError, ShuttingDownError
from stretto.rpc.messages import GenerateParams, TokenizeParams, ToolCallDelta
from tests.server.conftest import Rig
from tests.server.scripted import end, said

HELLO = [{"role": "user", "content": "Hello?"}]
TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {}}}
THINKS_AND_CALLS = [
    Delta(reasoning="hm"),
    Delta(text="Let me"),
    Delta(text=" look"),
    Delta(tool_calls=[ToolCallDelta(index=0, name="weather", arguments='{"a": 1}')]),
    end(),
]


def test_one_message(rig: Rig) -> None:
    reply = rig.anthropic.messages.create(
        model="tiny",
        max_tokens=9,
        messages=HELLO,
        system="Be brief",
        stop_sequences=["END"],
        metadata={"user_id": "u"},
        extra_body={"priority": "background", "seed": 3, "temperature": 0.3, "top_k": 5, "top_p": 0.8},
    )
    assert [block.type for block in reply.content] == ["text"]
    assert reply.content[0].text == "Hello there."
    assert (reply.stop_reason, reply.role, reply.type) == ("end_turn", "assistant", "message")
    assert (reply.usage.input_tokens, reply.usage.cache_read_input_tokens) == (4, 3)
    assert reply.usage.output_tokens == 5
    asked = rig.worker_client.last
    assert asked.messages == [{"role": "system", "content": "Be brief"}, HELLO[0]]
    assert (asked.max_tokens, asked.stops, asked.priority) == (9, ["END"], "background")
    assert asked.sampling == {"temperature": 0.3, "top_k": 5, "top_p": 0.8, "seed": 3}


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        (end("stop"), "end_turn", None),
        (end("length"), "max_tokens", None),
        (end("stop", stop="END"), "stop_sequence", "END"),
    ],
)
def test_stop_reasons(rig: Rig, last: Delta, reason: str, sequence: str | None) -> None:
    rig.worker_client.script = lambda params: [Delta(text="x"), last]
    reply = rig.anthropic.messages.create(model="tiny", max_tokens=9, messages=HELLO)
    assert (reply.stop_reason, reply.stop_sequence) == (reason, sequence)
    with rig.anthropic.messages.stream(model="tiny", max_tokens=9, messages=HELLO) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == (reason, sequence)


def test_blocks(rig: Rig) -> None:
    rig.worker_client.script = lambda params: THINKS_AND_CALLS
    thinking = {"type": "enabled", "budget_tokens": 1024}
    reply = rig.anthropic.messages.create(
        model="tiny", max_tokens=2000, messages=HELLO, tools=[TOOL], thinking=thinking
    )
    assert [block.type for block in reply.content] == ["thinking", "text", "tool_use"]
    assert reply.content[2].type == "tool_use"
    assert (reply.content[2].name, reply.content[2].input) == ("weather", {"a": 1})
    assert reply.stop_reason == "tool_use"
    assert rig.worker_client.last.template_options == {"enable_thinking": True}


def test_events(rig: Rig) -> None:
    rig.worker_client.script = lambda params: THINKS_AND_CALLS
    with rig.anthropic.messages.stream(model="tiny", max_tokens=2000, messages=HELLO, tools=[TOOL]) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_message()
    assert names[0] == "message_start"
    assert names[-1] == "message_stop"
    assert names.count("content_block_start") == names.count("content_block_stop") == 3
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].type == "tool_use"
    assert final.content[2].input == {"a": 1}
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens == 5


@pytest.mark.parametrize(
    ("sent", "choice", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}, True),
    ],
)
def test_tool_choice(rig: Rig, sent: dict[str, object], choice: object, parallel: bool) -> None:
    rig.anthropic.messages.create(
        model="tiny",
        max_tokens=9,
        messages=HELLO,
        tools=[TOOL],
        tool_choice=sent,  # type: ignore[arg-type]
    )
    use = rig.worker_client.last.tool_use
    assert use is not None
    assert (use.choice, use.parallel) == (choice, parallel)


def test_tool_results_become_separate_messages(rig: Rig) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    rig.anthropic.messages.create(model="tiny", max_tokens=9, messages=messages, tools=[TOOL])
    asked = rig.worker_client.last.messages
    assert asked is not None
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "user"]
    assert asked[1]["reasoning_content"] == "hm"
    assert asked[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"a":1}'}
    assert (asked[2]["tool_call_id"], asked[2]["content"]) == ("t1", "rain")


def test_count_tokens(rig: Rig) -> None:
    counted = rig.anthropic.messages.count_tokens(model="tiny", messages=HELLO, system="S", tools=[TOOL])
    asked = rig.worker_client.asked[-1]
    assert isinstance(asked, TokenizeParams)
    assert asked.messages == [{"role": "system", "content": "S"}, HELLO[0]]
    assert asked.tools is not None
    assert counted.input_tokens > 0


@pytest.mark.parametrize(
    ("error", "caught", "kind"),
    [
        (PromptTooLongError("too long"), anthropic.BadRequestError, "invalid_request_error"),
        (QueueFullError("full"), anthropic.RateLimitError, "rate_limit_error"),
        (ShuttingDownError("bye"), anthropic.APIStatusError, "overloaded_error"),
        (PassFailedError("broke"), anthropic.InternalServerError, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_in_anthropics_shape(
    rig: Rig, stream: bool, error: Exception, caught: type[Exception], kind: str
) -> None:
    rig.worker_client.script = lambda params: [error]
    with pytest.raises(caught) as seen:
        rig.anthropic.messages.create(model="tiny", max_tokens=9, messages=HELLO, stream=stream)
    body = seen.value.body  # type: ignore[attr-defined]
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert body["request_id"] == seen.value.response.headers["x-request-id"]  # type: ignore[attr-defined]


def test_a_failure_in_the_middle_is_an_error_event(rig: Rig) -> None:
    rig.worker_client.script = lambda params: [Delta(text="so far"), PassFailedError("the pass broke")]
    stream = rig.anthropic.messages.create(model="tiny", max_tokens=9, messages=HELLO, stream=True)
    with pytest.raises(anthropic.APIStatusError, match="the pass broke"):
        list(stream)


def test_models_for_this_client_too(rig: Rig) -> None:
    assert [model.id for model in rig.anthropic.models.list()] == ["tiny"]
    assert rig.anthropic.models.retrieve("tiny").display_name == "tiny"
    with pytest.raises(anthropic.NotFoundError):
        rig.anthropic.models.retrieve("other")


def test_async_client(rig: Rig) -> None:
    rig.worker_client.script = said("a", "b")

    async def ask() -> str:
        async with (
            rig.async_anthropic() as client,
            client.messages.stream(model="tiny", max_tokens=9, messages=HELLO) as stream,
        ):
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == "ab"


def test_an_answer_that_was_begun_is_continued(rig: Rig) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "The answer is"}]
    rig.anthropic.messages.create(model="tiny", max_tokens=9, messages=begun)
    assert rig.worker_client.last.continue_final
    rig.anthropic.messages.create(model="tiny", max_tokens=9, messages=HELLO)
    assert not rig.worker_client.last.continue_final
    for empty in ("", []):
        rig.anthropic.messages.create(
            model="tiny", max_tokens=9, messages=[*HELLO, {"role": "assistant", "content": empty}]
        )
        assert rig.worker_client.last.messages == HELLO
        assert not rig.worker_client.last.continue_final


def test_counted_tokens_know_choice_thinking_and_prefill(rig: Rig) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "So"}]
    rig.anthropic.messages.count_tokens(
        model="tiny",
        messages=begun,
        tools=[TOOL],
        tool_choice={"type": "none"},
        thinking={"type": "disabled"},
    )
    asked = rig.worker_client.asked[-1]
    assert (asked.tools, asked.continue_final) == (None, True)
    assert asked.template_options == {"enable_thinking": False}


@pytest.mark.parametrize("message", [str(PromptTooLongError.of(9000, 8192)), "10 > 10"])
def test_a_prompt_that_is_too_long_uses_anthropics_wording(rig: Rig, message: str) -> None:
    rig.worker_client.script = lambda params: [PromptTooLongError(message)]
    with pytest.raises(anthropic.BadRequestError) as seen:
        rig.anthropic.messages.create(model="tiny", max_tokens=9, messages=HELLO)
    told = seen.value.body["error"]["message"]  # type: ignore[index]
    assert told in (
        "prompt is too long: 9000 tokens > 8192 maximum",
        "prompt is too long: 10 tokens > 9 maximum",
    )


def test_request_ids_and_errors_are_anthropics_on_every_route(rig: Rig) -> None:
    reply = rig.anthropic.messages.create(model="tiny", max_tokens=9, messages=HELLO)
    assert (reply._request_id or "").startswith("req_")
    with pytest.raises(anthropic.NotFoundError) as seen:
        rig.anthropic.models.retrieve("other")
    assert seen.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert seen.value.request_id == seen.value.body["request_id"]  # type: ignore[index]
    plain = rig.http.get("/v1/models/other").json()
    assert plain["error"]["code"] == "model_not_found"
    assert "request_id" not in plain


def test_the_tool_runner_works_unmodified(rig: Rig) -> None:
    """It asks for a thread first, and sends whole conversations where it learns that there are none."""

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather.

        Args:
            city: Where.
        """
        return f"rain in {city}"

    def script(params: GenerateParams) -> list[Delta]:
        answered = any(message["role"] == "tool" for message in params.messages or [])
        call = ToolCallDelta(index=0, name="weather", arguments='{"city": "Rome"}')
        return [Delta(text="Rain."), end()] if answered else [Delta(tool_calls=[call]), end()]

    rig.worker_client.script = script
    runner = rig.anthropic.beta.messages.tool_runner(
        model="tiny", max_tokens=99, tools=[weather], messages=HELLO
    )
    final = runner.until_done()
    assert final.content[0].text == "Rain."  # type: ignore[union-attr]
    asked = rig.worker_client.last.messages
    assert asked is not None
    assert asked[-1]["content"] in ("rain in Rome", [{"type": "text", "text": "rain in Rome"}])
    with pytest.raises(anthropic.BadRequestError) as seen:
        rig.anthropic.messages.create(
            model="tiny", max_tokens=9, messages=HELLO, extra_body={"thread": {"type": "create"}}
        )
    assert seen.value.body["error"]["details"] == {"error_code": "thread_unsupported_request"}  # type: ignore[index]


def test_a_truncated_call_has_no_block_in_a_complete_message(rig: Rig) -> None:
    """Its input would be no object; streamed, its pieces come as they are written."""
    calls = [
        ToolCallDelta(index=0, name="weather", arguments='{"a": 1}'),
        ToolCallDelta(index=1, name="weather", arguments='{"a": ', done=False),
    ]
    rig.worker_client.script = lambda params: [Delta(tool_calls=calls), end("length")]
    asked = {"model": "tiny", "max_tokens": 9, "messages": HELLO, "tools": [TOOL]}
    reply = rig.anthropic.messages.create(**asked)
    assert [(block.type, getattr(block, "input", None)) for block in reply.content] == [
        ("tool_use", {"a": 1})
    ]
    assert reply.stop_reason == "max_tokens"
    rig.worker_client.script = lambda params: [Delta(tool_calls=calls[1:]), end("length")]
    reply = rig.anthropic.messages.create(**asked)
    assert [(block.type, getattr(block, "text", None)) for block in reply.content] == [("text", "")]
    assert reply.stop_reason == "max_tokens"
