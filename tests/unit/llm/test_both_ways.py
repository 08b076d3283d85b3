"""What a caller of the SDK observes is the same with the model in this process and in a worker process."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from stretto import LLM
from stretto.errors import (
    DeadlineError,
    InvalidRequestError,
    ModelFileError,
    PromptTooLongError,
    ShuttingDownError,
    StrettoError,
)

SETTINGS = {"backend": "simulated", "n_seq_max": 4, "context_window": 2048}
LONG = {"max_tokens": 1900, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(own_process):
    with LLM(**SETTINGS, own_process=own_process) as model:
        yield model


@pytest.fixture(scope="module")
def inside():
    with LLM(**SETTINGS, own_process=False) as model:
        yield model


@pytest.fixture(scope="module")
def slow(own_process):
    """200 ticks a second: what runs is still running when the test looks."""
    with LLM(**SETTINGS, simulated_tick_ms=5, own_process=own_process) as model:
        yield model


def idle(llm: LLM) -> bool:
    deadline = time.monotonic() + 20
    while llm.stats().active_slots:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def observed(answers):
    """Everything but times, and cached tokens, which depend on which request was first."""
    return [
        (one.index, one.text, one.tokens, one.finish_reason, one.usage.prompt_tokens, one.preemptions)
        for one in answers
    ]


def test_texts_tokens_and_ends_are_equal(llm, inside):
    prompts = ["one", "two", [3, 4, 5], "four"]
    options = {"max_tokens": 70, "seed": 11, "n": 2, "temperature": 1.2, "logit_bias": {7: 3.0}}
    assert observed(llm.generate(prompts, **options)) == observed(inside.generate(prompts, **options))
    assert llm.chat("hello", max_tokens=40).text == inside.chat("hello", max_tokens=40).text
    chats = ["a", [{"role": "user", "content": "b"}]]
    assert list(map(str, llm.chat_many(chats, max_tokens=9))) == list(
        map(str, inside.chat_many(chats, max_tokens=9))
    )


def test_a_stop_string_ends_the_text_before_it(llm, inside):
    (whole,) = inside.generate("x", max_tokens=60, seed=2, ignore_eos=True)
    stop = whole.text[30:33]
    (cut,), (expected,) = (
        model.generate("x", max_tokens=60, seed=2, ignore_eos=True, stop=stop) for model in (llm, inside)
    )
    assert (cut.text, cut.finish_reason) == (whole.text.partition(stop)[0], "stop")
    assert cut.tokens == expected.tokens
    assert cut.usage.completion_tokens == expected.usage.completion_tokens


def test_a_stream_delivers_while_it_runs(slow):
    stream = slow.stream("x", max_tokens=400, ignore_eos=True)
    first = next(stream)
    assert stream.completion is None
    assert len(first.tokens) < 20
    rest = stream.read()
    assert len(rest.tokens) == 400
    assert rest.usage.completion_tokens == 400


def test_closing_a_stream_frees_its_slot(slow):
    stream = slow.stream("x", **LONG)
    next(stream)
    stream.close()
    assert idle(slow)


def test_in_a_running_event_loop(llm, inside):
    async def work():
        answers = await asyncio.gather(*(llm.achat("Say one word.", max_tokens=12) for _ in range(6)))
        (continued,) = await llm.agenerate("once", max_tokens=12)
        streamed = "".join([delta.text async for delta in llm.astream("once", max_tokens=12)])
        return {answer.text for answer in answers}, continued.text, streamed

    (expected,) = inside.generate("once", max_tokens=12)
    said = inside.chat("Say one word.", max_tokens=12).text
    assert asyncio.run(work()) == ({said}, expected.text, expected.text)


def test_a_cancelled_task_frees_its_slot(slow):
    async def leave():
        task = asyncio.create_task(slow.achat("x", **LONG))
        while not slow.stats().active_slots:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    assert idle(slow)


def test_output_after_the_event_loop_was_closed_is_dropped_and_its_request_cancelled(slow, caplog):
    async def begin():
        stream = slow.astream("x", **LONG)
        await anext(stream)
        return stream

    stream = asyncio.run(begin())
    assert idle(slow)
    assert stream.completion is None
    assert not [record for record in caplog.records if record.exc_info]


def test_many_threads_share_the_slots(llm):
    (expected,) = llm.generate("The sun is", max_tokens=30)
    found: list[str] = []
    ask = lambda: found.append(llm.generate("The sun is", max_tokens=30)[0].text)  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [expected.text] * 12


def test_mistakes_are_refused_with_the_same_errors(llm):
    with pytest.raises(InvalidRequestError, match="temprature"):
        llm.chat("Hi", temprature=1)
    with pytest.raises(PromptTooLongError, match=r"\d+ tokens.*2048"):
        llm.generate("word " * 3000)
    with pytest.raises(StrettoError):
        llm.generate("x", grammar="root ::= [", max_tokens=3)
    assert len(llm.generate("x", max_tokens=3, ignore_eos=True)[0].tokens) == 3


def test_a_deadline_ends_a_generation(slow):
    with pytest.raises(DeadlineError):
        slow.generate("x", timeout_s=0.2, **LONG)
    assert idle(slow)


def test_an_interrupt_cancels_what_runs(slow):
    """Ctrl-C in `generate`: the exception arrives while the caller waits for the first end."""
    main = threading.main_thread().ident
    assert main is not None

    def interrupt():
        while slow.stats().active_slots < 4:
            time.sleep(0.005)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        slow.generate(["a", "b", "c", "d", "e"], **LONG)
    thread.join()
    assert idle(slow)


def test_callbacks_learn_of_every_end(llm):
    done = []
    unsubscribe = llm.on_request_done(done.append)
    llm.generate(["a", "b", "c"], max_tokens=5, ignore_eos=True)
    until = time.monotonic() + 10.0  # a child's notifications may arrive after its answers
    while len(done) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    unsubscribe.close()
    llm.generate("d", max_tokens=5)
    assert [(one.outcome, one.generated_tokens) for one in done] == [("finished", 5)] * 3


def test_tokens_and_texts(llm, inside):
    assert llm.tokenize("hello") == inside.tokenize("hello")
    assert llm.detokenize(llm.tokenize("hello")) == "hello"
    assert llm.chat_prompt_tokens("hello") == inside.chat_prompt_tokens("hello")
    assert llm.description == inside.description


def test_loading_reports_progress_and_mistakes(own_process, tmp_path):
    seen: list[tuple[str, float]] = []
    threads = set()

    def progress(stage: str, fraction: float) -> None:
        threads.add(threading.current_thread())
        seen.append((stage, fraction))

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(ModelFileError):
        LLM(broken, own_process=own_process, progress=progress)
    assert threads <= {threading.current_thread()}


def test_close_ends_what_runs_and_refuses_what_follows(own_process):
    model = LLM(**SETTINGS, simulated_tick_ms=5, own_process=own_process)
    stream = model.stream("x", **LONG)
    next(stream)
    model.close()
    model.close()
    with pytest.raises(ShuttingDownError):
        stream.read()
    with pytest.raises(ShuttingDownError):
        model.generate("x", max_tokens=3)
