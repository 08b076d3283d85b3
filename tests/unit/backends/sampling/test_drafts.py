"""Drafts by lookup: what followed the longest match, in the request's own tokens or those of its scope."""

from __future__ import annotations

import random
from array import array

import pytest

from stretto.backends.sampling.drafts import (
    ANSWER_TOKENS_MAX,
    ANSWERS_MAX,
    LONG_MATCH,
    MATCH_MAX,
    NGRAM,
    PLACES,
    SCOPES_MAX,
    SUFFIX,
    TEXT_TOKENS_MAX,
    TOKENS_MAX,
    Corpus,
    Drafter,
    RecentAnswers,
)
from stretto.core.request import Scope


def proposed(drafter: Drafter, count: int) -> list[int]:
    found = drafter.propose(count)
    return [] if found is None else list(found.tokens)


def test_it_proposes_what_followed_the_last_time() -> None:
    drafter = Drafter([5, 6, 7, 8, 9, 10, 1, 5, 6, 7])
    assert proposed(drafter, 3) == [8, 9, 10]


def test_the_longest_match_decides_and_the_latest_place_among_equals() -> None:
    drafter = Drafter([1, 2, 3, 40, 9, 2, 3, 50, 9, 1, 2, 3])
    assert proposed(drafter, 1) == [40]
    drafter.extend([41, 1, 2, 3])
    assert proposed(drafter, 1) == [41]


def test_nothing_seen_before_is_no_proposal() -> None:
    for tokens in ([1, 2, 3, 4], [1], []):
        assert not Drafter(tokens).propose(4)


def test_a_predicted_text_is_followed() -> None:
    drafter = Drafter([1, 2, 7, 8], predicted=[7, 8, 9, 10, 11, 12])
    assert proposed(drafter, 4) == [9, 10, 11, 12]


def test_its_own_tokens_come_before_a_prediction_of_the_same_length() -> None:
    drafter = Drafter([7, 8, 5, 7, 8], predicted=[7, 8, 9])
    assert proposed(drafter, 1) == [5]


def test_it_finds_what_a_search_through_everything_finds() -> None:
    rng = random.Random(3)
    for _ in range(200):
        tokens = [rng.randrange(6) for _ in range(rng.randrange(40))]
        drafter = Drafter(tokens[:20])
        for token in tokens[20:]:
            drafter.extend([token])
        assert proposed(drafter, 3) == brute_force(tokens, 3)


def brute_force(tokens: list[int], count: int) -> list[int]:
    """Among the latest places after the last two tokens: the one with the longest match."""
    pairs = [at for at in range(2, len(tokens)) if tokens[at - 2 : at] == tokens[-2:]][-PLACES:]

    def common(at: int) -> int:
        most = min(at, MATCH_MAX)
        return next((n for n in range(most) if tokens[at - 1 - n] != tokens[-1 - n]), most)

    best = max(pairs, key=lambda at: (common(at), at), default=None)
    if best is None:
        return []
    followed = tokens[best:]
    return (followed * count)[:count]  # text that repeats itself goes on


def test_a_text_that_is_followed_is_not_looked_up_again() -> None:
    text = list(range(100, 140))
    drafter = Drafter([*text, 1, *text[:LONG_MATCH]])
    for at in range(LONG_MATCH, 30, 3):
        assert proposed(drafter, 3) == text[at : at + 3]
        drafter.extend(text[at : at + 3])
    drafter.extend([text[-1], 1])
    assert proposed(drafter, 2) == text[:2]  # it went on otherwise: looked up anew


def test_text_that_repeats_itself_goes_on() -> None:
    assert proposed(Drafter([9, 1, 2, 1, 2, 1, 2]), 5) == [1, 2, 1, 2, 1]


def test_short_and_long_matches_are_different_drafters() -> None:
    text = list(range(100, 140))
    short, long = Drafter([*text, *text[:2]]).propose(4), Drafter([*text, *text[:LONG_MATCH]]).propose(4)
    assert short is not None
    assert long is not None
    assert (short.drafter, long.drafter) == (NGRAM, SUFFIX)


A, B = Scope("tenant:a", ""), Scope("tenant:b", "")


def test_recent_answers_stay_within_their_scope() -> None:
    recent = RecentAnswers()
    recent.add(A, "1", [1, 2, 3, 4])
    assert proposed(Drafter([9, 1, 2], others=recent.of(A)), 2) == [3, 4]
    assert not Drafter([9, 1, 2], others=recent.of(B)).propose(2)
    assert not Drafter([9, 1, 2], others=recent.of(Scope("tenant:a", "salt"))).propose(2)


def test_recent_answers_are_bounded() -> None:
    recent = RecentAnswers()
    for tenant in range(1 + TOKENS_MAX // ANSWER_TOKENS_MAX):
        recent.add(Scope(str(tenant), ""), "1", range(2 * ANSWER_TOKENS_MAX))
    assert not recent.of(Scope("0", ""))
    assert recent.of(Scope(str(tenant), ""))
    for n in range(3 * ANSWERS_MAX):
        recent.add(A, str(n), [n, n + 1, n + 2])
    assert [len(text.tokens) for text in recent.of(A)] == [4 * ANSWERS_MAX - 1] * 2
    assert not Drafter([0, 1], others=recent.of(A)).propose(1)
    for kept in (n, n - 2 * ANSWERS_MAX + 1):
        assert proposed(Drafter([kept, kept + 1], others=recent.of(A)), 1) == [kept + 2]


def test_scopes_are_bounded() -> None:
    """Requests that share nothing have a scope each: what they keep must not grow, nor take time to count."""
    recent = RecentAnswers()
    for n in range(20 * SCOPES_MAX):
        recent.add(Scope("tenant", str(n)), "1", [n, n + 1, n + 2])
    kept = [n for n in range(20 * SCOPES_MAX) if recent.of(Scope("tenant", str(n)))]
    assert kept == list(range(19 * SCOPES_MAX, 20 * SCOPES_MAX))


def test_the_last_answer_comes_first_and_a_draft_ends_with_its_answer() -> None:
    recent = RecentAnswers()
    recent.add(A, "1", [5, 6, 7, 8])
    recent.add(A, "2", [5, 6, 9])
    drafter = Drafter([4, 5, 6], others=recent.of(A))
    assert proposed(drafter, 4) == [9]
    recent.add(A, "3", [4, 5, 6, 10])  # a drafter that was made before finds it, too
    assert proposed(drafter, 4) == [10]
    assert not Drafter([6, 9], others=recent.of(A)).propose(1)


def test_a_request_that_comes_again_adds_what_is_new() -> None:
    recent = RecentAnswers()
    for length in range(3, 30):
        recent.add(A, "1", range(length))
    [text] = recent.of(A)
    assert len(text.tokens) < 30 * 4
    assert all(proposed(Drafter([at, at + 1], others=[text]), 1) == [at + 2] for at in range(27))


@pytest.mark.parametrize("others", [0, 1, 2 * ANSWERS_MAX - 1])
def test_an_answer_that_comes_in_pieces_is_followed_to_its_end(others: int) -> None:
    """Requests that are preempted in turn."""
    recent, answer, step = RecentAnswers(), list(range(1000, 1400)), 20
    for length in range(step, len(answer) + step, step):
        recent.add(A, "1", answer[:length])
        for other in range(others):
            recent.add(A, f"other {other}", list(range(10_000 * (other + 2), 10_000 * (other + 2) + length)))
    drafter, at = Drafter(answer[:LONG_MATCH], others=recent.of(A)), LONG_MATCH
    while at < len(answer):
        found = drafter.propose(8)
        assert found is not None, at
        assert found.drafter == SUFFIX
        assert list(found.tokens) == answer[at : at + len(found.tokens)]
        drafter.extend(answer[at : at + len(found.tokens)])
        at += len(found.tokens)


def test_a_request_that_comes_again_and_again_takes_bounded_room() -> None:
    recent = RecentAnswers()
    for n in range(5 * TEXT_TOKENS_MAX):
        recent.add(A, str(n % 3), range(3 + min(n // 3, ANSWER_TOKENS_MAX)))
    assert sum(len(text.tokens) for text in recent.of(A)) < 2 * (TEXT_TOKENS_MAX + ANSWER_TOKENS_MAX)


def test_a_corpus_grows_without_sorting_again() -> None:
    corpus = Corpus([1, 2, 3])
    corpus.extend(array("i", [1, 2, 4]))
    assert corpus.best([0, 1, 2])[:2] == (2, 5)
