"""Pages are found by the digest of all tokens up to their end, within one scope."""

from __future__ import annotations

from stretto.core.kv.page_index import Page, PageIndex, root_digest
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
