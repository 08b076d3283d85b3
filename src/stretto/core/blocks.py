"""Names of prefixes, for machines that do not share memory: a hash for each full block of a prompt.

A block's hash covers everything up to its end, so equal hashes are equal prefixes.

The hash is keyed with the cluster's secret and starts with the cache scope (tenant or group, and salt), so
equal texts of two scopes have nothing in common: routing cannot tell a tenant what another one has sent.
Gates and replicas hash with the same secret. A hash is a hint for routing; replicas compare tokens.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from stretto.core.request import Scope

BLOCK_TOKENS = 64
BLOCKS_MAX = 1024  # of one prompt; tokens after them count as not cached
SECRET_BYTES_MAX = 64
DIGEST_BLOCKS_MAX = 4096


class PrefixDigest(NamedTuple):
    """Block hashes of a replica's cached prefixes, beginnings first; at most `DIGEST_BLOCKS_MAX`.

    `complete`: there are no others. Only then do routers forget what it does not list.
    """

    version: int
    blocks: array[int]  # unsigned, 64 bits
    complete: bool


def block_hashes(
    tokens: array[int], scope: Scope, *, secret: bytes = b"", block_tokens: int = BLOCK_TOKENS
) -> tuple[int, ...]:
    """The prefixes of a prompt at whole blocks, shortest first."""
    running = _root(scope, secret)
    data = memoryview(tokens.tobytes())
    step = block_tokens * tokens.itemsize
    found = []
    for end in range(step, min(len(data), BLOCKS_MAX * step) + 1, step):
        running.update(data[end - step : end])
        found.append(int.from_bytes(running.copy().digest(), "little"))
    return tuple(found)


def _root(scope: Scope, secret: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(scope.text.encode(), digest_size=8, key=secret[:SECRET_BYTES_MAX])


def digest_of(prefixes: Sequence[tuple[int, ...]], version: int) -> PrefixDigest:
    """A digest of cached prefixes, each as its block hashes; the most recently used prefix first.

    Where they do not all fit, every prefix keeps its beginning: blocks are taken by depth, because a block is
    of no use without those before it.
    """
    seen: dict[int, None] = {}
    complete = True
    for depth in range(max((len(prefix) for prefix in prefixes), default=0)):
        for prefix in prefixes:
            if depth < len(prefix) and prefix[depth] not in seen:
                if len(seen) == DIGEST_BLOCKS_MAX:
                    complete = False
                    break
                seen[prefix[depth]] = None
        if not complete:
            break
    return PrefixDigest(version, array("Q", seen), complete)
