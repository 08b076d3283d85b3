"""One contract for every backend: the promises of backends/base.py, tested with hand-written ticks.

A new backend adds a subject. Tests that need a capability the subject lacks are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto.backends.simulated import SimulatedBackend
from stretto.core.capabilities import Capabilities, Rewind, Share
from stretto.core.ops import KvOp, OpKind
from stretto.core.tick import PENDING_TOKEN, PassFailure
from tests.contract.driver import Driver, Row, Subject, ask, clear

COMMON = {"sequences_max": 4, "window": 512, "vocab": 512, "state_bytes": 16}
SIMULATED = {
    "simulated streams": Capabilities(**COMMON),
    "simulated unified": Capabilities(**COMMON, share=Share.RANGE, pages=2048),
    "simulated window": Capabilities(**COMMON, rewind=Rewind.WINDOW, rewind_tokens=32),
    "simulated hybrid": Capabilities(**COMMON, rewind=Rewind.CHECKPOINT),
    "simulated pages": Capabilities(**COMMON, share=Share.PAGES, pages=256, page_tokens=16),
    "simulated ahead": Capabilities(**COMMON, share=Share.PAGES, pages=256, page_tokens=16, plan_ahead=1),
}
LLAMACPP = ("dense", "moe", "swa", "hybrid-qwen3next", "hybrid-granite", "hybrid-lfm2", "recurrent")
TORCH = ("llama", "qwen2", "qwen3", "moe")


def simulated(can: Capabilities) -> Subject:
    backend = SimulatedBackend(can)
    return Subject(
        backend,
        lambda request, output: list(backend.model.continuation(request, count=len(output))) == list(output),
        backend.close,
    )


def llamacpp(kind: str) -> Subject:
    pytest.importorskip(
        "llama_cpp", reason="llama-cpp-python is not installed: pip install 'stretto[llamacpp]'"
    )
    from tests.unit.backends.llamacpp.rig import TOLERANCE, Reference, make_backend, tiny

    backend, reference = make_backend(kind), Reference(tiny(kind))

    def close() -> None:
        backend.close()
        reference.close()

    return Subject(
        backend, lambda request, output: reference.gap(request.tokens, list(output)) <= TOLERANCE, close
    )


def torch(kind: str) -> Subject:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'stretto[torch]'")
    pytest.importorskip("transformers", reason="transformers is the reference")
    from tests.unit.backends.torch.rig import TOLERANCE, gap, make_backend

    backend = make_backend(kind, plan_ahead=int(kind != "qwen2"))
    return Subject(
        backend, lambda request, output: gap(kind, request.tokens, list(output)) <= TOLERANCE, backend.close
    )


@pytest.fixture(
    params=[*SIMULATED, *(f"llama.cpp {kind}" for kind in LLAMACPP), *(f"torch {kind}" for kind in TORCH)]
)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    name = request.param
    if name in SIMULATED:
        made = simulated(SIMULATED[name])
    elif name.startswith("torch "):
        made = torch(name.removeprefix("torch "))
    else:
        made = llamacpp(name.removeprefix("llama.cpp "))
    yield made
    made.close()


def needs(
    subject: Subject, *, sequences: bool = False, snapshots: bool = False, rewind: bool = False
) -> Driver:
    can = subject.backend.capabilities
    if sequences and can.share is Share.PAGES:
        pytest.skip("pages have no sequence operations")
    if snapshots and not can.snapshots:
        pytest.skip("this backend has no snapshots")
    if rewind and can.rewind is Rewind.CHECKPOINT:
        pytest.skip("this model's state cannot be truncated")
    return Driver(subject.backend)


@pytest.mark.parametrize("chunk", [1, 7, 19, 64])
def test_the_text_does_not_depend_on_the_chunk(subject, chunk):
    """39 tokens: 39 - 1 is a multiple of 19; an off-by-one there would lose the last prompt token."""
    driver = needs(subject)
    request = ask("chunked", 39)
    assert subject.is_right(request, driver.generate(request, chunk=chunk))


def test_the_text_does_not_depend_on_slot_sequence_or_neighbours(subject):
    driver = needs(subject)
    requests = [ask(f"n{i}", 12 + 9 * i) for i in range(3)]
    for index, request in enumerate(requests):
        driver.bind(2 - index, request)
    rows = [Row(2 - i, i, 0, list(r.tokens), 1) for i, r in enumerate(requests)]
    outcome = driver.run(*rows)
    slots = list(driver_slots(rows))
    outputs = {slot: [token] for slot, token in zip(slots, outcome.tokens, strict=True)}
    for step in range(4):
        rows = [Row(2 - i, i, len(r.tokens) + step, outputs[2 - i][-1:], 1) for i, r in enumerate(requests)]
        outcome = driver.run(*rows)
        for slot, token in zip(driver_slots(rows), outcome.tokens, strict=True):
            outputs[slot].append(token)
    for index, request in enumerate(requests):
        assert subject.is_right(request, outputs[2 - index])


def driver_slots(rows: list[Row]) -> Iterator[int]:
    return (row.slot for row in sorted(rows, key=lambda row: len(row.tokens) > row.outputs))


def test_binding_with_generated_tokens_continues_the_text(subject):
    """As after a preemption: prompt and generated tokens are recomputed in another slot."""
    driver = needs(subject)
    request = ask("preempted", 25)
    whole = driver.generate(request)
    driver.unbind(0)
    if subject.backend.capabilities.share is not Share.PAGES:
        driver.run(ops=[clear(1)])
    driver.bind(1, request, whole[:3])
    outcome = driver.run(Row(1, 1, 0, [*request.tokens, *whole[:3]], 1))
    assert subject.is_right(request, [*whole[:3], outcome.tokens[0]])


def test_a_copy_made_at_the_next_pass_serves_source_and_target(subject):
    driver = needs(subject, sequences=True)
    if subject.backend.capabilities.share is Share.NONE:
        pytest.skip("this backend shares nothing")
    donor, branch = ask("donor", 30), ask("donor", 30)
    driver.run(ops=[clear(0), clear(1)])
    driver.bind(0, donor)
    driver.run(Row(0, 0, 0, list(donor.tokens[:-1])))
    driver.bind(1, branch)
    last = list(donor.tokens[-1:])
    outcome = driver.run(Row(0, 0, 29, last, 1), Row(1, 1, 29, last, 1), ops=[KvOp(OpKind.COPY, 1, 0, 29)])
    assert all(result.ok for result in outcome.op_results)
    assert subject.is_right(donor, outcome.tokens[:1])
    assert subject.is_right(branch, outcome.tokens[1:])


def test_a_trimmed_sequence_continues_from_its_new_end(subject):
    driver = needs(subject, sequences=True, rewind=True)
    request = ask("trimmed", 40)
    driver.generate(request)
    driver.bind(0, request)
    outcome = driver.run(Row(0, 0, 38, list(request.tokens[38:]), 1), ops=[KvOp(OpKind.TRIM, 0, length=38)])
    assert outcome.op_results[0].ok
    assert subject.is_right(request, outcome.tokens)


def test_a_snapshot_is_restored_into_another_sequence(subject):
    driver = needs(subject, sequences=True, snapshots=True)
    request, other = ask("saved", 33), ask("other", 21)
    driver.run(ops=[clear(0), clear(2)])
    driver.bind(0, request)
    driver.run(Row(0, 0, 0, list(request.tokens[:-1])))
    saved = driver.run(ops=[KvOp(OpKind.SAVE, 0, length=32, blob=7)])
    assert saved.op_results[0].ok
    assert saved.op_results[0].bytes > 0
    driver.unbind(0)
    driver.generate(other)
    driver.bind(2, request)
    restore = [clear(2), KvOp(OpKind.RESTORE, 2, length=32, blob=7)]
    outcome = driver.run(Row(2, 2, 32, list(request.tokens[-1:]), 1), ops=restore)
    assert all(result.ok for result in outcome.op_results)
    assert subject.is_right(request, outcome.tokens)
    assert driver.run(ops=[KvOp(OpKind.DROP, blob=7)]).op_results[0].ok


def test_a_checkpoint_rewinds_its_own_sequence(subject):
    driver = needs(subject, sequences=True, snapshots=True)
    request = ask("rewound", 36)
    driver.run(ops=[clear(0)])
    driver.bind(0, request)
    driver.run(Row(0, 0, 0, list(request.tokens[:30])))
    driver.run(
        Row(0, 0, 30, list(request.tokens[30:]), 1), ops=[KvOp(OpKind.CHECKPOINT, 0, length=30, blob=3)]
    )
    outcome = driver.run(
        Row(0, 0, 30, list(request.tokens[30:]), 1), ops=[KvOp(OpKind.REWIND, 0, length=30, blob=3)]
    )
    assert outcome.op_results[0].ok
    assert subject.is_right(request, outcome.tokens)


def test_a_failed_operation_voids_the_rows_of_its_sequence_alone(subject):
    driver = needs(subject, sequences=True, snapshots=True)
    good, bad = ask("good", 20), ask("bad", 20)
    driver.run(ops=[clear(0), clear(1)])
    driver.bind(0, good)
    driver.bind(1, bad)
    outcome = driver.run(
        Row(0, 0, 0, list(good.tokens), 1),
        Row(1, 1, 5, list(bad.tokens[5:]), 1),
        ops=[KvOp(OpKind.RESTORE, 1, length=5, blob=999)],
    )
    assert [result.ok for result in outcome.op_results] == [False]
    assert sorted(outcome.counts) == [0, 1]
    assert subject.is_right(good, outcome.tokens)


def test_operations_without_rows_and_recovery_of_nothing(subject):
    driver = needs(subject, sequences=True)
    request = ask("calm", 24)
    driver.run(ops=[clear(0)])
    driver.bind(0, request)
    driver.run(Row(0, 0, 0, list(request.tokens[:-1])))
    assert subject.backend.recover({0: 23}) == frozenset()
    outcome = driver.run(ops=[clear(3)])
    assert (outcome.failure, outcome.ran, len(outcome.tokens)) == (None, False, 0)
    outcome = driver.run(Row(0, 0, 23, list(request.tokens[-1:]), 1))
    assert subject.is_right(request, outcome.tokens)


def test_a_rest_between_two_ticks_changes_nothing(subject):
    driver = Driver(subject.backend)
    request = ask("rested", 24, outputs=3)
    if not driver._paged:
        driver.run(ops=[clear(0)])
    driver.bind(0, request)
    driver.run(Row(0, 0, 0, list(request.tokens[:-1])))
    output, last = [], list(request.tokens[-1:])
    for start in range(23, 26):
        subject.backend.rest()
        last = list(driver.run(Row(0, 0, start, last, 1)).tokens)
        output += last
    assert subject.is_right(request, output)


def test_drafts_give_their_accepted_prefix(subject):
    driver = needs(subject, rewind=True)
    request = ask("drafted", 26, outputs=8)
    whole = driver.generate(request)
    right, wrong = whole[:4], [whole[0], whole[1], (whole[2] + 1) % 400, whole[3]]
    for drafts, accepted in ((right, 4), (wrong, 2)):
        slot_ops = [] if subject.backend.capabilities.share is Share.PAGES else [clear(0)]
        driver.unbind(0)
        driver.run(ops=slot_ops)
        driver.bind(0, request, whole[:1])
        driver.run(Row(0, 0, 0, list(request.tokens)))
        outcome = driver.run(Row(0, 0, 26, drafts, 4))
        assert outcome.counts[0] == accepted
        assert subject.is_right(request, [whole[0], *outcome.tokens])


def test_a_tick_planned_ahead_uses_the_previous_tick_s_token(subject):
    driver = needs(subject)
    if not subject.backend.capabilities.plan_ahead:
        pytest.skip("this backend does not plan ahead")
    request = ask("ahead", 18)
    driver.bind(0, request)
    first, second = (
        driver.make(Row(0, 0, 0, list(request.tokens), 1)),
        driver.make(Row(0, 0, 18, [PENDING_TOKEN], 1)),
    )
    subject.backend.launch(first)
    subject.backend.launch(second)
    tokens = [*subject.backend.collect().tokens, *subject.backend.collect().tokens]
    assert subject.is_right(request, tokens)


def test_an_outcome_reports_its_duration(subject):
    driver = needs(subject)
    request = ask("timed", 16)
    if subject.backend.capabilities.share is not Share.PAGES:
        driver.run(ops=[clear(0)])
    driver.bind(0, request)
    outcome = driver.run(Row(0, 0, 0, list(request.tokens), 1))
    assert outcome.failure is not PassFailure.FAILED
    assert outcome.pass_s > 0
    assert outcome.ran
