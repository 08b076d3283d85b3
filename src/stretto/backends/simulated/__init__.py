"""A strict backend without a model, for simulation, tests and capacity planning.

Its tokens are hashes of its memory's contents (`model`), its memory behaves like the real layouts (`memory`),
its ticks take the time given by a latency model, and a script of faults injects failures (`faults`).
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Container, Mapping

from stretto.backends.simulated.faults import NO_FAULTS, FaultScript, NoFaults, TickFaults
from stretto.backends.simulated.memory import ContractError, PagedMemory, make_memory
from stretto.backends.simulated.model import LatencyModel, SimulatedModel, cell_scope
from stretto.core.capabilities import Capabilities
from stretto.core.draft_price import MODEL
from stretto.core.media import MEDIA_ROW, MediaPlace, place_of, rows_alike
from stretto.core.ops import PAGE_WRITES, WRITES, OpResult, check_order
from stretto.core.request import AdapterGroup, Request
from stretto.core.tick import PENDING_TOKEN, Binding, Outcome, PassFailure, PromptScores, Span, Tick

__all__ = [
    "NO_FAULTS",
    "ContractError",
    "LatencyModel",
    "NoFaults",
    "SimulatedBackend",
    "SimulatedModel",
    "TickFaults",
]

DRAFT_HITS = 3  # about three of four proposals are right


class SimulatedBackend:
    def __init__(
        self,
        capabilities: Capabilities,
        *,
        model: SimulatedModel | None = None,
        latency: LatencyModel | None = None,
        faults: FaultScript | None = None,
    ) -> None:
        self.capabilities = capabilities
        self.model = model or SimulatedModel(batch_invariant=capabilities.batch_invariant)
        self.memory = make_memory(capabilities)
        self._latency = latency or LatencyModel()
        self._faults = faults or NoFaults()
        self._bound: dict[int, Binding] = {}
        self._wanted: dict[int, str] = {}  # which drafter the tick asks for drafts, by slot
        self._sampled: dict[int, int] = {}  # slot -> last token, for rows planned ahead
        self._outcomes: deque[Outcome] = deque()
        self._broken: TickFaults | None = None
        self._adapters: AdapterGroup = ()  # of the last pass
        self.encoded: Container[bytes] = set()  # digests of media whose rows it has
        self.faults_hit: Counter[str] = Counter()

    # --- the protocol ----------------------------------------------------------------------------

    def launch(self, tick: Tick) -> None:
        for slot in tick.unbind:
            self._bound.pop(slot, None)
        for binding in tick.bind:
            self._bound[binding.slot] = binding
        if isinstance(self.memory, PagedMemory):
            self.memory.begin_tick()
        for update in tick.tables:
            self.memory.update_table(update)
        if self._broken is not None:
            self._outcomes.append(Outcome(tick.id, failure=PassFailure.VOID, ran=False))
            return
        check_order(tick.ops)
        self._check_adapters(tick)
        self._check_media(tick)
        faults = self._faults.at(tick.id)
        outcome = Outcome(tick.id, op_results=tuple(self._execute(tick, faults)))
        broken = {
            op.sequence
            for op, result in zip(tick.ops, outcome.op_results, strict=True)
            if not result.ok and op.kind in WRITES
        }
        broken |= self._slots_of_broken_pages(tick, outcome)
        self._wanted = dict.fromkeys(tick.propose, "simulated")
        self._wanted |= {slot: MODEL for slot, count in tick.ask_model.items() if count}
        outcome.behind = dict.fromkeys(tick.ask_model, 0)
        self._run(tick, outcome, faults, broken)
        self._outcomes.append(outcome)

    def collect(self) -> Outcome:
        if isinstance(self.memory, PagedMemory):
            self.memory.end_tick()
        return self._outcomes.popleft()

    def recover(self, lengths: Mapping[int, int]) -> frozenset[int]:
        faults, self._broken = self._broken, None
        lost = faults is not None and faults.lose
        return frozenset(s for s, length in lengths.items() if lost or not self.memory.roll_back(s, length))

    def rest(self) -> None:
        """It holds nothing that others could use."""

    def close(self) -> None:
        self._bound.clear()

    # --- operations ------------------------------------------------------------------------------

    def _check_adapters(self, tick: Tick) -> None:
        """Where adapters belong to the context, each row would be computed with those of the tick."""
        for slot in tick.slots if self.capabilities.one_group else ():
            if self._bound[slot].request.adapters != tick.adapters:
                raise ContractError(f"slot {slot} has rows in a pass with other adapters than its own")

    def _check_media(self, tick: Tick) -> None:
        """A span is all tokens, or encoded rows of one picture; all of them where it is computed whole."""
        chunks = {chunk.span: MediaPlace(chunk.number, chunk.offset) for chunk in tick.media}
        at = 0
        for index, span in enumerate(tick.spans()):
            tokens, at = tick.tokens[at : at + span.rows], at + span.rows
            media, place = self._bound[span.slot].request.media, chunks.get(index)
            if place != place_of(media, span.start):
                raise ContractError(f"slot {span.slot} has rows of media, and the tick names others: {place}")
            if rows_alike(media, span.start, span.start + span.rows) != span.rows:
                raise ContractError(f"slot {span.slot} has tokens and rows of media in one span")
            if place is None:
                if min(tokens) < PENDING_TOKEN:
                    raise ContractError(f"slot {span.slot} has media where its request has text")
                continue
            item = media[place.number]
            if item.whole and span.rows != item.rows:
                raise ContractError(
                    f"slot {span.slot} has {span.rows} of {item.rows} rows that belong together"
                )
            if item.digest not in self.encoded:
                raise ContractError(f"slot {span.slot} has rows of media that are not encoded")
            if max(tokens) >= MEDIA_ROW or min(tokens) != max(tokens):
                raise ContractError(f"slot {span.slot} has rows of one picture with several ids")

    def _execute(self, tick: Tick, faults: TickFaults) -> list[OpResult]:
        results: list[OpResult] = []
        broken: set[int] = set()
        for op in tick.ops:
            if op.kind in WRITES and (op.sequence in broken or op.other in broken):
                results.append(OpResult(ok=False, reason="an operation before it failed"))
            elif op.kind in faults.fail_ops:
                self.faults_hit[f"op {op.kind.name}"] += 1
                self.memory.damage(op)
                results.append(OpResult(ok=False, reason="a simulated fault"))
            else:
                results.append(self.memory.execute(op))
            if op.kind in WRITES and not results[-1].ok:
                broken.add(op.sequence)
        return results

    def _slots_of_broken_pages(self, tick: Tick, outcome: Outcome) -> set[int]:
        broken = {
            op.sequence
            for op, result in zip(tick.ops, outcome.op_results, strict=True)
            if op.kind in PAGE_WRITES and not result.ok
        }
        return {update.slot for update in tick.tables if broken & set(update.pages)}

    # --- rows ------------------------------------------------------------------------------------

    def _run(self, tick: Tick, outcome: Outcome, faults: TickFaults, broken: set[int]) -> None:
        spans = [span for span in tick.spans() if span.sequence not in broken]
        outcome.ran = bool(spans)
        if not spans:
            outcome.counts = array("i", [0] * len(tick.slots))
            return
        if faults.no_room or sum(span.rows for span in spans) > self.memory.free_rows():
            outcome.failure, outcome.ran = PassFailure.NO_ROOM, False
            self._broken = NO_FAULTS
            self.faults_hit["no room"] += 1
            return
        poisoned = faults.poison_request in {self._bound[s.slot].request.id for s in spans} - {""}
        if faults.fail_before:
            self._break(outcome, faults, ran=False)
            return
        self.memory.begin_pass()
        at = 0
        rows_left = faults.fail_after_rows if faults.fail_after_rows >= 0 else 1 << 40
        rows_left = 1 if poisoned else rows_left
        for index, span in enumerate(tick.spans()):
            tokens = tick.tokens[at : at + span.rows]
            at += span.rows
            decodes = index < tick.decode_spans
            if span.sequence in broken:
                outcome.counts.append(0)
                continue
            if span.rows > rows_left:
                self._append(span, tokens[:rows_left], decodes=decodes)
                self._break(outcome, faults, ran=True)
                return
            rows_left -= span.rows
            self._run_span(span, tokens, outcome, faults, decodes=decodes)
        outcome.pass_s = self._seconds(tick) * faults.slow
        self.faults_hit["tick 100 times slower"] += faults.slow > 1.0
        if faults.malformed:
            outcome.counts = outcome.counts[:-1]
            self._broken = faults
            self.faults_hit["malformed outcome"] += 1

    def _break(self, outcome: Outcome, faults: TickFaults, *, ran: bool) -> None:
        outcome.failure, outcome.ran = PassFailure.FAILED, ran
        outcome.counts, outcome.tokens = array("i"), array("i")
        outcome.failed, outcome.drafts, outcome.scores = {}, {}, {}
        self._broken = faults
        self.faults_hit["pass failed half-way" if ran else "pass failed at once"] += 1
        self.faults_hit["sequences lost"] += faults.lose

    def _append(self, span: Span, tokens: array[int], *, decodes: bool) -> None:
        request = self._bound[span.slot].request
        scope = cell_scope(request)
        # A slot that failed in the previous tick has sampled nothing; the core discards this row.
        last = self._sampled.get(span.slot, self.model.eos)
        known = [last if token == PENDING_TOKEN else token for token in tokens]
        generated = decodes and span.start >= len(request.tokens)  # the last row of a prompt is a prompt row
        place = place_of(request.media, span.start)
        if place is not None:
            item = request.media[place.number]
            cells = self.model.media_cells(scope, item, place.offset, len(tokens))
        else:
            cells = self.model.decoded(scope, known) if generated else self.model.cells(scope, known)
        self.memory.append(span.sequence, span.start, cells)

    def _run_span(
        self, span: Span, tokens: array[int], outcome: Outcome, faults: TickFaults, *, decodes: bool
    ) -> None:
        self._append(span, tokens, decodes=decodes)
        request = self._bound[span.slot].request
        if rows := request.measured_rows(span.start, span.rows):
            outcome.scores[span.slot] = self._measure(span, request, rows)
        if span.outputs == 0:
            outcome.counts.append(0)
            return
        if span.slot in faults.bad_logits:
            outcome.failed[span.slot] = "bad_output"
            self.faults_hit["no finite logits"] += 1
            outcome.counts.append(0)
            return
        got = self._verify(span, tokens, request.params.seed)
        if span.slot in faults.bad_token:
            got[-1] = self.model.vocab + 7
            self.faults_hit["token outside the vocabulary"] += 1
        self._sampled[span.slot] = got[-1]
        outcome.tokens.extend(got)
        outcome.counts.append(len(got))
        if span.slot in self._wanted:
            outcome.drafts[span.slot] = self._propose(span, len(got), request.params.draft_tokens)
            outcome.drafters[span.slot] = self._wanted[span.slot]

    def _measure(self, span: Span, request: Request, rows: int) -> PromptScores:
        measured: list[object] = []
        for end in range(span.start + 1, span.start + rows + 1):
            cells = self.memory.content(span.sequence, end)
            measured.append(self.model.measured(cells, request.tokens[end]))
        return PromptScores(span.start + 1, measured)

    def _verify(self, span: Span, tokens: array[int], seed: int) -> list[int]:
        """One token per output row, up to the first wrong draft."""
        got: list[int] = []
        first = span.rows - span.outputs
        for row in range(first, span.rows):
            token = self.model.next_token(self.memory.content(span.sequence, span.start + row + 1), seed)
            got.append(token)
            if row + 1 < span.rows and tokens[row + 1] != token:
                break
        return got

    def _propose(self, span: Span, accepted: int, count: int) -> array[int]:
        """Draft tokens, some of them deliberately wrong."""
        request = self._bound[span.slot].request
        length = span.start + span.rows - span.outputs + accepted
        cells = array("q", self.memory.content(span.sequence, length))
        bits = self.model.scope_bits(cell_scope(request))
        cells.append(bits | self._sampled[span.slot])
        drafts: array[int] = array("i")
        for _ in range(count):
            guess = self.model.next_token(cells.tobytes(), request.params.seed)
            if guess % 4 >= DRAFT_HITS:
                guess = 1 + guess % (self.model.vocab - 1)
            drafts.append(guess)
            cells.append(bits | guess)
        return drafts

    def _seconds(self, tick: Tick) -> float:
        rows, contexts, chunks = 0, 0, []
        for span in tick.spans():
            if rows < tick.decode_rows:
                rows += span.rows
                contexts += span.start
            else:
                chunks.append((span.rows, span.start))
        changed, self._adapters = tick.adapters != self._adapters, tick.adapters
        return self._latency.pass_s(rows, contexts, chunks) + changed * self._latency.change_s
