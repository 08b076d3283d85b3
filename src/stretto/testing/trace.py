"""A trace of everything that a simulation decided: one line a step, and one digest over all lines.

Equal digests mean byte-identical traces. Lines are kept only when asked for.
"""

from __future__ import annotations

import hashlib

from stretto.core.tick import Events, Outcome, Tick


class TraceRecorder:
    def __init__(self, *, keep: bool = False) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self.lines: list[str] | None = [] if keep else None

    def line(self, text: str) -> None:
        self._digest.update(text.encode() + b"\n")
        if self.lines is not None:
            self.lines.append(text)

    def tick(self, now: float, tick: Tick) -> None:
        ops = " ".join(f"{o.kind.name}({o.sequence},{o.other},{o.length},{o.blob})" for o in tick.ops)
        spans = " ".join(f"{s.slot}@{s.sequence}:{s.start}+{s.rows}>{s.outputs}" for s in tick.spans())
        tables = " ".join(f"{u.slot}[{u.offset}:]={list(u.pages)}" for u in tick.tables)
        binds = " ".join(f"{b.slot}={b.request.id}" for b in tick.bind)
        self.line(f"{now:.9f} tick {tick.id} | {ops} | {tables} | {binds} | {spans} | {list(tick.tokens)}")

    def outcome(self, now: float, outcome: Outcome) -> None:
        failure = outcome.failure.value if outcome.failure is not None else "ok"
        self.line(
            f"{now:.9f} outcome {outcome.tick_id} {failure} {list(outcome.counts)} {list(outcome.tokens)}"
        )

    def events(self, now: float, events: Events) -> None:
        if events:
            notes = " ".join(f"{n.name}:{n.request_id}:{n.slot}:{n.value:.6g}" for n in events.notes)
            ends = " ".join(f"{e.request_id}:{e.end.value}:{e.reason}" for e in events.ends)
            self.line(f"{now:.9f} events {events.requests} {list(events.tokens)} | {notes} | {ends}")

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
