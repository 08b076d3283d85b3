"""A stop string is never shown, nothing before it is lost, and little is held back."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import InvalidStopError
from stretto.text.stops import StopMatcher


def run(stops: list[str], tokens: list[str]) -> tuple[str, str | None, int]:
    """(shown text, the stop, tokens kept)."""
    matcher = StopMatcher(stops)
    shown = ""
    for token in tokens:
        found = matcher.push(token)
        shown += found.emit
        if found.stop is not None:
            assert found.chars_shown == len(shown)
            return shown, found.stop, found.tokens_kept
    return shown + matcher.flush(), None, len(tokens)


def oracle(stops: list[str], tokens: list[str]) -> tuple[str, str | None, int]:
    text = "".join(tokens)
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None, len(tokens)
    end, _, stop = min(ends)
    end_of_text = end - len(stop)
    starts = [sum(map(len, tokens[:index])) for index in range(len(tokens))]
    return text[:end_of_text], stop, sum(start < end_of_text for start in starts)


letters = st.text("ab", max_size=4)


@settings(deadline=None)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=5), tokens=st.lists(letters, max_size=12)
)
def test_equals_a_search_of_the_whole_text(stops: list[str], tokens: list[str]) -> None:
    assert run(stops, tokens) == oracle(stops, tokens)


@settings(deadline=None)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=5), tokens=st.lists(letters, max_size=12)
)
def test_holds_back_only_what_could_become_a_stop(stops: list[str], tokens: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = seen = ""
    for token in tokens:
        found = matcher.push(token)
        shown, seen = shown + found.emit, seen + token
        if found.stop is not None:
            break
        held = seen[len(shown) :]
        assert matcher.held_chars == len(held)
        assert held == "" or any(stop.startswith(held) for stop in stops)
        longest = max(
            (n for n in range(1, 6) for stop in stops if len(stop) > n and seen.endswith(stop[:n])), default=0
        )
        assert len(held) == longest


@pytest.mark.parametrize(
    ("stops", "tokens", "wanted"),
    [
        (["\n\n"], ["a", "\n", "b", "\n", "\n", "c"], ("a\nb", "\n\n", 3)),
        (["END"], ["abcE", "ND"], ("abc", "END", 1)),
        (["END"], ["abc", "E", "", "ND"], ("abc", "END", 1)),
        (["x"], ["x"], ("", "x", 0)),
        (["🙂!"], ["", "🙂", "!"], ("", "🙂!", 0)),
        (["abc", "b"], ["ab"], ("a", "b", 1)),
        (["bc", "abc"], ["abc"], ("", "abc", 0)),
        ([], ["a"], ("a", None, 1)),
    ],
)
def test_examples(stops: list[str], tokens: list[str], wanted: tuple[str, str | None, int]) -> None:
    assert run(stops, tokens) == wanted


@pytest.mark.parametrize("stops", [[""], ["a" * 257], ["a"] * 17])
def test_limits(stops: list[str]) -> None:
    with pytest.raises(InvalidStopError):
        StopMatcher(stops)


def test_cost_is_linear_in_the_worst_text() -> None:
    stops = [letter * 255 + "!" for letter in "abcdefghijklmnop"]
    matcher = StopMatcher(stops)
    started = time.thread_time()
    for _ in range(50_000):
        matcher.push("aaaa")
    assert time.thread_time() - started < 2.0
    assert matcher.held_chars == 255
