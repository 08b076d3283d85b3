"""llama.cpp behind the Backend protocol: binds samplers, executes operations, runs rows, samples.

One thread calls it. A tick is one or a few llama_decode calls (`passes/calls.py`). All work happens in
`launch`; `collect` returns the outcome. After a failed pass nothing runs until `recover`, which trims
sequences or, after a fatal error, makes a new context and reports every sequence as lost.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from stretto.backends.adapters import AdapterSource
from stretto.backends.llamacpp import tuning
from stretto.backends.llamacpp.adapters import Adapters
from stretto.backends.llamacpp.calibration import ContextMeasures, calibrate, measure
from stretto.backends.llamacpp.capabilities import capabilities_of, rewind_of
from stretto.backends.llamacpp.choices.chosen import NOTHING as NOTHING_CHOSEN
from stretto.backends.llamacpp.choices.chosen import Choices, ModelChooser
from stretto.backends.llamacpp.choices.drift import Drift
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.drafting.drafting import Drafting
from stretto.backends.llamacpp.drafting.exactness import why_not
from stretto.backends.llamacpp.invariance import batch_invariant
from stretto.backends.llamacpp.media import Media, MediaOptions, open_media
from stretto.backends.llamacpp.memory.arena import Arena
from stretto.backends.llamacpp.memory.kv_memory import KvMemory
from stretto.backends.llamacpp.memory.nan_isolation import NanIsolation, NanIsolationError
from stretto.backends.llamacpp.model import LoadWarning, Model, Progress, load
from stretto.backends.llamacpp.native.batch import Rows, gather
from stretto.backends.llamacpp.native.temporary_thread import on_temporary_thread
from stretto.backends.llamacpp.options import ContextOptions, ModelOptions
from stretto.backends.llamacpp.passes.calls import Calls
from stretto.backends.llamacpp.passes.media_rows import MediaPass
from stretto.backends.llamacpp.passes.outputs import Outputs
from stretto.backends.llamacpp.passes.padding import Padding
from stretto.backends.llamacpp.passes.tile_fill import widened
from stretto.backends.llamacpp.prefill.side_context import NO_SEQUENCE, HandOverError, SideContext
from stretto.backends.llamacpp.quirks import needs_separate_calls
from stretto.backends.llamacpp.quirks import resolve as resolve_quirks
from stretto.backends.llamacpp.samplers import Samplers
from stretto.backends.llamacpp.threads import pass_threads
from stretto.backends.sampling.bound_request import BoundRequest, MakeSampler
from stretto.core.capabilities import Rewind
from stretto.core.ops import OpResult
from stretto.core.tick import MediaChunk, Outcome, PassFailure, Tick
from stretto.errors import InvariantError

NO_ROOM = 1
REFUSED = -1  # memory is unchanged; below that the context is unusable


class LlamaCppBackend:
    def __init__(
        self,
        context: Context,
        *,
        make_sampler: MakeSampler | None = None,
        cache_ram_bytes: int = 1 << 30,
        calibrated: bool = False,
        choices: Choices = NOTHING_CHOSEN,
        owns_model: bool = False,
        adapters: Adapters | None = None,
        media: Media | None = None,
    ) -> None:
        self.context = context
        self.model: Model = context.model
        self.adapters = adapters
        self.media = media
        self.choices = choices
        self.measures: ContextMeasures = on_temporary_thread(lambda: measure(context))
        if calibrated:
            self.calibrate()
        self.side_context = SideContext.open(context, media=media is not None)
        decode, prefill = choices.threads_decode, choices.threads_prefill
        self._threads = pass_threads(context, decode=decode, prefill=prefill, encoder=media and media.time)
        rewind, _ = rewind_of(context, self.measures)
        prompts_aside = self.side_context is not None and self.side_context.takes_prompts
        quirks = resolve_quirks(context, self.measures, rewind, side_context=prompts_aside)
        self.quirks = quirks
        deterministic = context.options.deterministic
        self.capabilities = capabilities_of(
            context,
            self.measures,
            quirks,
            batch_invariant=not deterministic or on_temporary_thread(lambda: batch_invariant(context)),
            adapters=adapters is not None,
            media=media is not None,
            media_aside=self.side_context is not None and self.side_context.media_pass_rows > 0,
        )
        arena = Arena(int(cache_ram_bytes * tuning.ARENA_SLACK))
        state_copy_max = self.measures.state_copy_max(context.window)
        self.memory = KvMemory(context, arena, rewind, state_copy_max=state_copy_max)
        self._nan_isolation = NanIsolation(context, self.memory)
        self._calls = Calls(context, self.memory, quirks)
        self._media_pass = media and MediaPass(context, self.memory, quirks, media.store, self.side_context)
        self._padding = Padding(context, self.memory, quirks) if quirks.pads else None
        self.samplers = Samplers(self.model.vocabulary)
        self._make_sampler = make_sampler or self.samplers
        self._owns_model = owns_model
        self._bound: dict[int, BoundRequest] = {}
        self.no_drafts = why_not(context, self.measures, quirks, rewind)
        self.drafting = Drafting(self._bound, drafts_max=0 if self.no_drafts else context.options.drafts_max)
        self._outputs = Outputs(self._bound, self._nan_isolation)
        self._outcomes: deque[Outcome] = deque()
        self.drift: Drift | None = None  # watches whether passes take what was measured
        self._broken = False  # a pass failed, and `recover` has not been called yet
        self._fatal = False
        self._doubtful: set[int] = set()  # sequences of a call that failed half-way

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        cache_dir: Path | None,
        model_options: ModelOptions | None = None,
        context_options: ContextOptions | None = None,
        progress: Progress | None = None,
        trial: bool = True,
        make_sampler: MakeSampler | None = None,
        cache_ram_bytes: int = 1 << 30,
        calibrated: bool = True,
        adapters: Mapping[str, AdapterSource] | None = None,
        adapters_loaded_max: int = 8,
        media: MediaOptions | None = None,
    ) -> LlamaCppBackend:
        """Load a file and make it ready to run. Raises ModelError or LlamaCppError."""
        model = load(path, model_options, cache_dir=cache_dir, progress=progress, trial=trial)
        options = context_options or ContextOptions()
        try:
            chooser = ModelChooser(model, options, cache_dir)
            choices = chooser.choose() if calibrated else NOTHING_CHOSEN
            context = Context(model, options, measured=choices.attention)
            backend = cls(
                context,
                make_sampler=make_sampler,
                cache_ram_bytes=cache_ram_bytes,
                calibrated=calibrated,
                choices=choices,
                owns_model=True,
                adapters=Adapters(model, adapters, loaded_max=adapters_loaded_max) if adapters else None,
                media=open_media(model, media, cache_dir=cache_dir, trial=trial) if media else None,
            )
            chooser.remember(backend.choices)
            backend.drift = chooser.drift(backend.choices)
            return backend
        except BaseException:
            model.close()
            raise

    @property
    def warnings(self) -> tuple[LoadWarning, ...]:
        return self.context.warnings

    def calibrate(self) -> ContextMeasures:
        """Measure calls and passes, or recall them. Only before the first tick: the sequences are emptied."""
        figures = self.choices.figures
        if figures is None:
            rewind, _ = rewind_of(self.context, self.measures)
            separate = needs_separate_calls(self.context, rewind)
            figures = on_temporary_thread(lambda: calibrate(self.context, always_separate=separate))
            self.choices = replace(self.choices, figures=figures)
        self.measures = replace(
            self.measures,
            two_calls=figures.two_calls,
            four_rows_faster=self.choices.pads_to_four,
            n_threads=self.choices.threads_prefill,
        )
        return self.measures

    @property
    def threads(self) -> int:
        """How many compute the next pass."""
        return self._threads.count

    # --- the protocol ----------------------------------------------------------------------------

    def launch(self, tick: Tick) -> None:
        self._threads.before_tick()
        self._bind(tick)
        if self._broken:
            self._outcomes.append(Outcome(tick.id, failure=PassFailure.VOID, ran=False))
            return
        outcome = Outcome(tick.id, ran=False)
        started = time.perf_counter()
        try:
            broken = self._operate(tick, outcome)
            outcome.ops_s = time.perf_counter() - started
            if self.adapters is not None:
                self.adapters.free_retired(self.context, self.side_context)
            self._run(tick, outcome, broken)
        except (HandOverError, NanIsolationError):
            self._fail(outcome, REFUSED - 1)
        if tick.slots:
            outcome.pass_s = time.perf_counter() - started - outcome.ops_s - outcome.draft_s
            self._threads.after_pass(outcome.pass_s)
            if self.drift is not None and not self._threads.reduced and not tick.media:
                self.drift.note(tick, outcome.pass_s)
        self._outcomes.append(outcome)

    def _operate(self, tick: Tick, outcome: Outcome) -> set[int]:
        outcome.op_results = tuple(OpResult(ok=False, reason="not executed") for _ in tick.ops)
        self._nan_isolation.before(tick.ops, self.side_context)
        if self.side_context is not None and tick.ops:
            self.side_context.before(tick.ops)
        outcome.op_results, broken = self.memory.execute(tick.ops)
        return broken

    def collect(self) -> Outcome:
        return self._outcomes.popleft()

    def recover(self, lengths: Mapping[int, int]) -> frozenset[int]:
        fatal, doubtful = self._fatal, self._doubtful
        self._broken, self._fatal, self._doubtful = False, False, set()
        side_sequence = NO_SEQUENCE
        if self.side_context is not None:
            side_sequence = self.side_context.sequence
            self.side_context.drop()  # its rows are lost
        if fatal:
            self.context.rebuild()
            if self.side_context is not None:
                self.side_context.context.rebuild()
            self._threads.forget()
            self.memory.forget_all()
            self._nan_isolation.forget_all()
            return frozenset(range(self.context.n_seq_max))
        lost = set()
        if side_sequence != NO_SEQUENCE and side_sequence not in lengths:  # it had no rows in the failed tick
            self.memory.drop(side_sequence)
            lost.add(side_sequence)
        for sequence, length in lengths.items():
            stateful = self.capabilities.rewind is Rewind.CHECKPOINT
            if sequence in doubtful and (stateful or self.memory.in_picture(sequence, length)):
                self.memory.drop(sequence)  # llama.cpp reports rows that were never computed
                lost.add(sequence)
            elif not self.memory.roll_back(sequence, length):
                lost.add(sequence)
        return frozenset(lost)

    def rest(self) -> None:
        self._threads.rest()

    def close(self) -> None:
        self._bound.clear()
        self._outcomes.clear()
        self.drafting.close()
        self.memory.arena.close()
        self._threads.close()
        if self.side_context is not None:
            self.side_context.close()
        self.context.close()
        if self.adapters is not None:
            self.adapters.close()
        if self._owns_model:
            self.model.close()

    # --- rows ------------------------------------------------------------------------------------

    def _bind(self, tick: Tick) -> None:
        for slot in (*tick.unbind, *(binding.slot for binding in tick.bind)):
            bound = self._bound.pop(slot, None)  # a slot that is bound again at once is not unbound first
            if bound is not None:
                self.drafting.unbind(bound)
        for binding in tick.bind:
            drafting = self.drafting
            self._bound[binding.slot] = BoundRequest(
                binding, self._make_sampler, drafts_max=drafting.drafts_max, recent=drafting.recent
            )

    def _run(self, tick: Tick, outcome: Outcome, broken: set[int]) -> None:
        spans = [at for at, sequence in enumerate(tick.sequences) if sequence not in broken]
        self._calls.check(tick, spans, self._bound)
        side_span = None
        if self.side_context is not None:
            side_span = self.side_context.choose(tick, spans, self._bound, self.memory.copying)
        self._set_adapters(tick, side_span)
        if side_span is not None:
            tick = self._recompute_prefix(tick, side_span)
        measured = self._calls.measured(tick, spans, self._bound)
        pictures = [chunk for chunk in tick.media if chunk.span in spans]
        elsewhere = {side_span, *measured, *(chunk.span for chunk in pictures)}
        spans = [at for at in spans if at not in elsewhere]
        tick, calls = self._calls.arrange(tick, spans, self._bound)
        if measured:
            tick, more = self._calls.arrange_apart(tick, list(measured), self._bound)
            calls += more
        got: dict[int, list[int]] = {}
        for call in calls:
            if not self._run_filled(tick, self._calls.rows(tick, call, measured), outcome, got, broken):
                return
        if side_span is not None and not self._run_side(tick, gather(tick, [side_span]), outcome, got):
            return
        for chunk in pictures:
            if not self._run_media(tick, chunk, outcome):
                return
        for at in range(len(tick.slots)):
            tokens = got.get(at, ())
            outcome.counts.append(len(tokens))
            outcome.tokens.extend(tokens)
        if tick.propose or tick.ask_model:
            self.drafting.propose(tick, outcome)

    def _set_adapters(self, tick: Tick, side_span: int | None) -> None:
        """Of all rows of the tick; the prompt in the side context keeps its own while others run."""
        if self.adapters is not None and tick.slots:
            self.adapters.set(self.context, tick.adapters)
            if side_span is not None and self.side_context is not None:
                self.adapters.set(self.side_context.context, tick.adapters)

    def _recompute_prefix(self, tick: Tick, span: int) -> Tick:
        """A prompt that begins in the side context recomputes there what its sequence already held."""
        assert self.side_context is not None
        rows = self.side_context.missing(tick, span)
        if not rows:
            return tick
        self.context.remove(tick.sequences[span], 0)
        self.memory.lengths[tick.sequences[span]] = 0
        return widened(tick, {span: rows}, self._bound)

    def _run_side(self, tick: Tick, rows: Rows, outcome: Outcome, got: dict[int, list[int]]) -> bool:
        """A chunk of the long prompt. It is handed over in the tick after the last one: streams wait less."""
        assert self.side_context is not None
        self.side_context.done = rows.outputs_count > 0
        return self._run_call(tick, rows, outcome, got, self.side_context)

    def _run_media(self, tick: Tick, chunk: MediaChunk, outcome: Outcome) -> bool:
        assert self._media_pass is not None
        context = self._media_pass.context_for(tick, chunk, self._bound)
        if self.adapters is not None:
            self.adapters.set(context, tick.adapters)
        self._threads.before_pass(context, decode=False)
        code = self._media_pass.run(tick, chunk, self._bound, context)
        if code != 0:
            self._fail(outcome, code, [tick.sequences[chunk.span]])
            return False
        if context is self.context:  # copies happen in a pass of the main context
            outcome.ran = True
            self.memory.copying.clear()
        return True

    def _run_filled(
        self, tick: Tick, rows: Rows, outcome: Outcome, got: dict[int, list[int]], broken: set[int]
    ) -> bool:
        """In the main context. Decode rows may get padding rows."""
        if self._padding is None or len(rows) != len(rows.spans):
            return self._run_call(tick, rows, outcome, got, self.context)
        elsewhere = {self.side_context.sequence} if self.side_context is not None else set()
        padding = self._padding.add(rows, broken | self._nan_isolation.nan_sequences | elsewhere)
        try:
            return self._run_call(tick, rows, outcome, got, self.context)
        finally:
            self._padding.remove(padding)

    def _run_call(
        self,
        tick: Tick,
        rows: Rows,
        outcome: Outcome,
        got: dict[int, list[int]],
        runner: Context | SideContext,
    ) -> bool:
        decode = max(rows.spans) < tick.decode_spans
        self._threads.before_pass(runner if isinstance(runner, Context) else runner.context, decode=decode)
        started = time.perf_counter()
        try:
            code = runner.decode(rows)
            logits = runner.logits() if code == 0 and rows.outputs_count else None
        except InvariantError:
            raise
        except Exception:
            code, logits = REFUSED - 1, None
        if code != 0:
            self._fail(outcome, code, rows.sequences)
            return False
        if runner is self.context:  # copies happen in a pass of the main context
            outcome.ran = True
            self.memory.copying.clear()
        if self._calls.tile_fill is not None:
            self._calls.tile_fill.learn(tick, rows.spans, time.perf_counter() - started)
        for at in rows.spans:
            self.memory.lengths[tick.sequences[at]] += tick.counts[at]
        if logits is not None:
            self._outputs.sample(tick, rows, logits, outcome, got)
        return True

    def _fail(self, outcome: Outcome, code: int, sequences: Sequence[int] = ()) -> None:
        """NO_ROOM holds also if an earlier call of the tick succeeded: `recover` undoes that call."""
        self._broken = True
        self._fatal = code < REFUSED
        if code not in (NO_ROOM, REFUSED):
            self._doubtful.update(sequences)
        outcome.failure = PassFailure.NO_ROOM if code == NO_ROOM else PassFailure.FAILED
        outcome.failed.clear()
        outcome.extras.clear()
        outcome.scores.clear()
