"""Side-context prefill: one prompt at a time runs in a second context with flash attention.

On a CPU single rows are up to twice as fast without flash attention, and long prompts a third faster with it.
So the slots use a context without it. A long prompt runs here and is handed over to its slot in the tick
after its last chunk, or before any operation on its sequence: its state is read, converted (`state_format`),
written to the main context and removed here.

Passes are cheapest with hundreds of rows, and streams must not wait that long. So a pass takes as many rows
as it can, and each tick runs a share of its layers: the rows that the tick asked for over the rows of the
pass (`pausable_pass`). After a quarter of the layers of 512 rows the core counts 128 rows as done. They are
once the pass has ended; until then nothing reads them.

The rows of a picture run here likewise while streams generate, so that a stream waits for a layer or two of
them instead of a chunk. What the sequence held before is moved here first.

Whether this build of llama.cpp pauses as expected, and writes states as we parse them, is tried at load.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp import tuning
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.context import WHOLE, Context
from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.llamacpp.native.state_format import (
    for_context,
    of_one_stream,
    room_for,
    with_streams,
)
from stretto.backends.llamacpp.native.temporary_thread import on_temporary_thread
from stretto.backends.llamacpp.prefill.pausable_pass import PausablePass
from stretto.backends.llamacpp.prefill.side_rows import EmbeddedRows, PromptRows, SideRows
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.ops import KvOp, OpKind
from stretto.core.tick import Tick

TRIAL_TOKENS = 8  # half of them, then the rest
TRIAL_TOLERANCE = 0.05  # of the logits' spread: the two kernels round differently
NO_SEQUENCE = -1


class HandOverError(Exception):
    """A sequence could not be handed over: the state of the main context is unknown."""


class SideContext:
    """`sequence`: the one of the main context that runs here; there it is empty until the hand-over.

    `begun` and `handed_over` count prompts since the load, the trial's included.
    """

    def __init__(self, main: Context, *, prompts: bool = True, media_pass_rows: int = 0) -> None:
        """`prompts`: whether long prompts run here. `media_pass_rows`: of a picture's pass; 0: none do."""
        self.main = main
        self.takes_prompts, self.media_pass_rows = prompts, media_pass_rows
        options = replace(main.options, n_seq_max=1, flash_attention="on", drafts_max=0)
        if not prompts:
            options = replace(options, n_ubatch=media_pass_rows)
        self._pausable = PausablePass(main.model.n_layer)
        self.context = Context(main.model, options, on_node=self._pausable.callback)
        self._pass_rows = min(
            self.context.n_ubatch, tuning.SIDE_CONTEXT_ROWS_PER_LAYER * self._pausable.layers
        )
        self.sequence = NO_SEQUENCE
        self.begun = self.handed_over = 0
        self._work: SideRows | None = None
        self._held = 0  # rows computed
        self._asked = 0  # rows that the core counts as computed
        self.done = False  # its last chunk has run
        self.holds_nan = False  # there may be NaN in its cells (see `nan_isolation`)
        self._idle = 0

    @classmethod
    def open(cls, main: Context, *, media: bool) -> SideContext | None:
        """Where the plan has one for prompts, or for media of a model that takes any, and it works."""
        prompts, media_pass_rows = main.plan.side_context, main.plan.media_pass_rows if media else 0
        if not prompts and not media_pass_rows:
            return None
        side_context = cls(main, prompts=prompts, media_pass_rows=media_pass_rows)
        if not on_temporary_thread(side_context.works):
            side_context.close()
            return None
        return side_context

    # --- which prompt ----------------------------------------------------------------------------

    def before(self, ops: Sequence[KvOp]) -> None:
        """Hand the sequence over before an operation reads or changes it."""
        touching = {op.kind for op in ops if self.sequence in (op.sequence, op.other)}
        if self.sequence == NO_SEQUENCE or not touching:
            return
        if touching == {OpKind.CLEAR}:
            self.drop()
        else:
            self.hand_over()

    def choose(
        self, tick: Tick, spans: Sequence[int], bound: dict[int, BoundRequest], copying: Collection[int]
    ) -> int | None:
        """The span of tokens that runs here in this tick, if any. Hands over what cannot go on here.

        A sequence that waits for a copy does not begin: the copy happens in the next pass of the main context
        and would overwrite what is handed over.
        """
        running = next((at for at in spans if tick.sequences[at] == self.sequence), None)
        if running is not None:
            media = self._work is not None and self._work.is_media
            if media and self._goes_on(tick, running):
                self._idle = 0
                return None
            if not media and running >= tick.decode_spans:
                self._idle = 0
                return running
            self.hand_over()
        elif self.sequence != NO_SEQUENCE:
            self._idle += tick.adapters == self.context.adapters  # other groups' ticks do not count
            if self.done or self._idle > tuning.SIDE_CONTEXT_IDLE_TICKS:
                self.hand_over()
        if self.sequence != NO_SEQUENCE or not self.takes_prompts:
            return None
        return self._begin_prompt(tick, spans, bound, copying)

    def _goes_on(self, tick: Tick, span: int) -> bool:
        """Whether this span holds the next rows of the picture that runs here."""
        shown = any(chunk.span == span for chunk in tick.media)
        return shown and not self.done and tick.starts[span] == self._asked

    def _begin_prompt(
        self, tick: Tick, spans: Sequence[int], bound: dict[int, BoundRequest], copying: Collection[int]
    ) -> int | None:
        for at in spans:
            request = bound[tick.slots[at]]
            long = (
                tick.starts[at] <= tuning.SIDE_CONTEXT_RECOMPUTED_MAX
                and len(request) >= tuning.SIDE_CONTEXT_PROMPT_MIN
                and not request.in_main_context
            )
            waits = tick.sequences[at] in copying
            if long and at >= tick.decode_spans and not waits and self._may_begin(tick, at):
                self.begin(tick.sequences[at], request.known(0, len(request)))
                return at
        return None

    def _may_begin(self, tick: Tick, span: int) -> bool:
        fits = tick.starts[span] + tick.counts[span] <= self.context.n_batch
        return fits and tick.counts[span] >= tuning.SIDE_CONTEXT_ROWS_MIN

    def missing(self, tick: Tick, span: int) -> int:
        """Rows before the span that this context has not been asked for."""
        return tick.starts[span] - self._asked

    def begin(self, sequence: int, text: Sequence[int]) -> None:
        self._take(sequence, PromptRows(array("i", text), self._pass_rows))

    def begin_media(self, sequence: int, rows: EmbeddedRows) -> bool:
        """Take the sequence over, with what it holds before these rows; False: it stays where it is.

        The main context must hold exactly that, and wait for no copy.
        """
        state_bytes = self.main.state_size(sequence, WHOLE) if rows.begin else 0
        if self.sequence != NO_SEQUENCE or state_bytes > tuning.STATE_BUFFER_BYTES_MAX:
            return False
        if self.holds_nan:
            self.drop()
        if rows.begin and not self._fetch(sequence, state_bytes):
            self.context.remove(0, 0)
            return False
        self._take(sequence, rows)
        return True

    def _fetch(self, sequence: int, state_bytes: int) -> bool:
        """Move what the main context holds of a sequence here."""
        state = np.empty(state_bytes, dtype=np.uint8)
        if self.main.read_state(sequence, state, WHOLE) != state_bytes:
            return False
        own = of_one_stream(state, self.main.n_seq_max)
        if own is None or self.context.write_state(0, own, WHOLE) != len(own):
            return False
        self.main.remove(sequence, 0)
        return True

    def _take(self, sequence: int, work: SideRows) -> None:
        if self.holds_nan:
            self.drop()
        self.sequence = sequence
        self.begun += 1
        self._work = work
        self._held = self._asked = work.begin
        self.done = False
        self._idle = 0

    @property
    def paused(self) -> bool:
        """A pass has begun and waits between two layers."""
        return self._pausable.paused

    # --- rows ------------------------------------------------------------------------------------

    def decode(self, rows: Rows) -> int:
        """Run the share of layers that these rows stand for; to the end of the pass where they end."""
        return self.run_until(rows.positions[-1] + 1)

    def run_until(self, end: int) -> int:
        """Likewise, for the rows of the sequence before `end`."""
        while self._held < end:
            code = self._advance(end)
            if code is None:
                break
            if code != 0:
                return code
        self._asked = end
        if self._work is not None and self._work.is_media:
            self.done = end == self._work.end
        return 0

    def _advance(self, end: int) -> int | None:
        """Advance the pass with the next rows: its result, or None if it paused."""
        pausable, work, first = self._pausable, self._work, self._held
        assert work is not None
        last = work.pass_end(first)
        layers = round(pausable.layers * (min(end, last) - first) / (last - first))
        if not pausable.paused:
            code = pausable.start(lambda: work.run(self.context, first, last), layers)
        elif pausable.done < layers or layers == pausable.layers:
            code = pausable.resume(layers)
        else:
            return None
        if code == 0:
            self._held = last
        return code

    def logits(self) -> NDArray[np.float32]:
        return self.context.logits()

    def hand_over(self) -> None:
        """Move the sequence to the main context. A paused pass ends first; rows not asked for are dropped."""
        sequence, length = self.sequence, self._asked
        done = not self._pausable.paused or self._pausable.resume(self._pausable.layers) == 0
        done = done and self.context.remove(0, length)
        streams = self.main.n_seq_max
        buffer = np.empty(self.context.state_size(0, WHOLE) + room_for(streams), dtype=np.uint8)
        state = buffer[: len(buffer) - room_for(streams)]
        done = done and self.context.read_state(0, state, WHOLE) == len(state)
        self.drop()
        if done:
            by_token = self.main.flash_attention
            ours = (
                with_streams(buffer, streams)
                if by_token
                else for_context(state, streams=streams, by_token=False)
            )
            done = ours is not None and self.main.write_state(sequence, ours, WHOLE) == len(ours)
        if not done or self.main.positions(sequence)[1] + 1 != length:
            self.main.remove(sequence, 0)
            raise HandOverError
        self.handed_over += 1

    def drop(self) -> None:
        self._pausable.abandon()
        if self.holds_nan:
            self.context.clear()
        else:
            self.context.remove(0, 0)
        self.sequence, self.holds_nan = NO_SEQUENCE, False
        self._work, self._held, self._asked = None, 0, 0

    def close(self) -> None:
        self._pausable.abandon()
        self.context.close()

    def works(self) -> bool:
        """Trial: a short prompt computed here and handed over must continue as one computed there."""
        main, vocab = self.main, self.context.vocab
        begin, last = [(0, 0, TRIAL_TOKENS)], [(0, TRIAL_TOKENS, 1)]
        try:
            if main.decode(rows_for(begin, vocab=vocab)) or main.decode(rows_for(last, vocab=vocab)):
                return False
            right = main.logits()[0].copy()
            main.remove(0, 0)
            rows = rows_for(begin, vocab=vocab)
            self.begin(0, rows.tokens)
            if self.decode(rows_for([(0, 0, TRIAL_TOKENS // 2)], vocab=vocab)) or not self._pausable.paused:
                return False
            if self.decode(rows) or self._pausable.done != self._pausable.layers:
                return False
            self.hand_over()
            if self.media_pass_rows and not self._returns(TRIAL_TOKENS):
                return False
            if main.decode(rows_for(last, vocab=vocab)):
                return False
            got = main.logits()[0]
            return bool(np.abs(got - right).max() <= TRIAL_TOLERANCE * (right.max() - right.min()))
        except HandOverError:
            return False
        finally:
            main.remove(0, 0)
            self.drop()

    def _returns(self, length: int) -> bool:
        """Whether a sequence can be taken over and handed over again; `works` compares what it holds."""
        if not self.begin_media(0, EmbeddedRows(b"", 1, length, self.media_pass_rows)):
            return False
        self.hand_over()
        return True
