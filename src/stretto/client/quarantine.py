"""Quarantine: tracks requests that were in flight when a worker died, and rejects the likely culprits for a
while.

A pure state machine without a clock. Every request in flight at a death becomes a suspect. Suspects are
retried one at a time: the next is sent only after the current one has produced a token or ended. A request is
rejected if the worker dies while it is on trial, or if it was in flight at three deaths without completing in
between. A request that completes is cleared. Requests are identified by a keyed digest of their content; ids,
deadlines and callers do not count.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from stretto.errors import RequestRefusedError
from stretto.rpc import messages as m

REFUSE_S, REFUSE_S_MAX = 600.0, 86_400.0  # doubles each time
SUSPECT_S = 600.0
STRIKES_MAX = 3
KNOWN_MAX = 4096
_APART = {"stream_id": "", "call_id": "", "deadline_ms": None, "tenant": "", "cache_salt": "", "fork_of": ""}
_APART_TOO = {"priority": "default", "request_id": "", "number": 0}


class Standing(Enum):
    FREE = "free"
    SUSPECT = "suspect"
    REFUSED = "refused"


@dataclass(slots=True)
class _Record:
    strikes: int = 0
    until_s: float = 0.0
    refused: bool = False
    refusals: int = 0


@dataclass(slots=True)
class Quarantine:
    refuse_s: float = REFUSE_S
    on_trial: bytes | None = None
    refusals: int = 0
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _known: OrderedDict[bytes, _Record] = field(default_factory=OrderedDict)

    @property
    def empty(self) -> bool:
        """The usual case: no digests need to be computed."""
        return not self._known

    def digest(self, params: m.Message) -> bytes:
        """Digest of the content; empty if it cannot be encoded (rejected elsewhere)."""
        names = params.__struct_fields__
        apart = {name: value for name, value in {**_APART, **_APART_TOO}.items() if name in names}
        try:
            content = msgspec.json.encode(msgspec.structs.replace(params, **apart), order="deterministic")
        except (TypeError, ValueError, RecursionError, OverflowError):
            return b""
        return hashlib.blake2b(
            type(params).__name__.encode() + content, key=self._key, digest_size=16
        ).digest()

    # --- asking ----------------------------------------------------------------------------------

    def standing(self, digest: bytes, now_s: float) -> Standing:
        record = self._known.get(digest)
        if record is None:
            return Standing.FREE
        if now_s >= record.until_s and record.refused:  # retry it alone: it may not be the cause
            record.refused, record.until_s = False, now_s + SUSPECT_S
        if now_s >= record.until_s:
            del self._known[digest]
            return Standing.FREE
        return Standing.REFUSED if record.refused else Standing.SUSPECT

    def refusal(self, digest: bytes, now_s: float) -> RequestRefusedError:
        self.refusals += 1
        left_s = max(0.0, self._known[digest].until_s - now_s)
        return RequestRefusedError(
            f"the worker died while processing this request; it is rejected for another {left_s:.0f} s"
        )

    def begin_trial(self, digest: bytes) -> bool:
        """Whether it may be sent now: one suspect at a time."""
        if self.on_trial is not None and self.on_trial != digest:
            return False
        self.on_trial = digest
        return True

    def end_trial(self, digest: bytes, *, passed: bool) -> None:
        """`passed`: it produced a token or ended normally."""
        if self.on_trial == digest:
            self.on_trial = None
        record = self._known.get(digest)
        if passed and record is not None and not record.refused:
            del self._known[digest]

    # --- deaths ----------------------------------------------------------------------------------

    def died(self, in_flight: Iterable[bytes], now_s: float) -> None:
        """A worker died with these requests in flight. If one was on trial, only that one is blamed."""
        suspects = [digest for digest in dict.fromkeys(in_flight) if digest]
        tried, self.on_trial = self.on_trial, None
        if tried is not None and tried in suspects:
            self._refuse(tried, now_s)
            return
        for digest in suspects:
            record = self._known.setdefault(digest, _Record())
            record.strikes += 1
            record.until_s = max(record.until_s, now_s + SUSPECT_S)
            if record.strikes >= STRIKES_MAX:
                self._refuse(digest, now_s)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _refuse(self, digest: bytes, now_s: float) -> None:
        record = self._known.setdefault(digest, _Record())
        record.refused, record.until_s = True, now_s + min(self.refuse_s * 2**record.refusals, REFUSE_S_MAX)
        record.refusals += 1

    def stats(self) -> dict[str, int]:
        refused = sum(record.refused for record in self._known.values())
        return {"suspects": len(self._known) - refused, "refused": refused, "refusals": self.refusals}
