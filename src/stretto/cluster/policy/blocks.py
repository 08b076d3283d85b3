"""Names of prefixes: one hash for each full block of a prompt, over everything up to the block's end.

The hash is keyed with the cluster's secret and starts with the cache scope (tenant or group, and salt), so
equal texts of two scopes have nothing in common: routing cannot tell a tenant what another one has sent.
Gates and replicas hash with the same secret. A hash is a hint for routing; replicas compare tokens.
"""

from __future__ import annotations

import hashlib
from array import array

from stretto.core.request import Scope

BLOCK_TOKENS = 64
BLOCKS_MAX = 1024  # of one prompt; tokens after them count as not cached
SECRET_BYTES_MAX = 64


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
    text = f"{len(scope.group)}:{scope.group}|{len(scope.salt)}:{scope.salt}|"
    return hashlib.blake2b(text.encode(), digest_size=8, key=secret[:SECRET_BYTES_MAX])
