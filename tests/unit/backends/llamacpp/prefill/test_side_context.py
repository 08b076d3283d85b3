"""Long prompts in a context of their own: states handed over, tokens unchanged, whatever comes in between."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.llamacpp import Context
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.context import WHOLE
from stretto.backends.llamacpp.native.state_format import for_context
from stretto.backends.llamacpp.prefill.pausable_pass import PausablePass
from stretto.backends.llamacpp.prefill.side_context import NO_SEQUENCE, SideContext
from stretto.core.limits import Limits
from stretto.core.tick import Binding, End, Tick
from tests.unit.backends.llamacpp.rig import (
    TOLERANCE,
    Loop,
    Reference,
    ask,
    make_backend,
    options,
    text,
    tiny,
)

WINDOW = 4096


def long_backend(kind: str = "dense", slots: int = 3, **more):
    sizes = {"n_seq_max": slots, "context_window": WINDOW, "n_batch": 512, "n_ubatch": 512}
    return make_backend(kind, flash_attention="long", **sizes, **more)


def side_context(**more) -> SideContext:
    return SideContext(Context(tiny("dense"), options(context_window=WINDOW, flash_attention="long", **more)))


def state_of(context: Context, count: int) -> np.ndarray:
    assert context.decode(rows_for([(0, 0, count)], vocab=context.vocab)) == 0
    state = np.empty(context.state_size(0, WHOLE), dtype=np.uint8)
    assert context.read_state(0, state, WHOLE) == len(state)
    context.remove(0, 0)
    return state


def numbers(state: np.ndarray, values: int) -> np.ndarray:
    return state[values:].view(np.float16).astype(np.float32)


def test_a_converted_state_is_the_other_contexts_own():
    side = side_context(n_seq_max=1)
    there, here = state_of(side.main, 40), state_of(side.context, 40)
    state = for_context(here, streams=1, by_token=False)
    assert state is not None
    assert len(state) == len(there)
    same = state == there
    assert same.mean() > 0.3
    assert np.abs(state.astype(int) - there.astype(int))[:500].max() == 0  # the heads, positions and flags
    assert side.works()
    side.close()


@pytest.mark.parametrize("cut", [0, 7, 12, 100, 600, -1])
def test_what_is_no_such_state_is_not_converted(cut):
    side = side_context(n_seq_max=1)
    here, there = state_of(side.context, 40), state_of(side.main, 40)
    side.close()
    assert for_context(here[:cut], streams=1, by_token=False) is None
    assert for_context(np.concatenate([here, here[:4]]), streams=1, by_token=False) is None
    assert for_context(there, streams=1, by_token=False) is None
    wrong = here.copy()
    wrong[16 + 12 * 40 + 8 :][:12] = 255
    assert for_context(wrong, streams=1, by_token=False) is None


def counted(backend) -> tuple[int, int]:
    """How often prompts began in the side context and were handed over."""
    return backend.side_context.begun, backend.side_context.handed_over


def worst_gap(requests, outputs, kind: str = "dense") -> float:
    reference = Reference(tiny(kind), window=WINDOW, flash=False)
    gaps = [reference.gap(r.tokens, outputs[r.id]) for r in requests]
    reference.close()
    return max(gaps)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_long_prompts_beside_short_ones_give_the_right_tokens(kind):
    backend = long_backend(kind)
    begun_before, _ = counted(backend)
    sizes = (1500, 30, 1100, 64, 1024, 1087)
    requests = [ask(f"r{i}", text(size, i), max_tokens=6) for i, size in enumerate(sizes)]
    loop = Loop(backend, Limits(n_seq_max=3, n_batch=512, cache="none"))
    outputs = loop.run(*requests)
    begun, handed_over = counted(backend)
    assert begun - begun_before >= 2
    assert handed_over == begun
    assert backend.side_context.sequence == NO_SEQUENCE
    backend.close()
    assert worst_gap(requests, outputs, kind) <= TOLERANCE


def test_others_share_the_prefix_of_a_prompt_in_the_side_context():
    """The sequence is handed over before it is copied from, and goes on in the main context."""
    backend = long_backend()
    backend.capabilities = replace(
        backend.capabilities, copy_bytes_per_s=math.inf
    )  # a tiny model computes as fast
    begun_before, _ = counted(backend)
    head = text(1200, 9)
    first = ask("first", [*head, *text(300, 1)], max_tokens=6)
    others = [ask(f"other{i}", [*head, *text(20, 40 + i)], max_tokens=6) for i in range(2)]
    loop = Loop(backend, Limits(n_seq_max=3, n_batch=512, cache_min_tokens=50))
    loop.submit(first)
    while not (active := loop.scheduler.state.active) or active[0].computed < 960:
        loop.step()
    outputs = loop.run(*others)
    assert counted(backend)[0] > begun_before
    assert all(loop.ends[r.id].cached_tokens >= 1200 for r in others)
    backend.close()
    assert worst_gap([first, *others], outputs) <= TOLERANCE


def test_a_prompt_that_is_cancelled_leaves_the_place_to_the_next():
    backend = long_backend()
    loop = Loop(backend, Limits(n_seq_max=3, n_batch=512))
    loop.submit(ask("gone", 2000))
    for _ in range(3):
        loop.step()
    assert backend.side_context.sequence != NO_SEQUENCE
    loop.scheduler.cancel("gone")
    again = ask("again", text(1500, 3), max_tokens=6)
    outputs = loop.run(again, ask("short", 20))
    assert loop.ends["gone"].end is End.CANCELLED
    assert loop.ends["again"].end is End.FINISHED
    backend.close()
    assert worst_gap([again], outputs) <= TOLERANCE


class RefusesOneState(Context):
    """A context that fails to take the next state once `armed`."""

    armed = False

    def write_state(self, sequence: int, source: np.ndarray, flags: int) -> int:
        if self.armed:
            self.armed = False
            return 0
        return super().write_state(sequence, source, flags)


def test_a_failed_hand_over_costs_a_rebuild_and_no_request():
    backend = long_backend(make_context=RefusesOneState)
    backend.context.armed = True
    requests = [ask("long", text(1300, 2), max_tokens=6), ask("short", text(40, 3), max_tokens=6)]
    loop = Loop(backend, Limits(n_seq_max=3, n_batch=512))
    outputs = loop.run(*requests)
    assert not backend.context.armed
    assert {end.end for end in loop.ends.values()} == {End.FINISHED}
    backend.close()
    assert worst_gap(requests, outputs) <= TOLERANCE


@pytest.mark.parametrize(
    ("more", "used"),
    [
        ({}, True),
        ({"flash_attention": "auto"}, True),
        ({"context_window": 1024}, False),
        ({"flash_attention": "on"}, False),
        ({"flash_attention": "off"}, False),
        ({"unified": True}, False),
    ],
)
def test_only_where_it_can_help(more, used):
    backend = make_backend("dense", **{"context_window": WINDOW, "flash_attention": "long"} | more)
    assert (backend.side_context is not None) == used
    backend.close()


def test_a_pass_that_is_paused_can_be_given_up_or_finished():
    """Whatever the core asks for, it gets; what it did not ask for is nowhere."""
    side = side_context(n_seq_max=2, n_batch=512, n_ubatch=512)
    main, tokens = side.main, list(text(1400, 5))

    def asked(count: int) -> int:
        chunk = rows_for([(0, 0, count)], vocab=main.vocab)
        return side.decode(chunk)

    side.begin(0, tokens)
    assert asked(80) == 0
    assert side.paused
    side.drop()
    assert not side.paused
    assert side.context.positions(0)[1] < 0

    side.begin(1, tokens)
    for count in (64, 65, 511, 512, 513, 660):
        assert asked(count) == 0
    assert side.paused
    side.hand_over()
    assert main.positions(1)[1] == 659
    assert side.sequence == NO_SEQUENCE

    side.begin(0, tokens)
    assert asked(1400) == 0
    assert not side.paused
    whole = side.logits()[-1].copy()
    side.drop()
    side.begin(0, tokens)
    for count in range(50, 1450, 50):
        assert asked(count) == 0
    assert np.array_equal(side.logits()[-1], whole), "pauses change nothing"
    side.close()


@pytest.mark.parametrize("waits", [True, False])
def test_a_sequence_that_waits_for_a_copy_stays_in_the_main_context(waits):
    """The copy comes with a pass of the main context, and would overwrite what was handed over."""
    backend, tokens = long_backend(), text(1200, 4)
    if waits:
        backend.memory.copying.add(1)
    bind = (Binding(1, ask("long", tokens), array("i")),)
    rows = {"starts": [0], "counts": [64], "outputs": [0], "tokens": tokens[:64]}
    columns = {name: array("i", given) for name, given in {"slots": [1], "sequences": [1], **rows}.items()}
    backend.launch(Tick(0, bind=bind, **columns))
    outcome = backend.collect()
    assert outcome.failure is None
    assert outcome.ran is waits, "copies wait for the main context, and rows that ran elsewhere are not its"
    assert backend.side_context.sequence == (NO_SEQUENCE if waits else 1)
    assert not backend.memory.copying
    backend.close()


def test_streams_write_while_a_pass_is_paused():
    """Every tick carries the streams' rows and a part of the prompt's layers."""
    backend = long_backend()
    loop = Loop(backend, Limits(n_seq_max=3, n_batch=512, prefill_chunk=64))
    requests = [ask("stream", text(40, 3), max_tokens=40), ask("long", text(1500, 4), max_tokens=6)]
    loop.submit(requests[0])
    for _ in range(3):
        loop.step()
    loop.submit(requests[1])
    paused = 0
    for _ in range(20):
        loop.step()
        paused += backend.side_context.paused
    assert paused >= 5
    outputs = loop.run()
    assert {end.end for end in loop.ends.values()} == {End.FINISHED}
    backend.close()
    assert worst_gap(requests, outputs) <= TOLERANCE


def test_a_pass_that_breaks_is_over():
    pausable = PausablePass(layers=4)

    def breaks() -> int:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        pausable.start(breaks, 1)
    assert not pausable.paused
    assert pausable.start(lambda: 7, 1) == 7
