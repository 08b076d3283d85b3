"""Snapshots in host memory: reused space, a budget, no overlap."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stretto.backends.llamacpp.memory import arena as arena_module
from stretto.backends.llamacpp.memory.arena import Arena
from stretto.errors import InvariantError


def test_space_is_reused_from_the_lowest_address() -> None:
    arena = Arena(1 << 20)
    first = arena.take(1, 1000)
    arena.take(2, 1000)
    assert first is not None
    address = first.ctypes.data
    arena.drop(1)
    again = arena.take(3, 900)
    assert again is not None
    assert again.ctypes.data == address


def test_the_budget_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "ARENA_PIECE_BYTES", 4096)
    arena = Arena(10_000)
    assert arena.take(1, 9_000) is not None
    assert arena.take(2, 4_000) is None
    assert arena.bytes_reserved <= 10_000
    assert arena.drop(1)
    assert arena.take(2, 4_000) is not None


def test_a_blob_id_is_used_once_and_dropped_once() -> None:
    arena = Arena(1 << 16)
    arena.take(7, 10)
    with pytest.raises(InvariantError):
        arena.take(7, 10)
    assert arena.drop(7)
    assert not arena.drop(7)


def test_blobs_never_overlap_and_all_space_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "ARENA_PIECE_BYTES", 1 << 14)
    chance = random.Random(5)
    arena = Arena(1 << 17)
    held: dict[int, int] = {}
    for blob in range(400):
        view = arena.take(blob, chance.randrange(1, 5000))
        if view is not None:
            view[:] = blob % 251
            held[blob] = blob % 251
        while held and (view is None or chance.random() < 0.4):
            gone = chance.choice(list(held))
            assert bool(np.all(arena.view(gone) == held.pop(gone)))
            arena.drop(gone)
            view = arena.view(next(iter(held))) if held else np.zeros(0, dtype=np.uint8)
    for blob, value in held.items():
        assert bool(np.all(arena.view(blob) == value))
        arena.drop(blob)
    assert arena.bytes_used == 0
    assert sum(room for _, _, room in arena._free) == arena.bytes_reserved
