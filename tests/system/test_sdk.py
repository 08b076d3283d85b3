"""The SDK with a real model: eight prompts in one batch, cache hits, cancellation."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time

import pytest

from stretto import LLM
from stretto.errors import DeadlineError, InvalidRequestError, PromptTooLongError
from tests.system import parity

GREEDY = {"temperature": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def llm(smollm2):
    with LLM(smollm2, n_threads=1, n_seq_max=4, context_window=1024) as model:
        yield model


@pytest.mark.usefixtures("drafts_pay")
def test_greedy_text_equals_a_plain_llama_cpp_loop(smollm2):
    tallies = parity.run(4, full=False, path=smollm2)
    assert [tally.setting for tally in tallies if not tally.held] == []
    drafted = {tally.setting for tally in tallies if tally.accepted_drafts}
    assert drafted >= {"speculation, warm", "speculation, llama.cpp's kernels, warm"}
    assert "speculation, declined, warm" not in drafted


def test_three_lines_of_python(llm):
    answer = llm.chat("Name a colour.", max_tokens=12, seed=1)
    assert answer.text
    assert answer.finish_reason in ("stop", "length")
    assert answer.usage.prompt_tokens > 5
    assert answer.usage.completion_tokens == len(answer.tokens)


def test_more_prompts_than_slots_come_back_in_order(llm):
    prompts = [f"{n} plus one is" for n in range(10)]
    answers = llm.generate(prompts, max_tokens=6, **GREEDY)
    alone = [llm.generate(prompt, max_tokens=6, **GREEDY)[0].tokens for prompt in prompts[:3]]
    assert [answer.tokens for answer in answers[:3]] == alone
    assert [answer.index for answer in answers] == list(range(10))


def test_n_branches_share_the_prompt_and_differ_by_seed(llm):
    answers = llm.generate("Once upon a time", n=6, max_tokens=8, temperature=1.0, seed=7)
    again = llm.generate("Once upon a time", n=6, max_tokens=8, temperature=1.0, seed=7)
    assert [a.tokens for a in answers] == [a.tokens for a in again]
    assert len({a.tokens for a in answers}) > 1


def test_many_threads_share_the_slots(llm):
    expected = llm.generate("The sun is", max_tokens=8, **GREEDY)[0].tokens
    found: list[tuple[int, ...]] = []
    ask = lambda: found.append(llm.generate("The sun is", max_tokens=8, **GREEDY)[0].tokens)  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected] * 12


def test_in_a_running_event_loop(llm):
    async def notebook() -> list[str]:
        sync = llm.chat("Say one word.", max_tokens=4, **GREEDY).text  # blocks, and works
        twins = await asyncio.gather(*(llm.achat("Say one word.", max_tokens=4, **GREEDY) for _ in range(5)))
        streamed = ""
        async for delta in llm.astream(
            [{"role": "user", "content": "Say one word."}], max_tokens=4, **GREEDY
        ):
            streamed += delta.text
        return [sync, streamed, *(answer.text for answer in twins)]

    assert len(set(asyncio.run(notebook()))) == 1


def _idle_within(llm: LLM, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if llm.stats().active_slots == 0:
            return True
        time.sleep(0.002)
    return False


def test_closing_a_stream_frees_its_slot(llm):
    stream = llm.stream("Count for ever: 1, 2, 3,", max_tokens=900, ignore_eos=True)
    next(stream)
    ticks = llm.stats().ticks
    stream.close()
    assert _idle_within(llm, 5.0)
    assert llm.stats().ticks - ticks <= 4


def test_a_cancelled_task_frees_its_slot(llm):
    async def leave() -> None:
        task = asyncio.create_task(llm.achat("Write a very long story.", max_tokens=900, ignore_eos=True))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert _idle_within(llm, 5.0)


def test_a_deadline_ends_a_generation(llm):
    with pytest.raises(DeadlineError):
        llm.generate("Go on and on", max_tokens=900, ignore_eos=True, timeout_s=0.5)
    assert _idle_within(llm, 5.0)


def test_bad_options_are_refused_by_name(llm):
    with pytest.raises(InvalidRequestError, match="temprature") as caught:
        llm.chat("Hi", temprature=1)
    assert "temperature" in caught.value.hint
    with pytest.raises(InvalidRequestError, match="top_p"):
        llm.chat("Hi", top_p=float("nan"))
    with pytest.raises(PromptTooLongError, match=r"\d+ tokens.*1024"):
        llm.generate("word " * 3000)


def test_a_json_schema_is_obeyed(llm):
    import json

    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer"}},
        "required": ["age"],
        "additionalProperties": False,
    }
    answer = llm.chat("How old is the sun? Answer as JSON.", json_schema=schema, max_tokens=60, seed=3)
    assert answer.finish_reason == "length" or isinstance(json.loads(answer.text)["age"], int)


def test_a_shared_system_prompt_is_prefilled_once(smollm2):
    """Eight concurrent requests after one: mean TTFT at most a fifth of that of three without a cache.

    Without a cache eight would wait even longer than three, and the test with them.
    """
    system = {"role": "system", "content": "You are the librarian of a small town. " * 110}
    asked = [[system, {"role": "user", "content": f"Question {n}: what is {n} times two?"}] for n in range(8)]
    settings = {"n_threads": 1, "n_seq_max": 8, "context_window": 1536}

    def mean_ttft_s(answers):
        assert answers[0].usage.prompt_tokens > 1000
        return statistics.mean(answer.timing.ttft_s or 0.0 for answer in answers)

    def ratio():
        with LLM(smollm2, cache="none", **settings) as model:
            without_s = mean_ttft_s(model.chat_many(asked[:3], max_tokens=4, **GREEDY))
        with LLM(smollm2, cache="prefix", **settings) as model:
            model.chat([system, {"role": "user", "content": "Hello"}], max_tokens=2, **GREEDY)
            return mean_ttft_s(model.chat_many(asked, max_tokens=4, **GREEDY)) / without_s

    ratios = [ratio()]
    while ratios[-1] > 1 / 5 and len(ratios) < 3:  # 0.08 undisturbed; others may hold a processor meanwhile
        ratios.append(ratio())
    assert ratios[-1] <= 1 / 5, ratios


@pytest.mark.parametrize("cache", ["incremental", "prefix"])
def test_from_the_second_turn_on_only_the_new_message_is_prefilled(smollm2, cache):
    with LLM(
        smollm2, n_threads=1, n_seq_max=2, context_window=2048, cache=cache, cache_min_tokens=16
    ) as model:
        messages = [{"role": "user", "content": "Tell me about the town you live in, in two sentences."}]
        for turn in range(4):
            answer = model.chat(messages, max_tokens=24, **GREEDY)
            if turn:
                fresh = answer.usage.prompt_tokens - answer.usage.cached_tokens
                assert fresh <= len(model.tokenize(messages[-1]["content"])) + 16, (turn, answer.usage)
            messages += [
                {"role": "assistant", "content": answer.text},
                {"role": "user", "content": f"And {turn}?"},
            ]
