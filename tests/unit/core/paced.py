"""A scheduler on a device with its own clock: what pipelining hides, and what waiting for drafts costs.

Host and device advance separately, as in the engine loop: a pass begins when it is launched and the one
before has ended. Every text is one token again and again; a draft is right with a given probability.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from stretto.core.limits import Limits
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Outcome, Tick
from tests.unit.core.rig import ask, paged

RIGHT, WRONG = 7, 8


class Pace(NamedTuple):
    """Seconds: of a pass by its rows, and of the host's work for a tick by its slots."""

    pass_s: Callable[[int], float]
    host_s: Callable[[int], float]
    proposal_s: float = 6e-6  # of one slot


class PacedRun:
    """`run` answers tokens per second, from when all streams have a token until the first of them ends."""

    def __init__(self, pace: Pace, streams: int, acceptance: float, *, drafts: int) -> None:
        self._pace = pace
        self._streams, self._acceptance, self._drafts = streams, acceptance, drafts
        can = paged(streams, pages=64 * streams, plan_ahead=1, rows_max=8192, outputs_max=512)
        limits = Limits(n_seq_max=streams, n_batch=8192, prefill_chunk=8192, cache="none", max_queue=1 << 20)
        self._scheduler = Scheduler(limits, can)
        self._random = random.Random(streams)
        self._flying: deque[tuple[Tick, float, float]] = deque()  # with the begin and end of its pass
        self._host_s = self._device_s = 0.0
        self._names = self._tokens = 0
        self._begun: tuple[int, float] | None = None
        self._steady = 0.0
        self.asked: list[dict[int, int]] = []  # what ticks proposed, where they did
        self.ticks = self.waits = self.drafted = self.accepted = 0

    def run(self, outputs: int) -> float:
        left, self._tokens, self._begun, self._steady = self._streams, 0, None, 0.0
        for _ in range(self._streams):
            self._names += 1
            request = ask(f"r{self._names}", 32, max_tokens=outputs, draft_tokens=self._drafts)
            assert self._scheduler.submit(request, self._host_s).accepted
        while left:
            left -= self._step()
        while self._flying:
            self._finish()
        return self._steady

    def _step(self) -> int:
        """The number of requests that ended."""
        planned = self._scheduler.plan(self._host_s)
        if isinstance(planned, Tick):
            self._host_s += 0.7 * self._pace.host_s(len(planned.slots))
            begin_s = max(self._host_s, self._device_s)
            self._device_s = begin_s + self._pace.pass_s(planned.rows)
            self._flying.append((planned, begin_s, self._device_s))
            if len(self._flying) == 1:
                return len(self._scheduler.take_events().ends)
        else:
            self.waits += bool(self._flying)
        return self._finish() if self._flying else len(self._scheduler.take_events().ends)

    def _finish(self) -> int:
        tick, begin_s, end_s = self._flying.popleft()
        self._host_s = max(self._host_s, end_s)
        outcome = Outcome(tick.id, pass_s=end_s - begin_s)
        at = 0
        for count, outputs in zip(tick.counts, tick.outputs, strict=True):
            at += count
            got = [RIGHT][:outputs]
            for draft in tick.tokens[at - count + 1 : at] if outputs > 1 else ():
                if draft != RIGHT:
                    break
                got.append(RIGHT)
            outcome.counts.append(len(got))
            outcome.tokens.extend(got)
        if tick.propose:
            self.asked.append(dict(tick.propose))
        for slot, count in tick.propose.items():
            right = [self._random.random() < self._acceptance for _ in range(count)]
            outcome.drafts[slot] = array("i", [RIGHT if one else WRONG for one in right])
        outcome.draft_s = self._pace.proposal_s * len(tick.propose)
        self._host_s += outcome.draft_s
        events = self._scheduler.commit(outcome, self._host_s)
        self._host_s += 0.3 * self._pace.host_s(len(tick.slots))
        self._count(len(events.tokens), ended=len(events.ends))
        self.ticks += 1
        self.drafted += sum(end.proposed_drafts for end in events.ends)
        self.accepted += sum(end.accepted_drafts for end in events.ends)
        return len(events.ends)

    def _count(self, tokens: int, *, ended: int) -> None:
        self._tokens += tokens
        if self._begun is None:
            if self._tokens >= self._streams:
                self._begun = self._tokens, self._host_s
        elif ended and not self._steady:
            self._steady = (self._tokens - self._begun[0]) / (self._host_s - self._begun[1])


def ratio(
    pace: Pace, streams: int, acceptance: float, *, outputs: int, drafts: int = 4
) -> tuple[float, PacedRun]:
    """Tokens per second with drafts over those without, after a short run of each that is not timed."""
    off, on = PacedRun(pace, streams, 0.0, drafts=0), PacedRun(pace, streams, acceptance, drafts=drafts)
    off.run(outputs // 4)
    on.run(outputs // 4)
    plain = off.run(outputs)
    on.drafted = on.accepted = on.ticks = on.waits = 0
    return on.run(outputs) / plain, on
