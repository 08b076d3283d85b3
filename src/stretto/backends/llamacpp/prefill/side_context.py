"""A second context, with flash attention, in which one long prompt at a time is computed.

On a CPU rows that come one by one are up to twice as fast without flash attention, and long prompts a third
faster with it. So the slots live in a context without it; a long prompt runs here, and *lands* in the tick
after its last chunk, or before anything else is done to its sequence: its state is read, handed over and
forgotten. The two kinds of memory differ in one thing, the order of the values: by token here, by channel
there.

Rows are cheapest by the hundred, and streams must not wait for so many. So a pass takes as many as it can,
and every tick as many of its layers as the rows that it asked for are of all its rows (`pausable_pass`):
after a quarter of the layers of 512 rows the core believes that 128 are done. They are when the pass is;
until then nobody looks.

Whether this build of llama.cpp pauses where we want, and writes states as we read them, is tried at the
start, not assumed.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.context import WHOLE, Context
from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.llamacpp.prefill.pausable_pass import PausablePass
from stretto.backends.sampling.bound_request import BoundRequest
from stretto.core.ops import KvOp, OpKind
from stretto.core.tick import Tick

TOKENS_MIN = 1024  # of a prompt; handing a shorter one over costs more than it gains
ROWS_MIN = 16  # of a chunk: fewer are not worth a pause
ROWS_A_LAYER = 32  # at most: a quantum of rows is at least a layer of a pass
REDONE_MAX = 64  # tokens of a template that every prompt begins with are computed again
IDLE_TICKS = 8  # without rows, and the prompt lands: others may want to run here
TRIAL_TOKENS = 8  # half of them, then the rest
TRIAL_TOLERANCE = 0.05  # of the logits' spread: kernels round differently
NO_SEQUENCE = -1
LAYERS_MAX = 4096
ELEMENT_BYTES = {0: 4, 1: 2}  # ggml's f32 and f16
Bytes = NDArray[np.uint8]
NOTHING = array("i")


class HandOverError(Exception):
    """A sequence could not be handed over: nothing that the main context holds is certain."""


class SideContext:
    """`sequence` is the one of the main context that runs here: there it is empty until it lands."""

    def __init__(self, main: Context) -> None:
        self._main = main
        options = replace(main.options, n_seq_max=1, flash_attention="on", drafts_max=0)
        self._pausable = PausablePass(main.model.n_layer)
        self.context = Context(main.model, options, on_node=self._pausable.callback)
        self._pass_rows = min(self.context.n_ubatch, ROWS_A_LAYER * self._pausable.layers)
        self.sequence = NO_SEQUENCE
        self._text = NOTHING  # all that is to be computed
        self._held = 0  # rows that are computed
        self._asked = 0  # rows that the core believes to be
        self.done = False  # its last chunk has run
        self.holds_nan = False  # there may be NaN in its cells (see `nan_isolation`)
        self._idle = 0

    # --- who runs here ---------------------------------------------------------------------------

    def before(self, ops: Sequence[KvOp]) -> None:
        """What others are to read or to change must be where they look for it."""
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
            self._idle += 1
            if self.done or self._idle > IDLE_TICKS:
                self.hand_over()
        if self.sequence != NO_SEQUENCE:
            return None
        for at in spans:
            request = bound[tick.slots[at]]
            long = tick.starts[at] <= REDONE_MAX and len(request) >= TOKENS_MIN and not request.measures
            waits = tick.sequences[at] in copying
            if long and at >= tick.decode_spans and not waits and self._may_begin(tick, at):
                self.begin(tick.sequences[at], request.known(0, len(request)))
                return at
        return None

    def _may_begin(self, tick: Tick, span: int) -> bool:
        fits = tick.starts[span] + tick.counts[span] <= self.context.n_batch
        return fits and tick.counts[span] >= ROWS_MIN

    def missing(self, tick: Tick, span: int) -> int:
        """Rows before the span's that this context was never asked for."""
        return tick.starts[span] - self._asked

    def begin(self, sequence: int, text: Sequence[int]) -> None:
        if self.holds_nan:
            self.drop()
        self.sequence = sequence
        self._text = array("i", text)
        self._held = self._asked = 0
        self.done = False
        self._idle = 0

    # --- rows ------------------------------------------------------------------------------------

    def decode(self, rows: Rows) -> int:
        """As much of the text as these rows are, in layers; all of it where it ends."""
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
        """With the pass that holds the next rows: its answer, or None where it is paused."""
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
        """Hand the sequence over: a pass that is paused ends first, and what nobody asked for is cut off."""
        sequence, length = self.sequence, self._asked
        done = not self._pausable.paused or self._pausable.resume(self._pausable.layers) == 0
        done = done and self.context.remove(0, length)
        state = np.empty(self.context.state_size(0, WHOLE), dtype=np.uint8)
        done = done and self.context.read_state(0, state, WHOLE) == len(state)
        self.drop()
        if done:
            ours = converted(state, streams=self._main.n_seq_max, by_token=self._main.row_attention)
            done = ours is not None and self._main.write_state(sequence, ours, WHOLE) == len(ours)
        if not done or self._main.positions(sequence)[1] + 1 != length:
            self._main.remove(sequence, 0)
            raise HandOverError

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
        """A short text computed here and handed over must go on as the same text computed there does."""
        main, vocab = self._main, self.context.vocab
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


def converted(state: Bytes, *, streams: int, by_token: bool) -> Bytes | None:
    """A state of one stream as that of one among several; None: not such a state.

    Its values are written token by token. So they stay where the other context has flash attention, too;
    else they are wanted channel by channel.

    Eight bytes of llama.cpp's own, the count of streams, then for the one that holds cells: their count,
    (position, 1, sequence) of each, a flag (values by channel?), the count of layers; keys of every layer
    (type, bytes of a row, rows); values likewise, or by channel (type, bytes of an element, channels, those).
    """
    try:
        return _with_streams(state, streams) if by_token else _transposed(state, streams)
    except (IndexError, KeyError, ValueError):  # shorter than it says, or numbers that make no sense
        return None


def _with_streams(state: Bytes, streams: int) -> Bytes | None:
    """The other streams are empty."""
    (one,) = _numbers(state, 8, 1)
    made = np.zeros(len(state) + 4 * (streams - 1), dtype=np.uint8)
    made[: len(state)] = state
    made[8:12] = _u32(streams)
    return made if one == 1 else None


def _transposed(state: Bytes, streams: int) -> Bytes | None:
    one, cells = _numbers(state, 8, 2)
    at = 16 + 12 * cells
    by_channel, layers = _numbers(state, at, 2)
    if one != 1 or by_channel or not 0 < layers <= LAYERS_MAX:
        return None
    made = np.empty(len(state) + 4 * (streams - 1), dtype=np.uint8)  # the other streams are empty
    made[len(state) :] = 0
    values = at + 8
    for _ in range(layers):
        values += 12 + cells * _row_bytes(state, values)
    made[:values] = state[:values]
    made[8:12], made[at : at + 4] = _u32(streams), _u32(1)
    at = values
    for _ in range(layers):
        at = _transpose_layer(state, made, at, cells)
    return made if at == len(state) else None


def _transpose_layer(state: Bytes, made: Bytes, at: int, cells: int) -> int:
    """The values of one layer; both headers have twelve bytes. Answers where the next one begins."""
    row_bytes = _row_bytes(state, at)
    size = ELEMENT_BYTES[_numbers(state, at, 1)[0]]
    end = at + 12 + cells * row_bytes
    rows = state[at + 12 : end].view(f"u{size}").reshape(cells, row_bytes // size)
    made[at : at + 4] = state[at : at + 4]
    made[at + 4 : at + 12] = _u32(size, row_bytes // size)
    made[at + 12 : end].view(f"u{size}").reshape(row_bytes // size, cells)[:] = rows.T
    return end


def _numbers(state: Bytes, at: int, count: int) -> list[int]:
    found: list[int] = state[at : at + 4 * count].copy().view(np.uint32).tolist()
    if len(found) != count:
        raise ValueError("the state ends early")
    return found


def _row_bytes(state: Bytes, at: int) -> int:
    """Behind the type: eight bytes, of which the upper four are zero."""
    low, high = _numbers(state, at + 4, 2)
    if high or not low:
        raise ValueError("a row of no size")
    return low


def _u32(*numbers: int) -> Bytes:
    return np.array(numbers, dtype=np.uint32).view(np.uint8)
