"""Telemetry names: the seed's, to the letter, each once."""

from __future__ import annotations

from stretto.core import notes


def test_every_name_is_its_own():
    names = [value for name, value in vars(notes).items() if name.isupper() and isinstance(value, str)]
    assert len(set(names)) == len(names)
    assert set(notes.SEED_NAMES) <= set(names)


def test_the_seeds_log_messages_to_the_letter():
    assert notes.ALL_SLOTS_PENDING == "all slots pending, waiting for slot"
    assert notes.PREEMPTED == "preempted by queued request"
    assert notes.HYBRID_TRIM_REBUILD == "imc-hybrid-trim-rebuild"
