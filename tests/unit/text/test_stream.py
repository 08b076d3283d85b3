"""One request's tokens to text: stop strings, reasoning, tool calls, control tokens, ends."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import pytest

from stretto.core.tick import End, Terminal
from stretto.errors import StrettoError
from stretto.text.logprobs import token_logprobs
from stretto.text.reasoning import Tags
from stretto.text.stream import TextDelta, TextStream, ToolReading
from stretto.text.tools import Dialect
from stretto.worker.outbox import stream_end

PIECES = ["", "Hel", "lo", " wor", "ld", "<think>", "why", "</think>", "[TOOL_CALLS]", "é", "<end>"]
CONTROL = {8, 10}


class Pieces:
    """A vocabulary of a few pieces; 100 and 101 are the two bytes of é."""

    vocab_size = 300
    bos = None
    eos = frozenset({10})

    def encode(self, text: str, special: bool) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        if token in (100, 101):
            return "é".encode()[token - 100 : token - 99]
        return PIECES[token].encode() if token < len(PIECES) else bytes([token - 150])

    def is_control(self, token: int) -> bool:
        return token in CONTROL


def terminal(end: End = End.FINISHED, reason: str = "stop", kept: int = 3) -> Terminal:
    return Terminal("r", end, reason, kept, 5, 2, 3, 0, 0.3, 0.1, 0.2)


def run(
    tokens: list[int] | list[list[int]], final: Terminal | None = None, **options
) -> tuple[list[TextDelta], list[int]]:
    """Deltas of a stream that gets these tokens, one tick each, and where it stopped."""
    deltas: list[TextDelta] = []
    stops: list[int] = []
    stream = TextStream(Pieces(), deltas.append, stops.append, **options)
    for tick in tokens:
        stream.push(array("i", tick if isinstance(tick, list) else [tick]), None)
    stream.finish(final or terminal())
    return deltas, stops


def spelled(text: str) -> list[int]:
    return [byte + 150 for byte in text.encode()]


def text_of(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_characters_cut_between_tokens_are_whole_in_the_text():
    deltas, _ = run([1, 2, 100, 101])
    assert [delta.text for delta in deltas] == ["Hel", "lo", "", "é", ""]
    assert [delta.tokens for delta in deltas] == [(1,), (2,), (100,), (101,), ()]


def test_control_tokens_are_not_shown():
    deltas, _ = run([1, 2, 10])
    assert text_of(deltas) == "Hello"


def test_the_stop_string_ends_the_text_and_is_named_even_if_the_length_came_first():
    deltas, stops = run([[1, 2, 3], [4, 1]], terminal(reason="length", kept=5), stops=("o w",))
    assert text_of(deltas) == "Hell"
    assert stops == [2]
    last = deltas[-1]
    assert last.stop == "o w"
    assert (last.end.reason, last.end.tokens_kept) == ("stop", 2)


def test_reasoning_is_separated_and_counted():
    deltas, _ = run([5, 6, 6, 7, 1, 2], tags=Tags())
    assert "".join(delta.reasoning for delta in deltas) == "whywhy"
    assert text_of(deltas) == "Hello"
    assert deltas[-1].reasoning_tokens == 4  # the tags included
    opened, _ = run([6, 7, 1], tags=Tags(), opened=True)
    assert "".join(delta.reasoning for delta in opened) == "why"
    assert opened[-1].reasoning_tokens == 2


def test_tool_calls_are_complete_and_their_markers_are_control_tokens():
    tools = ToolReading(Dialect.MISTRAL, frozenset({"f"}))
    deltas, _ = run([1, 8, *spelled('[{"name": "f", "arguments": {"x": 1}}]')], tools=tools)
    calls = [call for delta in deltas for call in delta.calls]
    assert [(call.name, call.arguments) for call in calls] == [("f", '{"x": 1}')]
    assert text_of(deltas) == "Hel"
    assert deltas[-1].called
    assert stream_end("a", deltas[-1], deltas[-1].end, 0.0).finish_reason == "tool_calls"


def test_without_parallel_only_the_first_call_counts():
    both = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 3
    many, _ = run([spelled(both)], tools=ToolReading(Dialect.HERMES, frozenset({"f"})))
    one, _ = run([spelled(both)], tools=ToolReading(Dialect.HERMES, frozenset({"f"}), parallel=False))
    assert [len([call for delta in deltas for call in delta.calls]) for deltas in (many, one)] == [3, 1]


def test_a_call_that_was_cut_off_is_text_and_the_reason_stays():
    tools = ToolReading(Dialect.HERMES, frozenset({"f"}))
    deltas, _ = run([spelled('<tool_call>{"name": "f", ')], terminal(reason="length"), tools=tools)
    assert text_of(deltas) == '<tool_call>{"name": "f", '
    end = stream_end("a", deltas[-1], deltas[-1].end, 0.0)
    assert (end.finish_reason, end.error) == ("length", None)


@pytest.mark.parametrize(
    ("final", "reason", "code"),
    [
        (terminal(), "stop", None),
        (terminal(End.CANCELLED, "client"), "cancelled", None),
        (terminal(End.CANCELLED, "deadline"), "error", "deadline_exceeded"),
        (terminal(End.CANCELLED, "shutdown"), "error", "shutting_down"),
        (terminal(End.REJECTED, "queue_full"), "error", "queue_full"),
        (terminal(End.FAILED, "pass_failed"), "error", "pass_failed"),
    ],
)
def test_ends_carry_reason_error_usage_and_times_from_arrival(final, reason, code):
    end = stream_end("a", TextDelta(end=final, reasoning_tokens=9), final, 1.0)
    assert end.finish_reason == reason
    assert (end.error.code if end.error is not None else None) == code
    assert (end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.completion_tokens) == (5, 2, 3)
    assert end.usage.reasoning_tokens == 3
    assert (end.timing.queue_wait_s, end.timing.ttft_s, end.timing.duration_s) == (1.1, 1.2, 1.3)


def test_a_stream_that_broke_still_ends_with_an_error():
    deltas: list[TextDelta] = []
    stream = TextStream(Pieces(), deltas.append, lambda _: None)
    with pytest.raises(ValueError, match="bytes"):
        stream.push(array("i", [100_000]), None)
    stream.broken = True
    stream.push(array("i", [1]), None)
    stream.finish(terminal(End.CANCELLED, "client"))
    assert len(deltas) == 1
    assert deltas[0].end.end is End.FAILED
    assert deltas[0].end.reason == StrettoError.code


class Measured(NamedTuple):
    logprob: float
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


def test_logprobs_get_texts_and_bytes():
    found = token_logprobs(Pieces(), (1, 100), [Measured(-0.5, (1, 2), (-0.5, -1.0)), Measured(-3.0)])
    assert (found[0].token, found[0].raw, found[0].logprob) == ("Hel", b"Hel", -0.5)
    assert found[0].top == [("Hel", 1, -0.5, b"Hel"), ("lo", 2, -1.0, b"lo")]
    assert (found[1].token, found[1].raw) == ("\ufffd", b"\xc3")
