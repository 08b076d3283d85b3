"""Telemetry names: the seed's, to the letter, each once."""

from __future__ import annotations

from stretto.core import event_names


def test_every_name_is_its_own():
    names = [value for name, value in vars(event_names).items() if name.isupper() and isinstance(value, str)]
    assert len(set(names)) == len(names)
    assert set(event_names.STABLE_NAMES) <= set(names)


def test_the_seeds_log_messages_to_the_letter():
    assert event_names.ALL_SLOTS_PENDING == "all slots pending, waiting for slot"
    assert event_names.PREEMPTED == "preempted by queued request"
    assert event_names.HYBRID_TRIM_REBUILD == "imc-hybrid-trim-rebuild"
