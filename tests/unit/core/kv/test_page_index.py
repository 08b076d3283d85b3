"""Pages are found by the digest of all tokens up to their end, within one scope."""

from __future__ import annotations

import random
from array import array

from stretto.core.kv.page_index import Page, PageIndex, root_digest
from stretto.core.kv.prefix_store import common_prefix
from stretto.core.request import Scope
from tests.unit.core.rig import prompt

ROOT = root_digest(Scope("tenant:a", ""))
TEXT = prompt(16)


def index(count: int = 4) -> tuple[PageIndex, list[Page]]:
    pages = [Page(at) for at in range(count)]
    made = PageIndex(pages, 4)
    digest = ROOT
    for at in range(count):
        digest = made.add(pages[at], digest, TEXT[4 * at : 4 * at + 4])
    made.check()
    return made, pages


def test_a_prompt_finds_its_pages():
    made, _ = index()
    assert made.chain(TEXT, [ROOT])[0] == [0, 1, 2, 3]
    assert made.chain(TEXT[:11], [ROOT])[0] == [0, 1]
    assert made.chain(TEXT[:8] + prompt(8, 3), [ROOT])[0] == [0, 1]
    assert made.chain(prompt(16, 3), [ROOT])[0] == []


def test_roots_differ_by_scope_and_owner_even_where_names_could_run_together():
    roots = {
        root_digest(Scope("a", "bc")),
        root_digest(Scope("ab", "c")),
        root_digest(Scope("a", "b|c")),
        root_digest(Scope("a", "b"), "c"),
        root_digest(Scope("a", "b")),
    }
    assert len(roots) == 5


def test_the_closest_page_for_what_is_left():
    made, _ = index()
    _, digest = made.chain(TEXT[:8], [ROOT])
    assert made.closest(digest, TEXT[8:11], 3) == (2, 3)
    assert made.closest(digest, TEXT[8:10] + prompt(2, 3), 4) == (2, 2)
    assert made.closest(digest, prompt(4, 3), 4) == (-1, 0)


def test_a_forgotten_page_ends_the_chain():
    made, pages = index()
    made.forget(pages[1])
    made.forget(pages[1])
    assert made.chain(TEXT, [ROOT])[0] == [0]
    made.check()


def test_equal_pages_are_known_once():
    made, pages = index(2)
    twin = Page(9)
    made.add(twin, ROOT, TEXT[:4])
    assert twin.digest is None
    assert made.chain(TEXT, [ROOT])[0] == [0, 1]
    assert pages[0].digest is not None


def test_digests_are_computed_once_and_only_as_far_as_needed():
    made, _ = index()
    digests = [ROOT]
    assert made.chain(TEXT[:8], digests)[0] == [0, 1]
    assert len(digests) == 3
    kept = list(digests)
    assert made.chain(TEXT, digests)[0] == [0, 1, 2, 3]
    assert digests[:3] == kept
    assert made.chain(TEXT, digests) == made.chain(TEXT, [ROOT])


class CountedPages(list):
    """Counts how often a page is looked at."""

    looked = 0

    def __getitem__(self, at):
        self.looked += 1
        return super().__getitem__(at)


def siblings(count: int, seed: int = 0) -> tuple[PageIndex, CountedPages]:
    """Pages that continue the same prefix; few tokens, so that many begin alike."""
    dice = random.Random(seed)
    pages = CountedPages(Page(at) for at in range(count))
    made = PageIndex(pages, 8)
    for page in list(pages):
        made.add(page, ROOT, array("i", [dice.choice((1, 2, 300)) for _ in range(8)]))
    made.check()
    return made, pages


def test_the_closest_of_many_pages_is_found_as_if_each_was_compared():
    made, pages = siblings(400)
    dice = random.Random(1)
    for page in pages[::3]:
        made.forget(page)
    made.check()
    held = [page for page in list(pages) if page.digest is not None]
    for _ in range(300):
        tail = array("i", [dice.choice((1, 2, 300)) for _ in range(dice.randint(1, 8))])
        limit = dice.randint(1, 8)
        found, common = made.closest(ROOT, tail, limit)
        assert common == max(common_prefix(tail, page.tokens, limit) for page in held)
        assert found == -1 or common_prefix(tail, pages[found].tokens, limit) == common


def test_a_prompt_is_compared_with_few_of_the_pages_that_follow_a_common_prefix():
    made, pages = siblings(5_000, seed=2)
    before = pages.looked
    made.closest(ROOT, prompt(8), 8)
    assert pages.looked - before <= 20
