"""What rank 0 and a follower say to each other through pipes: JSON, each message after its length."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

LENGTH = struct.Struct("<I")
MESSAGE_BYTES_MAX = 1 << 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The first message to a follower: which part of which model it loads, and where."""

    path: str
    rank: int
    ranks: int
    device: str
    dtype: str
    load_format: str
    slots: int
    window: int
    rows_max: int
    page_tokens: int
    threads: int
    kernel_cache: str
    meeting: str  # the file through which the ranks find each other


@dataclass(frozen=True, slots=True)
class Begin:
    """All ranks have loaded: join the others with this many pages."""

    pages: int


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass, and what changed before it. A decode pass has no counts."""

    slots: Sequence[int]
    starts: Sequence[int]
    counts: Sequence[int]
    tables: Sequence[tuple[int, int, Sequence[int]]] = ()  # slot, offset, pages
    copies: Sequence[tuple[int, int, int]] = ()  # page to page, so many tokens


@dataclass(frozen=True, slots=True)
class Loaded:
    """A follower has its weights, and room for so many pages."""

    pages: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A follower has joined."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A follower cannot load: the error that the model fails with."""

    code: str
    message: str
    hint: str


Order = Setup | Begin | Pass
Reply = Loaded | Ready | Failed
ORDERS: dict[str, type[Order]] = {kind.__name__: kind for kind in (Setup, Begin, Pass)}
REPLIES: dict[str, type[Reply]] = {kind.__name__: kind for kind in (Loaded, Ready, Failed)}


def write(pipe: IO[bytes], message: Order | Reply) -> None:
    body = json.dumps([type(message).__name__, asdict(message)]).encode()
    pipe.write(LENGTH.pack(len(body)) + body)
    pipe.flush()


def read_order(pipe: IO[bytes]) -> Order | None:
    """None at the end of the pipe: rank 0 is gone."""
    body = _read(pipe)
    return None if body is None else ORDERS[body[0]](**body[1])


def read_reply(pipe: IO[bytes]) -> Reply | None:
    body = _read(pipe)
    return None if body is None else REPLIES[body[0]](**body[1])


def _read(pipe: IO[bytes]) -> Any:
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    if size > MESSAGE_BYTES_MAX:
        raise ValueError(f"a message of {size} bytes between ranks")
    body = pipe.read(size)
    return json.loads(body) if len(body) == size else None
