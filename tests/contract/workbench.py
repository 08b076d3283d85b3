"""Drives one backend tick by tick: the caller's side of the contract in `stretto.backends.base`.

Knows ticks, block tables and the progress of each text. Expected tokens come from the same backend running
the request alone, in one sequence, with the prompt in one chunk.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stretto.backends.base import Backend, complete, is_well_formed
from stretto.backends.simulated.faults import FaultScript
from stretto.core.capabilities import Share
from stretto.core.ops import KvOp
from stretto.core.request import Request, SamplingParams
from stretto.core.tick import PENDING_TOKEN, Binding, Outcome, TableUpdate, Tick


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend under test. `make` creates one; if it `injects`, with a script of faults."""

    name: str
    make: Callable[[FaultScript | None], Backend]
    injects: bool = False


@dataclass(slots=True)
class Text:
    """A request in a slot and a sequence: its known tokens, and how many of them are computed."""

    request: Request
    slot: int
    sequence: int
    known: array[int]
    computed: int = 0
    output: list[int] = field(default_factory=list)


def ask(
    name: str,
    count: int = 15,
    *,
    start: int = 3,
    tail: Iterable[int] = (),
    draft_tokens: int = 0,
    seed: int = 7,
) -> Request:
    """Equal starts give equal prompts. Ids are small, so that they are in any vocabulary."""
    tokens = array("i", [3 + (start * 53 + at * 17 + at * at) % 400 for at in range(count)])
    tokens.extend(tail)
    params = SamplingParams(
        max_tokens=64, temperature=0.0, seed=seed, ignore_eos=True, draft_tokens=draft_tokens
    )
    return Request(name, tokens, params)


class Driver:
    def __init__(self, subject: Subject, faults: FaultScript | None = None) -> None:
        self.subject = subject
        self.backend = subject.make(faults)
        self.can = self.backend.capabilities
        self.tick_id = 0
        self.launched: list[Tick] = []
        self._binds: list[Binding] = []
        self._unbinds: list[int] = []
        self._tables: dict[int, list[int]] = {}
        self._updates: list[TableUpdate] = []
        self._pages = 0

    # --- texts -----------------------------------------------------------------------------------

    def bind(
        self, request: Request, slot: int = 0, sequence: int = -1, *, generated: Iterable[int] = ()
    ) -> Text:
        """Binds the request to a slot, by default with the sequence of the same number."""
        output = array("i", generated)
        self._binds.append(Binding(slot, request, output))
        place = slot if self.can.share is Share.PAGES or sequence < 0 else sequence
        return Text(request, slot, place, request.tokens + output, output=list(output))

    def unbind(self, text: Text) -> None:
        self._unbinds.append(text.slot)

    # --- ticks -----------------------------------------------------------------------------------

    def launch(
        self,
        *rows: tuple[Text, int],
        ops: Iterable[KvOp] = (),
        drafts: dict[int, list[int]] | None = None,
        ahead: bool = False,
    ) -> Tick:
        """Rows are (text, count); drafts are proposals by slot; ahead: the last token is not known yet."""
        tick = Tick(self.tick_id, ops=tuple(sorted(ops, key=lambda op: op.kind)))
        decode = [r for r in rows if len(r[0].known) - r[0].computed == 1 or ahead]
        for text, count in decode + [r for r in rows if r not in decode]:
            tokens = text.known[text.computed : text.computed + count]
            if ahead:
                tokens = array("i", [PENDING_TOKEN])
            proposals = (drafts or {}).get(text.slot, [])
            last = ahead or text.computed + count == len(text.known)
            self._write(tick, text, tokens + array("i", proposals), int(last) + len(proposals))
        tick.decode_spans = len(decode)
        tick.decode_rows = sum(tick.counts[: len(decode)])
        tick.bind, tick.unbind, tick.tables = tuple(self._binds), tuple(self._unbinds), tuple(self._updates)
        self._binds, self._unbinds, self._updates = [], [], []
        self.tick_id += 1
        self.backend.launch(tick)
        self.launched.append(tick)
        return tick

    def _write(self, tick: Tick, text: Text, tokens: array[int], outputs: int) -> None:
        self._grow(text.slot, text.computed + len(tokens))
        tick.slots.append(text.slot)
        tick.sequences.append(text.sequence)
        tick.starts.append(text.computed)
        tick.counts.append(len(tokens))
        tick.outputs.append(outputs)
        tick.tokens.extend(tokens)

    def _grow(self, slot: int, length: int) -> None:
        if self.can.share is not Share.PAGES:
            return
        table = self._tables.setdefault(slot, [])
        offset = len(table)
        while len(table) * self.can.page_tokens < length:
            table.append(self.take_page())
        if len(table) > offset:
            self._updates.append(TableUpdate(slot, offset, tuple(table[offset:])))

    def take_page(self) -> int:
        self._pages += 1
        return self._pages - 1

    def pages_of(self, slot: int) -> list[int]:
        return self._tables[slot]

    def set_table(self, slot: int, pages: list[int]) -> None:
        self._tables[slot] = pages
        self._updates.append(TableUpdate(slot, 0, tuple(pages)))

    def collect(self) -> Outcome:
        """The oldest outcome, after recovery if its pass failed."""
        tick = self.launched.pop(0)
        outcome = complete(self.backend, tick)
        if outcome.failure is None:
            assert is_well_formed(tick, outcome)
            assert outcome.pass_s >= 0.0 and outcome.ops_s >= 0.0  # noqa: PT018
        return outcome

    def tick(self, *rows: tuple[Text, int], ops: Iterable[KvOp] = (), **more) -> Outcome:
        """Launches, collects, and appends the sampled tokens to the texts."""
        tick = self.launch(*rows, ops=ops, **more)
        outcome = self.collect()
        if outcome.failure is None:
            self.take(tick, outcome, [text for text, _ in rows])
        return outcome

    @staticmethod
    def take(tick: Tick, outcome: Outcome, texts: Iterable[Text]) -> None:
        by_slot = {text.slot: text for text in texts}
        failed = {
            op.sequence for op, result in zip(tick.ops, outcome.op_results, strict=True) if not result.ok
        }
        at = 0
        for span, got in zip(tick.spans(), outcome.counts, strict=True):
            text = by_slot[span.slot]
            tokens = outcome.tokens[at : at + got]
            at += got
            if span.sequence in failed or span.slot in outcome.failed:
                continue
            text.known.extend(tokens)
            text.output.extend(tokens)
            text.computed = span.start + span.rows - span.outputs + got

    # --- whole texts -----------------------------------------------------------------------------

    def say(self, text: Text, count: int, *, chunk: int = 1 << 20, ops: Iterable[KvOp] = ()) -> list[int]:
        """Computes the rest of the prompt in chunks, then decodes `count` tokens."""
        ops = tuple(ops)
        chunk = min(chunk, self.can.rows_max)
        while len(text.output) < count:
            due = len(text.known) - text.computed
            self.tick((text, min(due, chunk)), ops=ops)
            ops = ()
        return text.output[:count]

    def close(self) -> None:
        self.backend.close()


def alone(subject: Subject, request: Request, count: int) -> list[int]:
    """The output of a request alone: slot 0, sequence 0, the prompt in one chunk."""
    driver = Driver(subject)
    try:
        return driver.say(driver.bind(request), count)
    finally:
        driver.close()
