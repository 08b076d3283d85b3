"""tokenize and detokenize, multiplexed: what shares a call, what does not, and what failures do."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from stretto.client.token_calls import SHARED_BYTES_MAX, SHARED_TOKENS_MAX, TokenCalls
from stretto.errors import ModelNotFoundError, RuntimeUnavailableError, TooLargeError
from stretto.rpc import messages as m


class Worker:
    """Tokens are bytes. A text that says so is refused."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails = fails  # what `batch_tokenize` does
        self.sizes: list[int] = []
        self.calls: Counter[str] = Counter()
        self.short = False

    async def send(self, method: str, params: Any) -> Any:
        self.calls[method] += 1
        await asyncio.sleep(0)
        if method == "tokenize":
            return m.TokenizeResult(tokens=self.tokens(params))
        if method == "detokenize":
            return m.DetokenizeResult(text=bytes(params.tokens).decode())
        self.sizes.append(len(params.calls))
        if self.fails is not None:
            raise self.fails
        results = [self.answer(call) for call in params.calls]
        return m.BatchTokenizeResult(results=results[1:] if self.short else results)

    def tokens(self, params: m.TokenizeParams) -> list[int]:
        if params.text == "refuse me":
            raise ModelNotFoundError("no such model")
        return list((params.text or "").encode())

    def answer(self, call: m.TokenCall) -> m.TokenAnswer:
        try:
            if call.tokenize is not None:
                return m.TokenAnswer(tokens=self.tokens(call.tokenize))
            assert call.detokenize is not None
            return m.TokenAnswer(text=bytes(call.detokenize.tokens).decode())
        except ModelNotFoundError as error:
            return m.TokenAnswer(error=m.error_from(error))


def run(work: Any, worker: Worker, *, batching: bool = True, batch_max: int = 16) -> TokenCalls:
    async def scenario() -> TokenCalls:
        tasks: set[asyncio.Task[None]] = set()

        def start(coroutine: Any) -> None:
            tasks.add(asyncio.get_running_loop().create_task(coroutine))

        calls = TokenCalls(worker.send, start, batch_max=batch_max)
        calls.allow_batching(batching)
        await work(calls)
        await asyncio.gather(*tasks)
        return calls

    return asyncio.run(scenario())


def text(value: str, **more: Any) -> m.TokenizeParams:
    return m.TokenizeParams(text=value, **more)


def test_calls_that_are_made_together_share_one():
    worker = Worker()

    async def work(calls: TokenCalls) -> None:
        asked = [calls.tokenize(text(f"t{n}")) for n in range(8)]
        back = calls.detokenize(m.DetokenizeParams(tokens=[104, 105]))
        *tokens, said = await asyncio.gather(*asked, back)
        assert tokens == [list(f"t{n}".encode()) for n in range(8)]
        assert said == "hi"

    calls = run(work, worker)
    assert worker.calls == {"batch_tokenize": 1}
    assert calls.stats() == {"enabled": True, "total_requests": 9, "total_calls": 1}


def test_a_lone_call_is_sent_as_itself():
    worker = Worker()

    async def work(calls: TokenCalls) -> None:
        assert await calls.tokenize(text("ab")) == [97, 98]
        assert await calls.detokenize(m.DetokenizeParams(tokens=[97])) == "a"

    run(work, worker)
    assert worker.calls == {"tokenize": 1, "detokenize": 1}


def test_large_calls_and_other_models_hold_up_nothing():
    worker = Worker()

    async def work(calls: TokenCalls) -> None:
        await asyncio.gather(
            *(calls.tokenize(text("small", model_id="a")) for _ in range(2)),
            *(calls.tokenize(text("small", model_id="b")) for _ in range(3)),
            calls.tokenize(text("x" * (SHARED_BYTES_MAX + 1), model_id="a")),
            calls.detokenize(m.DetokenizeParams(tokens=[97] * (SHARED_TOKENS_MAX + 1), model_id="a")),
            calls.tokenize(m.TokenizeParams(messages=[{"content": "x" * SHARED_BYTES_MAX}], model_id="a")),
        )

    run(work, worker)
    assert sorted(worker.sizes) == [2, 3]
    assert worker.calls == {"batch_tokenize": 2, "tokenize": 2, "detokenize": 1}


def test_a_rejected_entry_fails_alone():
    worker = Worker()

    async def work(calls: TokenCalls) -> None:
        good, bad = await asyncio.gather(
            calls.tokenize(text("ab")), calls.tokenize(text("refuse me")), return_exceptions=True
        )
        assert good == [97, 98]
        assert isinstance(bad, ModelNotFoundError)

    run(work, worker)
    assert worker.calls == {"batch_tokenize": 1}


@pytest.mark.parametrize("short", [False, True])
def test_a_batch_that_cannot_be_sent_whole_is_sent_call_by_call(short):
    worker = Worker(None if short else TooLargeError("too much at once"))
    worker.short = short

    async def work(calls: TokenCalls) -> None:
        asked = [calls.tokenize(text(name)) for name in ("a", "refuse me", "b")]
        first, second, third = await asyncio.gather(*asked, return_exceptions=True)
        assert (first, third) == ([97], [98])
        assert isinstance(second, ModelNotFoundError)

    run(work, worker)
    assert worker.calls == {"batch_tokenize": 1, "tokenize": 3}


def test_a_missing_worker_fails_every_call_with_its_error():
    async def work(calls: TokenCalls) -> None:
        found = await asyncio.gather(
            calls.tokenize(text("a")), calls.tokenize(text("b")), return_exceptions=True
        )
        assert [type(error) for error in found] == [RuntimeUnavailableError] * 2
        assert found[0] is not found[1]

    run(work, Worker(RuntimeUnavailableError("no worker is connected")))


def test_without_the_capability_every_call_is_its_own():
    worker = Worker()

    async def work(calls: TokenCalls) -> None:
        await asyncio.gather(*(calls.tokenize(text("a")) for _ in range(5)))

    run(work, worker, batching=False)
    assert worker.calls == {"tokenize": 5}


def test_a_caller_that_leaves_is_not_asked_for():
    worker = Worker()

    async def work(calls: TokenCalls) -> None:
        leaving = asyncio.create_task(calls.tokenize(text("gone")))
        staying = asyncio.create_task(calls.tokenize(text("a")))
        await asyncio.sleep(0)
        leaving.cancel()
        assert await staying == [97]

    run(work, worker)
    assert worker.calls == {"tokenize": 1}


def test_calls_are_limited_to_the_maximum_batch_size():
    worker = Worker()

    async def work(calls: TokenCalls) -> None:
        await asyncio.gather(*(calls.tokenize(text("a")) for _ in range(10)))

    run(work, worker, batch_max=4)
    assert worker.sizes == [4, 4, 2]
