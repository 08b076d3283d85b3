"""The file of choices: found again, bounded, atomic, and ignored with one line when it is not ours."""

from __future__ import annotations

import json
import logging

import pytest

from stretto.backends.llamacpp.choices.store import CACHE_FILE, ENTRIES_MAX, FORMAT, ChoiceStore, key_of


def test_an_entry_is_found_again_by_another_process(tmp_path):
    ChoiceStore(tmp_path / "new").put("k", {"chosen": "rows"})
    assert ChoiceStore(tmp_path / "new").find("k") == {"chosen": "rows"}
    assert ChoiceStore(tmp_path / "new").find("other") is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == [CACHE_FILE], "no parts are left behind"


def test_a_dropped_entry_is_gone_and_others_stay(tmp_path):
    store = ChoiceStore(tmp_path)
    store.put("a", {})
    store.put("b", {})
    store.drop("a")
    assert (store.find("a"), store.find("b")) == (None, {})


def test_the_oldest_make_room(tmp_path):
    store = ChoiceStore(tmp_path)
    (tmp_path / CACHE_FILE).write_text(
        json.dumps({"format": FORMAT, "entries": {str(n): {} for n in range(ENTRIES_MAX)}})
    )
    store.put("new", {})
    assert store.find("0") is None
    assert store.find("1") == {}
    assert store.find("new") == {}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b'{"format": 99, "entries": {}}',
        json.dumps({"format": FORMAT, "entries": 3}).encode(),
        b"[" * 100_000,
        json.dumps({"format": FORMAT, "entries": {"k": {"x": "y" * (1 << 20)}}}).encode(),
    ],
    ids=["empty", "bytes", "a list", "another format", "no entries", "deep", "large"],
)
def test_a_damaged_or_foreign_file_is_ignored_with_one_line_and_replaced(tmp_path, caplog, content):
    (tmp_path / CACHE_FILE).write_bytes(content)
    store = ChoiceStore(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert store.find("k") is None
        store.put("k", {"a": 1})
    assert len(caplog.records) == 1
    assert CACHE_FILE in caplog.text
    assert ChoiceStore(tmp_path).find("k") == {"a": 1}


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    ChoiceStore(tmp_path / "file" / "below").put("k", {})
    ChoiceStore(None).put("k", {})
    assert ChoiceStore(None).find("k") is None


def test_the_key_follows_every_fact():
    facts = {"file": {"size": 1}, "cores": 2, "options": {"n_seq_max": 4}}
    keys = {key_of(facts), key_of({**facts, "cores": 4}), key_of({**facts, "options": {"n_seq_max": 8}})}
    assert len(keys) == 3
    assert key_of(facts) == key_of(dict(reversed(facts.items())))
