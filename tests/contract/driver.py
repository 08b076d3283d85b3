"""Drives a backend with hand-written ticks: no scheduler, no ledger, only the contract."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stretto.backends.base import Backend, complete, is_well_formed
from stretto.core.capabilities import Share
from stretto.core.ops import KvOp
from stretto.core.request import Request, SamplingParams
from stretto.core.tick import Binding, Outcome, TableUpdate, Tick


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend under test, and a check of a request's output."""

    backend: Backend
    is_right: Callable[[Request, Sequence[int]], bool]
    close: Callable[[], None]


@dataclass(slots=True)
class Row:
    """One span: `tokens` from position `start`; the last `outputs` of them sample a token each."""

    slot: int
    sequence: int
    start: int
    tokens: Sequence[int]
    outputs: int = 0


class Driver:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._tick = 0
        self._paged = backend.capabilities.share is Share.PAGES
        self._bind: list[Binding] = []
        self._unbind: list[int] = []

    def bind(self, slot: int, request: Request, generated: Sequence[int] = ()) -> None:
        self._bind.append(Binding(slot, request, array("i", generated)))

    def unbind(self, slot: int) -> None:
        self._unbind.append(slot)

    def make(self, *rows: Row, ops: Sequence[KvOp] = ()) -> Tick:
        tick = Tick(self._tick, tuple(ops), bind=tuple(self._bind), unbind=tuple(self._unbind))
        self._bind, self._unbind = [], []
        self._tick += 1
        for row in sorted(rows, key=lambda row: len(row.tokens) > row.outputs):
            tick.slots.append(row.slot)
            tick.sequences.append(row.slot if self._paged else row.sequence)
            tick.starts.append(row.start)
            tick.counts.append(len(row.tokens))
            tick.outputs.append(row.outputs)
            tick.tokens.extend(row.tokens)
            if len(row.tokens) == row.outputs:
                tick.decode_rows += row.outputs
                tick.decode_spans += 1
        if self._paged:
            tick.tables = tuple(self._table(row) for row in rows if row.start == 0)
        return tick

    def _table(self, row: Row) -> TableUpdate:
        """Every slot has its own pages: sharing is the ledger's job."""
        can = self.backend.capabilities
        each = can.pages // 8
        return TableUpdate(row.slot, 0, tuple(range(row.slot * each, (row.slot + 1) * each)))

    def run(self, *rows: Row, ops: Sequence[KvOp] = ()) -> Outcome:
        tick = self.make(*rows, ops=ops)
        self.backend.launch(tick)
        outcome = complete(self.backend, tick)
        assert is_well_formed(tick, outcome) or outcome.failure is not None
        return outcome

    def generate(
        self, request: Request, *, slot: int = 0, sequence: int = 0, chunk: int = 1 << 20, have: int = 0
    ) -> list[int]:
        """Generates a request alone in its ticks, with `have` tokens already computed."""
        if have == 0 and not self._paged:
            self.run(ops=[clear(sequence)])
        self.bind(slot, request)
        known = list(request.tokens)
        while have < len(known):
            part = known[have : have + chunk]
            last = have + len(part) == len(known)
            outcome = self.run(Row(slot, sequence, have, part, int(last)))
            have += len(part)
        output = [outcome.tokens[-1]]
        while len(output) < request.params.max_tokens:
            outcome = self.run(Row(slot, sequence, have, output[-1:], 1))
            have += 1
            output.append(outcome.tokens[0])
        return output


def ask(name: str, count: int, *, outputs: int = 6, seed: int = 0) -> Request:
    text = array("i", [20 + (sum(name.encode()) * 13 + i * i * 7 + i * 3) % 400 for i in range(count)])
    return Request(
        name, text, SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True, seed=seed)
    )


def clear(sequence: int) -> KvOp:
    from stretto.core.ops import OpKind

    return KvOp(OpKind.CLEAR, sequence)
