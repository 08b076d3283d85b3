"""Keeps Python's cyclic collector from stopping an event loop for long, in both kinds of processes.

By default it looks at everything that is alive after some ten thousand new objects: with a few thousand open
streams that stops the loop for 30 to 70 ms, several times a second under load. Our own objects form no
cycles, so there is little for it to find; young ones are still looked at, old ones hardly ever.
"""

from __future__ import annotations

import gc

from stretto.rpc.heap import return_large_blocks

YOUNG_OBJECTS = 20_000
YOUNG_ROUNDS = 50
MIDDLE_ROUNDS = 100


def settle() -> None:
    """Call once everything is imported and loaded: what exists then is never looked at again."""
    return_large_blocks()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, MIDDLE_ROUNDS)
