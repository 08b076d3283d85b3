"""Text is emitted as soon as its characters are complete, and nothing is lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.text.detokenizer import Detokenizer


def reader(pieces: list[bytes]) -> Detokenizer:
    return Detokenizer(pieces.__getitem__)


@settings(deadline=None)
@given(text=st.text(), splits=st.lists(st.integers(0, 200)))
def test_any_split_gives_the_same_text(text: str, splits: list[int]) -> None:
    data = text.encode()
    places = [0, *sorted(min(place, len(data)) for place in splits), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    stream = reader(pieces)
    shown = ""
    for token in range(len(pieces)):
        shown += stream.push(token)
        assert stream.held_bytes <= 3
        assert text.startswith(shown)
    assert shown + stream.flush() == text


@settings(deadline=None)
@given(data=st.binary())
def test_incremental_decoding_equals_decoding_at_once(data: bytes) -> None:
    stream = reader([data[index : index + 1] for index in range(len(data))])
    assert "".join(map(stream.push, range(len(data)))) + stream.flush() == data.decode("utf-8", "replace")


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    stream = reader([b"a\xf0\x9f", b"\x99"])
    assert (stream.push(0), stream.push(1), stream.held_bytes) == ("a", "", 3)
    assert stream.flush() == "\ufffd"
    assert stream.push_bytes(b"b") == "b"


def test_smollm2_round_trip(smollm2: Any) -> None:
    text = "naïve 漢字 🙂👩‍👩‍👧 \u200b end"
    stream = Detokenizer(smollm2.token_bytes)
    assert "".join(map(stream.push, smollm2.encode(text, False))) + stream.flush() == text
