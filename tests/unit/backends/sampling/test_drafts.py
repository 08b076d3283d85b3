"""Drafts by lookup: what followed the longest match, in the request's own tokens or those of its scope."""

from __future__ import annotations

import random
from array import array

from stretto.backends.sampling.drafts import (
    ANSWERS_MAX,
    LONG_MATCH,
    MATCH_MAX,
    NGRAM,
    PLACES,
    SCOPES_MAX,
    SUFFIX,
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
    for tenant in range(2 * SCOPES_MAX):
        recent.add(Scope(str(tenant), ""), "1", [1, 2, 3])
    assert not recent.of(Scope("0", ""))
    for n in range(2 * ANSWERS_MAX):
        recent.add(A, str(n), [n, n + 1, n + 2])
    assert len(recent.of(A)) == ANSWERS_MAX
    assert recent.of(A)[0].tokens[0] == 2 * ANSWERS_MAX - 1


def test_a_request_that_comes_again_replaces_its_answer() -> None:
    recent = RecentAnswers()
    recent.add(A, "1", [1, 2, 3])
    recent.add(A, "1", [1, 2, 3, 4])
    assert [list(corpus.tokens) for corpus in recent.of(A)] == [[1, 2, 3, 4]]


def test_a_corpus_grows_without_sorting_again() -> None:
    corpus = Corpus([1, 2, 3])
    corpus.extend(array("i", [1, 2, 4]))
    assert corpus.best([0, 1, 2])[:2] == (2, 5)
