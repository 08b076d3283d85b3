"""Media in a prompt: pictures and sounds as rows that stand between tokens.

An encoder turns a picture into rows of the model's input; in the prompt they have positions like tokens.
Caches compare token ids, so each picture has an id of its own below every token, and all its rows have that
id: prompts with equal pictures begin alike, and prompts with different ones do not. The id says which picture
a row belongs to, and the positions before it say which row it is, because the id stands for the number of
rows, too.

Knows digests and positions. Does not know pixels, embeddings or encoders.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

MEDIA_ROW = -2  # in the tokens of a request: a row of its media (-1 is a token that a tick will sample)
FIRST_ID = -3
LAST_ID = -(1 << 31)
REMEMBERED_MAX = 1 << 16  # media whose ids are known; one that returns later has a new id and finds no prefix


class MediaRows(NamedTuple):
    """One picture or sound in a prompt. `digest` covers its bytes and whatever else its rows depend on.

    `whole`: its rows attend to each other in both directions, so they are computed in one chunk.
    `grid_width`: its rows lie in a grid this wide and share a position in the text (M-RoPE), so memory cannot
    be trimmed to a part of them; 0: each row has a position of its own.
    """

    start: int
    rows: int
    digest: bytes
    whole: bool = False
    grid_width: int = 0

    @property
    def end(self) -> int:
        return self.start + self.rows


Media = tuple[MediaRows, ...]  # by position


class MediaPlace(NamedTuple):
    """A row: which of a request's media it belongs to, and how many rows of that precede it."""

    number: int
    offset: int


class MediaIds:
    """Ids of media. An id is never given twice, so two media cannot have the same one."""

    def __init__(self, *, remembered_max: int = REMEMBERED_MAX, last: int = LAST_ID) -> None:
        self._known: OrderedDict[tuple[bytes, int, bool], int] = OrderedDict()
        self._remembered_max = remembered_max
        self._next = FIRST_ID
        self._last = last

    def has_room(self, media: Media) -> bool:
        """Whether there are ids left for so many; after 2**31 different ones there are not."""
        return self._next - len(media) >= self._last

    def write(self, tokens: array[int], media: Media) -> None:
        """Put the ids of the media in their places."""
        for item in media:
            tokens[item.start : item.end] = array("i", [self.id_of(item)]) * item.rows

    def id_of(self, item: MediaRows) -> int:
        key = (item.digest, item.rows, item.whole)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        self._known[key] = given = self._next
        self._next -= 1
        if len(self._known) > self._remembered_max:
            self._known.popitem(last=False)
        return given


def place_of(media: Media, position: int) -> MediaPlace | None:
    """Where a row is among the media; None: it is a token."""
    for number, item in enumerate(media):
        if position < item.end:
            return MediaPlace(number, position - item.start) if position >= item.start else None
    return None


def rows_alike(media: Media, position: int, end: int) -> int:
    """Rows from here on, before `end`, that are all tokens, or all of one picture."""
    for item in media:
        if position < item.end:
            edge = item.start if position < item.start else item.end
            return min(edge, end) - position
    return end - position


def is_whole(media: Media, position: int) -> bool:
    """Whether the row here belongs to media that are computed in one chunk."""
    place = place_of(media, position)
    return place is not None and media[place.number].whole


def cut(media: Media, length: int) -> int:
    """As much of the first `length` rows as a request may start from: not a part of a whole or a grid."""
    for item in media:
        if item.start < length < item.end and (item.whole or item.grid_width):
            return item.start
    return length


def check(media: Media, tokens: array[int], boundaries: Sequence[int]) -> None:
    """Raises ValueError where media overlap, end the prompt, or disagree with its tokens or boundaries.

    A prompt ends with a token, because a row of media has no logits to sample from.
    """
    last = 0
    for item in media:
        if item.rows < 1 or item.start < last or item.end >= len(tokens):
            raise ValueError(f"media must ascend within the prompt and not end it: {item}")
        if item.grid_width and item.rows % item.grid_width:
            raise ValueError(f"{item.rows} rows do not fill a grid of {item.grid_width} columns")
        if tokens[item.start : item.end] != array("i", [MEDIA_ROW]) * item.rows:
            raise ValueError("the tokens of a request have MEDIA_ROW where its media are")
        if any(item.start < offset < item.end for offset in boundaries):
            raise ValueError("a message ends inside a picture")
        last = item.end
