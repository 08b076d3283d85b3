"""Which page holds which tokens: prefixes found page by page.

A full page has the digest of all tokens up to its end, so equal prompts find each other's pages; the tokens
are compared as well. The digest chain starts with the scope, so no page of another scope is found. Pages that
continue the same prefix are kept in the order of their tokens: the one that has most in common with a text is
beside the place where the text would be, however many there are.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence

from stretto.core.kv.prefix_store import common_prefix
from stretto.core.request import Scope

Digest = bytes
ROOTS_MAX = 4096  # scopes whose prefixes can be listed


def root_digest(scope: Scope, owner: str = "") -> Digest:
    """The start of a chain; with an owner, one that only that request can find."""
    return hashlib.blake2b(f"{scope.text}{owner}".encode(), digest_size=16).digest()


class Page:
    __slots__ = ("digest", "index", "parent", "refs", "tokens")

    def __init__(self, index: int) -> None:
        self.index = index
        self.refs = 0
        self.digest: Digest | None = None
        self.parent: Digest = b""
        self.tokens: array[int] = array("i")


class PageIndex:
    def __init__(self, pages: Sequence[Page], page_tokens: int) -> None:
        self._pages = pages
        self._size = page_tokens
        self._known: dict[Digest, int] = {}
        self._children: dict[Digest, list[int]] = {}  # digest -> pages that continue it, by their tokens
        self._roots: dict[Digest, Scope] = {}  # of chains, by their start

    def root(self, scope: Scope) -> Digest:
        """The start of a scope's chains, remembered for `ending_at`."""
        digest = root_digest(scope)
        self._roots.pop(digest, None)
        self._roots[digest] = scope
        if len(self._roots) > ROOTS_MAX:
            del self._roots[next(iter(self._roots))]
        return digest

    def chain(self, tokens: array[int], digests: list[Digest]) -> tuple[list[int], Digest]:
        """The known pages with which these tokens begin, and the digest at their end.

        `digests`: the start of the chain, then those of the tokens' pages that were needed before; grows.
        """
        pages: list[int] = []
        for start in range(0, len(tokens) - self._size + 1, self._size):
            part = tokens[start : start + self._size]
            at = len(pages) + 1
            if at == len(digests):
                digests.append(next_digest(digests[-1], part.tobytes()))
            page = self._known.get(digests[at])
            if page is None or self._pages[page].tokens != part:
                break
            pages.append(page)
        return pages, digests[len(pages)]

    def closest(self, digest: Digest, tail: array[int], limit: int) -> tuple[int, int]:
        """The page after `digest` that has most in common with the tail, and how much (-1, 0: none)."""
        best, most = -1, 0
        children = self._children.get(digest, [])
        at = self._place(children, tail)
        for child in children[max(at - 1, 0) : at + 1]:
            common = common_prefix(tail, self._pages[child].tokens, limit)
            if common > most:
                best, most = child, common
        return best, most

    def _place(self, children: list[int], tokens: array[int]) -> int:
        return bisect_left(children, tokens.tobytes(), key=self._bytes_of)

    def _bytes_of(self, page: int) -> bytes:
        return self._pages[page].tokens.tobytes()

    def add(self, page: Page, parent: Digest, tokens: array[int]) -> Digest:
        """Add a full page, unless it or an equal one is known. Returns the digest at its end."""
        digest = next_digest(parent, tokens.tobytes())
        if page.digest is None and digest not in self._known:
            page.digest, page.parent, page.tokens = digest, parent, tokens
            self._known[digest] = page.index
            siblings = self._children.setdefault(parent, [])
            siblings.insert(self._place(siblings, tokens), page.index)
        return digest

    def ending_at(self, page: Page) -> tuple[Scope, array[int]] | None:
        """The prefix of which this is the last page; None where another page continues it."""
        if page.digest is None or page.digest in self._children:
            return None
        parts, digest = [page.tokens], page.parent
        while digest in self._known:
            parts.append(self._pages[self._known[digest]].tokens)
            digest = self._pages[self._known[digest]].parent
        scope = self._roots.get(digest)
        tokens: array[int] = array("i")
        for part in reversed(parts):
            tokens.extend(part)
        return None if scope is None else (scope, tokens)

    def forget(self, page: Page) -> None:
        if page.digest is None:
            return
        del self._known[page.digest]
        siblings = self._children[page.parent]
        del siblings[self._place(siblings, page.tokens)]
        if not siblings:
            del self._children[page.parent]
        page.digest = None

    def check(self) -> None:
        for digest, index in self._known.items():
            assert self._pages[index].digest == digest, "the index points at a page that is something else"
        for siblings in self._children.values():
            texts = [self._bytes_of(index) for index in siblings]
            assert texts == sorted(set(texts)), "siblings are out of order, or twice in the index"
        assert sum(map(len, self._children.values())) == len(self._known), "a page without a place"


def next_digest(parent: Digest, tokens: bytes) -> Digest:
    return hashlib.blake2b(parent + tokens, digest_size=16).digest()
