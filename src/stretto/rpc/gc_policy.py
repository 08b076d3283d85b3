"""Keeps Python's cyclic garbage collector from pausing the event loop, in server and worker processes.

By default a full collection runs after some ten thousand new objects: with a few thousand open streams that
pauses the loop for 30 to 70 ms, several times a second under load. Our own objects form no cycles, so there
is little to collect; the young generation is still collected, the old one rarely.
"""

from __future__ import annotations

import gc

from stretto.rpc.heap import return_large_blocks

YOUNG_OBJECTS = 20_000
YOUNG_ROUNDS = 50
MIDDLE_ROUNDS = 100


def settle() -> None:
    """Call after everything is imported and loaded: existing objects are excluded from collection."""
    return_large_blocks()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, MIDDLE_ROUNDS)
