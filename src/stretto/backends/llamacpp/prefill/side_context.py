"""Side-context prefill: one long prompt at a time runs in a second context with flash attention.

On a CPU single rows are up to twice as fast without flash attention, and long prompts a third faster with it.
So the slots use a context without it. A long prompt runs here and is handed over to its slot in the tick
after its last chunk, or before any operation on its sequence: its state is read, converted (`state_format`),
written to the main context and removed here.

Passes are cheapest with hundreds of rows, and streams must not wait that long. So a pass takes as many rows
as it can, and each tick runs a share of its layers: the rows that the tick asked for over the rows of the
pass (`pausable_pass`). After a quarter of the layers of 512 rows the core counts 128 rows as done. They are
once the pass has ended; until then nothing reads them.

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
from stretto.backends.llamacpp.native.state_format import for_context
from stretto.backends.llamacpp.prefill.pausable_pass import PausablePass
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.ops import KvOp, OpKind
from stretto.core.tick import Tick

TRIAL_TOKENS = 8  # half of them, then the rest
TRIAL_TOLERANCE = 0.05  # of the logits' spread: the two kernels round differently
NO_SEQUENCE = -1
NOTHING = array("i")


class HandOverError(Exception):
    """A sequence could not be handed over: the state of the main context is unknown."""


class SideContext:
    """`sequence`: the one of the main context that runs here; there it is empty until the hand-over.

    `begun` and `handed_over` count prompts since the load, the trial's included.
    """

    def __init__(self, main: Context) -> None:
        self.main = main
        options = replace(main.options, n_seq_max=1, flash_attention="on", drafts_max=0)
        self._pausable = PausablePass(main.model.n_layer)
        self.context = Context(main.model, options, on_node=self._pausable.callback)
        self._pass_rows = min(
            self.context.n_ubatch, tuning.SIDE_CONTEXT_ROWS_PER_LAYER * self._pausable.layers
        )
        self.sequence = NO_SEQUENCE
        self.begun = self.handed_over = 0
        self._text = NOTHING  # all tokens to compute
        self._held = 0  # rows computed
        self._asked = 0  # rows that the core counts as computed
        self.done = False  # its last chunk has run
        self.holds_nan = False  # there may be NaN in its cells (see `nan_isolation`)
        self._idle = 0

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
        """The span that runs here in this tick, if any. Hands over what cannot go on here.

        A sequence that waits for a copy does not begin: the copy happens in the next pass of the main context
        and would overwrite what is handed over.
        """
        running = next((at for at in spans if tick.sequences[at] == self.sequence), None)
        if running is not None:
            if running >= tick.decode_spans:
                self._idle = 0
                return running
            self.hand_over()
        elif self.sequence != NO_SEQUENCE:
            self._idle += tick.adapters == self.context.adapters  # other groups' ticks do not count
            if self.done or self._idle > tuning.SIDE_CONTEXT_IDLE_TICKS:
                self.hand_over()
        if self.sequence != NO_SEQUENCE:
            return None
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
        if self.holds_nan:
            self.drop()
        self.sequence = sequence
        self.begun += 1
        self._text = array("i", text)
        self._held = self._asked = 0
        self.done = False
        self._idle = 0

    @property
    def paused(self) -> bool:
        """A pass has begun and waits between two layers."""
        return self._pausable.paused

    # --- rows ------------------------------------------------------------------------------------

    def decode(self, rows: Rows) -> int:
        """Run the share of layers that these rows stand for; to the end of the pass where they end."""
        end = rows.positions[-1] + 1
        while self._held < end:
            code = self._advance(end)
            if code is None:
                break
            if code != 0:
                return code
        self._asked = end
        return 0

    def _advance(self, end: int) -> int | None:
        """Advance the pass with the next rows: its result, or None if it paused."""
        pausable, first = self._pausable, self._held
        last = min(first + self._pass_rows, len(self._text))
        layers = -(-pausable.layers * (min(end, last) - first) // (last - first))
        if not pausable.paused:
            code = pausable.start(lambda: self.context.decode(self._rows(first, last)), layers)
        elif pausable.done < layers or layers == pausable.layers:
            code = pausable.resume(layers)
        else:
            return None
        if code == 0:
            self._held = last
        return code

    def _rows(self, first: int, last: int) -> Rows:
        count, output = last - first, last == len(self._text)
        outputs = array("b", bytes(count))
        outputs[-1] = output
        positions = array("i", range(first, last))
        return Rows([], self._text[first:last], positions, array("i", bytes(4 * count)), outputs, int(output))

    def logits(self) -> NDArray[np.float32]:
        return self.context.logits()

    def hand_over(self) -> None:
        """Move the sequence to the main context. A paused pass ends first; rows not asked for are dropped."""
        sequence, length = self.sequence, self._asked
        done = not self._pausable.paused or self._pausable.resume(self._pausable.layers) == 0
        done = done and self.context.remove(0, length)
        state = np.empty(self.context.state_size(0, WHOLE), dtype=np.uint8)
        done = done and self.context.read_state(0, state, WHOLE) == len(state)
        self.drop()
        if done:
            ours = for_context(state, streams=self.main.n_seq_max, by_token=self.main.flash_attention)
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
        self._text, self._held, self._asked = NOTHING, 0, 0

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
            if main.decode(rows_for(last, vocab=vocab)):
                return False
            got = main.logits()[0]
            return bool(np.abs(got - right).max() <= TRIAL_TOLERANCE * (right.max() - right.min()))
        except HandOverError:
            return False
        finally:
            main.remove(0, 0)
            self.drop()
