"""The whole way, as people use it: `stretto serve` with SmolLM2, asked through the official clients."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import anthropic
import openai
import pytest

from tests.server.process import served
from tests.server.schemas100 import measure

pytestmark = pytest.mark.slow
HELLO = [{"role": "user", "content": "Say hello to the world."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@dataclass
class Clients:
    url: str
    model: str
    openai: openai.OpenAI
    anthropic: anthropic.Anthropic


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    with (
        served("--n-threads", "1", "--context-window", "2048") as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as first,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as second,
    ):
        yield Clients(url, first.models.list().data[0].id, first, second)


def test_greedy_is_the_same_streamed_and_whole(clients: Clients) -> None:
    asked = {"model": clients.model, "messages": HELLO, "temperature": 0, "max_tokens": 24}
    whole = clients.openai.chat.completions.create(**asked)
    stream = clients.openai.chat.completions.create(**asked, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == whole.choices[0].message.content
    assert text.strip()


def test_every_dialect_gives_the_same_words(clients: Clients) -> None:
    chat = clients.openai.chat.completions.create(
        model=clients.model, messages=HELLO, temperature=0, max_tokens=16
    )
    response = clients.openai.responses.create(
        model=clients.model,
        input=HELLO[0]["content"],
        temperature=0,
        max_output_tokens=16,
    )
    message = clients.anthropic.messages.create(
        model=clients.model, messages=HELLO, max_tokens=16, extra_body={"temperature": 0}
    )
    assert response.output_text == chat.choices[0].message.content == message.content[0].text
    assert message.stop_reason == "max_tokens"
    assert response.status == "incomplete"
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == (
        chat.usage.prompt_tokens if chat.usage else -1
    )


def test_counted_tokens_are_the_prompts(clients: Clients) -> None:
    counted = clients.anthropic.messages.count_tokens(model=clients.model, messages=HELLO)
    reply = clients.openai.chat.completions.create(model=clients.model, messages=HELLO, max_tokens=1)
    assert reply.usage is not None
    assert counted.input_tokens == reply.usage.prompt_tokens


def test_a_prefix_is_computed_once(clients: Clients) -> None:
    messages = [{"role": "user", "content": "A sentence that nobody has sent before this test. " * 8}]
    asked = {"model": clients.model, "messages": messages, "max_tokens": 1}
    first = clients.openai.chat.completions.create(**asked)
    second = clients.openai.chat.completions.create(**asked)
    salted = clients.openai.chat.completions.create(**asked, extra_body={"cache_salt": "other"})
    cached = [reply.usage.prompt_tokens_details.cached_tokens for reply in (first, second, salted)]
    assert cached[1] > 50
    assert cached[2] == 0


def test_the_same_seed_gives_the_same_text(clients: Clients) -> None:
    asked = {"model": clients.model, "messages": HELLO, "temperature": 1.0, "max_tokens": 16}
    texts = [
        clients.openai.chat.completions.create(**asked, seed=seed).choices[0].message.content
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_several_answers(clients: Clients) -> None:
    reply = clients.openai.chat.completions.create(
        model=clients.model, messages=HELLO, n=4, temperature=1.2, max_tokens=12, seed=5
    )
    assert len({choice.message.content for choice in reply.choices}) > 1
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 48


def test_stop_strings_are_left_out(clients: Clients) -> None:
    asked = {"model": clients.model, "prompt": "1, 2, 3, 4,", "temperature": 0, "max_tokens": 30}
    reply = clients.openai.completions.create(**asked, stop=["8"])
    assert "7" in reply.choices[0].text
    assert "8" not in reply.choices[0].text
    assert reply.choices[0].finish_reason == "stop"


def test_token_ids_and_text_are_the_same_prompt(clients: Clients) -> None:
    import httpx2

    tokens = httpx2.post(f"{clients.url}/tokenize", json={"prompt": "The capital of France is"}).json()[
        "tokens"
    ]
    asked = {"model": clients.model, "temperature": 0, "max_tokens": 8, "echo": True}
    by_text = clients.openai.completions.create(prompt="The capital of France is", **asked)
    by_tokens = clients.openai.completions.create(prompt=tokens, **asked)
    assert by_text.choices[0].text == by_tokens.choices[0].text
    assert by_text.choices[0].text.startswith("The capital of France is")


def test_logprobs_agree_with_greedy(clients: Clients) -> None:
    reply = clients.openai.chat.completions.create(
        model=clients.model, messages=HELLO, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    assert reply.choices[0].logprobs is not None
    entries = reply.choices[0].logprobs.content or []
    assert "".join(entry.token for entry in entries) == reply.choices[0].message.content
    for entry in entries:
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)


def test_logit_bias_forbids_a_token(clients: Clients) -> None:
    asked = {"model": clients.model, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 1}
    free = clients.openai.completions.create(**asked)
    import httpx2

    (token,) = httpx2.post(f"{clients.url}/tokenize", json={"prompt": free.choices[0].text}).json()["tokens"]
    biased = clients.openai.completions.create(**asked, logit_bias={str(token): -100})
    assert biased.choices[0].text != free.choices[0].text


def test_regex(clients: Clients) -> None:
    reply = clients.openai.chat.completions.create(
        model=clients.model, messages=HELLO, max_tokens=40, extra_body={"regex": "(yes|no), [0-9]{3}"}
    )
    answer = reply.choices[0].message.content or ""
    assert answer.split(", ")[0] in ("yes", "no")
    assert len(answer.split(", ")[1]) == 3


def test_forced_tool_calls_in_every_dialect(clients: Clients) -> None:
    """One call at most: asked for several this model goes on from city to city until its tokens are spent."""
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    chat = clients.openai.chat.completions.create(
        model=clients.model,
        messages=question,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=100,
    )
    assert chat.choices[0].finish_reason == "tool_calls"
    assert chat.choices[0].message.tool_calls is not None
    assert "city" in json.loads(chat.choices[0].message.tool_calls[0].function.arguments)
    with clients.anthropic.messages.stream(
        model=clients.model,
        messages=question,
        max_tokens=100,
        tools=[{"name": "weather", "input_schema": TOOL["function"]["parameters"]}],
        tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
    ) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    assert message.content[0].type == "tool_use"
    assert "city" in message.content[0].input


def test_a_schema_that_does_not_compile_is_refused_by_name(clients: Clients) -> None:
    shape = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "nothing"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        clients.openai.chat.completions.create(model=clients.model, messages=HELLO, response_format=shape)
    assert caught.value.code == "invalid_grammar"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers(clients: Clients, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match="2048") as caught:
        clients.openai.completions.create(model=clients.model, prompt=[1] * 3000, stream=stream)
    assert caught.value.code == "context_length_exceeded"


def test_tokens_outside_the_vocabulary(clients: Clients) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        clients.openai.completions.create(model=clients.model, prompt=[1, 2_000_000])
    assert caught.value.code == "invalid_token"


def test_a_deadline(clients: Clients) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        clients.openai.completions.create(
            model=clients.model,
            prompt="x",
            max_tokens=1500,
            extra_body={"deadline_ms": 300, "ignore_eos": True},
        )
    assert caught.value.status_code == 408
    assert caught.value.code == "deadline_exceeded"


def test_many_at_once(clients: Clients) -> None:
    def ask(at: int) -> str:
        stream = clients.openai.chat.completions.create(
            model=clients.model,
            messages=[{"role": "user", "content": f"Count from {at}."}],
            max_tokens=8,
            temperature=0,
            stream=True,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    alone = [ask(at) for at in range(3)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(ask, [0, 1, 2, 0, 1, 2]))
    assert together == alone * 2


def test_one_reader_more_than_slots_need_not_wait_for_an_answer(clients: Clients) -> None:
    """Four slots write 60 tokens each; the fifth stream begins before any of them is done."""
    asked = {"model": clients.model, "temperature": 0, "max_tokens": 60, "extra_body": {"ignore_eos": True}}
    texts = [f"Write about the number {number}." for number in range(5)]
    moments: dict[int, list[float]] = {}

    def read(number: int) -> str:
        messages = [{"role": "user", "content": texts[number]}]
        words = []
        for chunk in clients.openai.chat.completions.create(messages=messages, stream=True, **asked):
            moments.setdefault(number, []).append(time.monotonic())
            words.append(chunk.choices[0].delta.content or "")
        return "".join(words)

    with ThreadPoolExecutor(5) as pool:
        together = list(pool.map(read, range(5)))
    begun, ended = ([seen[at] for seen in moments.values()] for at in (1, -1))
    assert max(begun) < min(ended)
    assert together == [read(number) for number in range(5)]


def test_a_few_schemas_and_forced_calls(clients: Clients) -> None:
    found = asyncio.run(measure(clients.url, schemas=5, tools=4))
    assert found["complete"] >= 4
    assert found["invalid"] == []
    assert found["tool_calls_parsed"] == 4, found["tool_problems"]


ANTHROPIC_TOOL = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": TOOL["function"]["parameters"],
}


def test_tools_are_shown_to_a_model_whose_template_ignores_them(clients: Clients) -> None:
    asked = {"model": clients.model, "messages": HELLO, "max_tokens": 4}
    bare = clients.openai.chat.completions.create(**asked)
    offered = clients.openai.chat.completions.create(**asked, tools=[TOOL])
    assert offered.usage.prompt_tokens > bare.usage.prompt_tokens + 40
    assert clients.openai.models.retrieve(clients.model).to_dict()["tools"] == "system prompt"


def test_counted_tokens_are_those_of_the_request(clients: Clients) -> None:
    for extra in (
        {},
        {"system": "Be brief.", "tools": [ANTHROPIC_TOOL]},
        {"tools": [ANTHROPIC_TOOL], "tool_choice": {"type": "none"}},
    ):
        for messages in (HELLO, [*HELLO, {"role": "assistant", "content": "Hello, wor"}]):
            counted = clients.anthropic.messages.count_tokens(model=clients.model, messages=messages, **extra)
            reply = clients.anthropic.messages.create(
                model=clients.model, messages=messages, max_tokens=2, **extra
            )
            used = reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0)
            assert counted.input_tokens == used


def test_an_assistant_message_at_the_end_is_continued(clients: Clients) -> None:
    begun = [
        {"role": "user", "content": "Count from 1 to 9, separated by commas."},
        {"role": "assistant", "content": "1, 2, 3, 4,"},
    ]
    reply = clients.anthropic.messages.create(
        model=clients.model, messages=begun, max_tokens=8, extra_body={"temperature": 0}
    )
    assert reply.content[0].text.lstrip().startswith("5")


def test_the_first_and_last_event_agree_on_the_prompt_also_when_it_was_cached(clients: Clients) -> None:
    asked = {"model": clients.model, "messages": HELLO, "max_tokens": 4, "system": "You like short words."}
    for _ in range(2):
        events = list(clients.anthropic.messages.create(**asked, stream=True))
        first = events[0].message.usage
        last = next(event.usage for event in events if event.type == "message_delta")
        assert first.input_tokens == last.input_tokens
        assert first.cache_read_input_tokens == last.cache_read_input_tokens
    assert first.cache_read_input_tokens > 0


def test_forced_input_is_streamed_in_pieces(clients: Clients) -> None:
    stream = clients.anthropic.messages.create(
        model=clients.model,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        max_tokens=60,
        tools=[ANTHROPIC_TOOL],
        tool_choice={"type": "tool", "name": "weather"},
        stream=True,
    )
    pieces = [event.delta.partial_json for event in stream if event.type == "content_block_delta"]
    assert len(pieces) > 1
    assert "city" in json.loads("".join(pieces))


def test_answers_held_to_a_schema_end_within_their_tokens(clients: Clients) -> None:
    """The whole measurement is benchmarks/structured.py."""
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["happy", "sad"]}, "why": {"type": "string"}},
        "required": ["mood", "why"],
        "additionalProperties": False,
    }
    shape = {"type": "json_schema", "json_schema": {"name": "mood", "schema": schema}}
    for seed in range(6):
        options = {"seed": seed, "temperature": 0.7, "max_tokens": 30}
        reply = clients.openai.chat.completions.create(
            model=clients.model, messages=HELLO, response_format=shape, **options
        )
        assert reply.choices[0].finish_reason == "stop"
        assert set(json.loads(reply.choices[0].message.content)) == {"mood", "why"}
        reply = clients.openai.chat.completions.create(
            model=clients.model, messages=HELLO, tools=[TOOL], tool_choice="required", **options
        )
        assert reply.choices[0].finish_reason == "tool_calls"
        assert not reply.choices[0].message.content
        for call in reply.choices[0].message.tool_calls:
            assert "city" in json.loads(call.function.arguments)
