"""Finer points of the contract: chained copies, truncation, shared pages, and failures.

`test_contract` covers ordinary ticks on every backend. Here tests with injected faults run only on backends
that can inject them. No expected tokens are written down: the reference is the same backend running a request
alone.
"""

from __future__ import annotations

import pytest

from stretto.backends.simulated.faults import TickFaults
from stretto.core.capabilities import Rewind, Share
from stretto.core.ops import KvOp, OpKind
from stretto.core.tick import PassFailure
from stretto.testing.faults import ScriptedFaults
from tests.contract.subjects import SUBJECTS
from tests.contract.workbench import Driver, alone, ask

OUT = 6


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request):
    return request.param


@pytest.fixture
def driver(subject):
    driver = Driver(subject)
    yield driver
    driver.close()


def need(holds: bool) -> None:
    if not holds:
        pytest.skip("not among this backend's capabilities")


def sequences(driver: Driver) -> bool:
    return driver.can.share is not Share.PAGES


def copies(driver: Driver) -> bool:
    return driver.can.share in (Share.COPY, Share.RANGE)


def scripted(subject, **faults) -> Driver:
    """A backend in which tick 1 fails."""
    need(subject.injects)
    return Driver(subject, ScriptedFaults({1: TickFaults(**faults)}))


# --- the token is a function of tokens, parameters and seed alone ------------------------------------


def test_output_depends_on_the_requests_seed(driver, subject):
    one, two = ask("a", seed=1), ask("b", seed=2)
    texts = [driver.bind(one, 0), driver.bind(two, 1)]
    while len(texts[0].output) < OUT:
        driver.tick(*((text, len(text.known) - text.computed) for text in texts))
    assert texts[0].output == alone(subject, one, OUT)
    assert texts[1].output == alone(subject, two, OUT)


def test_earlier_contents_of_a_sequence_do_not_matter(driver, subject):
    need(sequences(driver))
    old = driver.bind(ask("old", 20, start=9), 0)
    driver.say(old, 2)
    request = ask("a")
    text = driver.bind(request, 0)
    assert driver.say(text, OUT, ops=[KvOp(OpKind.CLEAR, 0)]) == alone(subject, request, OUT)


def test_only_output_rows_give_tokens(driver):
    text = driver.bind(ask("a", 10))
    outcome = driver.tick((text, 4))
    assert (list(outcome.counts), list(outcome.tokens), outcome.ran) == ([0], [], True)
    outcome = driver.tick((text, 6))
    assert list(outcome.counts) == [1]


# --- copy ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truncated", [False, True], ids=["whole", "truncated"])
def test_copy(driver, subject, truncated):
    """The target holds exactly the first `length` tokens, and the source continues unaffected."""
    need(copies(driver) and (not truncated or driver.can.rewind is Rewind.ANY))
    donor = driver.bind(ask("donor", 12), 0)
    driver.tick((donor, 11))
    length = 7 if truncated else 11
    branch = driver.bind(ask("branch", length, tail=[9, 8, 7]), 1)
    branch.computed = length
    driver.tick((branch, 3), (donor, 1), ops=[KvOp(OpKind.COPY, 1, 0, length)])
    assert driver.say(branch, OUT) == alone(subject, branch.request, OUT)
    assert driver.say(donor, OUT) == alone(subject, donor.request, OUT)


def test_copy_from_a_running_sequence_in_the_same_tick(driver, subject):
    need(copies(driver) and driver.can.share_from_running)
    donor = driver.bind(ask("donor", 12), 0)
    driver.say(donor, 2)
    branch = driver.bind(ask("branch", 12, tail=[donor.output[0], 5]), 1)
    branch.computed = 13
    driver.tick((donor, 1), (branch, 1), ops=[KvOp(OpKind.COPY, 1, 0, 13)])
    assert driver.say(branch, OUT) == alone(subject, branch.request, OUT)
    assert driver.say(donor, OUT) == alone(subject, donor.request, OUT)


def test_copy_empties_its_target(driver, subject):
    need(copies(driver))
    donor = driver.bind(ask("donor", 6), 0)
    other = driver.bind(ask("other", 20, start=5), 1)
    driver.tick((donor, 5), (other, 20))
    driver.unbind(other)
    branch = driver.bind(ask("branch", 5, tail=[4, 4]), 1)
    branch.computed = 5
    text = driver.say(branch, OUT, ops=[KvOp(OpKind.COPY, 1, 0, 5)])
    assert text == alone(subject, branch.request, OUT)


def test_a_copy_may_be_deferred_to_the_next_pass(driver, subject):
    """No row runs in the copy's tick; the copy is done by the next tick with rows."""
    need(copies(driver))
    donor = driver.bind(ask("donor", 12), 0)
    driver.tick((donor, 11))
    assert not driver.tick(ops=[KvOp(OpKind.COPY, 1, 0, 11)]).ran
    branch = driver.bind(ask("branch", 11, tail=[3, 1]), 1)
    branch.computed = 11
    assert driver.say(branch, OUT) == alone(subject, branch.request, OUT)


def test_copies_chain_and_a_source_may_be_refilled(driver, subject):
    """A move: copy, clear the source and refill it, all in one tick; and a copy of the copy."""
    need(copies(driver))
    moved = driver.bind(ask("moved", 10), 0)
    driver.tick((moved, 9))
    driver.unbind(moved)
    branch = driver.bind(ask("branch", 9, tail=[6, 6]), 2)
    fresh = driver.bind(ask("fresh", 8, start=11), 0)
    again = driver.bind(moved.request, 1)
    branch.computed = again.computed = 9
    ops = [KvOp(OpKind.COPY, 1, 0, 9), KvOp(OpKind.COPY, 2, 1, 9), KvOp(OpKind.CLEAR, 0)]
    driver.tick((fresh, 8), (again, 1), (branch, 2), ops=ops)
    for text in (fresh, again, branch):
        assert driver.say(text, OUT) == alone(subject, text.request, OUT)


# --- trim, clear, save, restore, checkpoint, rewind -----------------------------------------------------


@pytest.mark.parametrize("target", [0, 1], ids=["into the same sequence", "into another one"])
def test_save_and_restore(driver, subject, target):
    """A snapshot survives overwriting of its sequence, and may be used more than once."""
    need(sequences(driver) and driver.can.snapshots)
    first = driver.bind(ask("first", 12), 0)
    driver.tick((first, 11))
    outcome = driver.tick(ops=[KvOp(OpKind.SAVE, 0, length=11, blob=5)])
    assert outcome.op_results[0].ok
    assert outcome.op_results[0].bytes > 0
    driver.unbind(first)
    other = driver.bind(ask("other", 20, start=8), 0)
    driver.say(other, 2, ops=[KvOp(OpKind.CLEAR, 0)])
    for turn in range(2):
        text = driver.bind(ask(f"t{turn}", 11, tail=[1 + turn, 9]), target)
        text.computed = 11
        ops = [KvOp(OpKind.CLEAR, target), KvOp(OpKind.RESTORE, target, length=11, blob=5)]
        assert driver.say(text, OUT, ops=ops) == alone(subject, text.request, OUT)
        driver.unbind(text)
    assert driver.tick(ops=[KvOp(OpKind.DROP, blob=5)]).op_results[0].ok


def test_restore_truncates_to_the_requested_length(driver, subject):
    need(sequences(driver) and driver.can.snapshots and driver.can.rewind is Rewind.ANY)
    first = driver.bind(ask("first", 12), 0)
    driver.tick((first, 11))
    driver.tick(ops=[KvOp(OpKind.SAVE, 0, length=11, blob=0)])
    text = driver.bind(ask("truncated", 6, tail=[9, 9]), 1)
    text.computed = 6
    ops = [KvOp(OpKind.CLEAR, 1), KvOp(OpKind.RESTORE, 1, length=6, blob=0)]
    assert driver.say(text, OUT, ops=ops) == alone(subject, text.request, OUT)


def test_a_snapshot_is_taken_before_other_operations(driver, subject):
    """SAVE and CLEAR of one sequence in one tick: the snapshot has the earlier contents."""
    need(sequences(driver) and driver.can.snapshots)
    first = driver.bind(ask("first", 12), 0)
    driver.tick((first, 11))
    driver.unbind(first)
    fresh = driver.bind(ask("fresh", 9, start=12), 0)
    driver.tick((fresh, 9), ops=[KvOp(OpKind.SAVE, 0, length=11, blob=0), KvOp(OpKind.CLEAR, 0)])
    again = driver.bind(first.request, 1)
    again.computed = 11
    ops = [KvOp(OpKind.CLEAR, 1), KvOp(OpKind.RESTORE, 1, length=11, blob=0)]
    assert driver.say(again, OUT, ops=ops) == alone(subject, again.request, OUT)


def test_checkpoint_and_rewind(driver, subject):
    """State is saved at a boundary; the text continues, is rewound and takes another path, twice."""
    need(sequences(driver) and driver.can.snapshots and driver.can.rewind is not Rewind.ANY)
    first = driver.bind(ask("first", 20), 0)
    driver.tick((first, 8))
    driver.tick((first, 12), ops=[KvOp(OpKind.CHECKPOINT, 0, length=8, blob=0)])
    for turn in range(2):
        driver.unbind(first)
        text = driver.bind(ask(f"t{turn}", 8, tail=[1 + turn, 7]), 0)
        text.computed = 8
        ops = [KvOp(OpKind.REWIND, 0, length=8, blob=0)]
        assert driver.say(text, OUT, ops=ops) == alone(subject, text.request, OUT)


# --- pages ---------------------------------------------------------------------------------------------


def test_pages_are_shared_and_copied(driver, subject):
    """A second table shares the first one's full pages, and has a copy of part of the next page."""
    need(not sequences(driver))
    size = driver.can.page_tokens
    donor = driver.bind(ask("donor", 3 * size), 0)
    driver.tick((donor, 3 * size - 1))
    length = 2 * size + 1
    branch = driver.bind(ask("branch", length, tail=[5, 4, 3, 2]), 1)
    branch.computed = length
    pages = driver.pages_of(0)
    copy = driver.take_page()
    driver.set_table(1, [*pages[:2], copy])
    ops = [KvOp(OpKind.COPY_PAGES, copy, pages[2], 1)]
    driver.tick((branch, 4), (donor, 1), ops=ops)
    assert driver.say(branch, OUT) == alone(subject, branch.request, OUT)
    assert driver.say(donor, OUT) == alone(subject, donor.request, OUT)


# --- speculation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("right", [0, 1, 3])
def test_drafts_are_verified(driver, subject, right):
    """Of three proposals the right ones are accepted, plus one sampled token."""
    need(driver.can.rewind is not Rewind.CHECKPOINT)
    request = ask("a", 12)
    truth = alone(subject, request, OUT)
    text = driver.bind(request)
    driver.say(text, 1)
    wrong = [3 + (token + 1) % 400 for token in truth[1:]]
    proposals = truth[1 : 1 + right] + wrong[right:3]
    outcome = driver.tick((text, 1), drafts={0: proposals})
    assert list(outcome.counts) == [right + 1]
    assert text.output == truth[: right + 2]
    ops = [KvOp(OpKind.TRIM, 0, length=text.computed)] if sequences(driver) else []
    assert driver.say(text, OUT, ops=ops) == truth


# --- failures ------------------------------------------------------------------------------------------


def test_a_failed_operation_voids_only_its_sequence(driver, subject):
    """Restoring a missing snapshot fails: rows of that sequence do not run, the others do."""
    need(sequences(driver) and driver.can.snapshots)
    well = driver.bind(ask("well", 10), 0)
    ill = driver.bind(ask("ill", 8, start=5), 1)
    driver.tick((well, 9))
    ill.computed = 5
    outcome = driver.tick((well, 1), (ill, 3), ops=[KvOp(OpKind.RESTORE, 1, length=5, blob=77)])
    assert [result.ok for result in outcome.op_results] == [False]
    assert outcome.op_results[0].reason
    assert list(outcome.counts) == [1, 0]
    ill.computed = 0
    assert driver.say(ill, OUT, ops=[KvOp(OpKind.CLEAR, 1)]) == alone(subject, ill.request, OUT)
    assert driver.say(well, OUT) == alone(subject, well.request, OUT)


def test_operations_that_depend_on_a_failed_one_fail(subject):
    """Later operations that write the sequence or copy from it are not executed."""
    driver = scripted(subject, fail_ops=frozenset({OpKind.TRIM}))
    need(sequences(driver))
    text = driver.bind(ask("a", 10), 0)
    driver.tick((text, 9))
    ops = [KvOp(OpKind.TRIM, 0, length=9), KvOp(OpKind.CLEAR, 0), KvOp(OpKind.CLEAR, 1)]
    outcome = driver.tick((text, 1), ops=ops)
    assert [result.ok for result in outcome.op_results] == [False, False, True]
    assert list(outcome.counts) == [0]


def test_a_failed_page_copy_voids_only_its_slot(subject):
    driver = scripted(subject, fail_ops=frozenset({OpKind.COPY_PAGES}))
    need(not sequences(driver))
    donor = driver.bind(ask("donor", 7), 0)
    driver.tick((donor, 6))
    branch = driver.bind(ask("branch", 5, tail=[9, 9]), 1)
    branch.computed = 5
    pages, copy = driver.pages_of(0), driver.take_page()
    driver.set_table(1, [pages[0], copy])
    outcome = driver.tick((donor, 1), (branch, 2), ops=[KvOp(OpKind.COPY_PAGES, copy, pages[1], 1)])
    assert list(outcome.counts) == [1, 0]
    assert driver.say(donor, OUT) == alone(subject, donor.request, OUT)


def test_only_the_slot_without_finite_logits_fails(subject):
    driver = scripted(subject, bad_logits=frozenset({1}))
    texts = [driver.bind(ask(f"r{slot}", 6, start=slot), slot) for slot in range(2)]
    driver.tick(*((text, 5) for text in texts))
    outcome = driver.tick(*((text, 1) for text in texts))
    assert list(outcome.failed) == [1]
    assert list(outcome.counts) == [1, 0]
    assert driver.say(texts[0], OUT) == alone(subject, texts[0].request, OUT)


@pytest.mark.parametrize(
    "faults",
    [{"fail_before": True}, {"fail_after_rows": 0}, {"fail_after_rows": 3}, {"fail_after_rows": 6}],
    ids=["at once", "before its first row", "half-way", "in the second span"],
)
def test_after_a_failed_pass_every_sequence_is_recovered_or_reported_lost(subject, faults):
    driver = scripted(subject, **faults)
    texts = [driver.bind(ask(f"r{slot}", 12, start=slot), slot) for slot in range(2)]
    driver.tick(*((text, 6) for text in texts))
    outcome = driver.tick(*((text, 5) for text in texts))
    assert outcome.failure is PassFailure.FAILED
    assert (list(outcome.counts), list(outcome.tokens)) == ([], [])
    assert outcome.lost <= {text.sequence for text in texts}
    for text in texts:
        ops = []
        if text.sequence in outcome.lost:
            text.computed = 0
            ops = [KvOp(OpKind.CLEAR, text.sequence)] if sequences(driver) else []
        assert driver.say(text, OUT, ops=ops) == alone(subject, text.request, OUT)


def test_sequences_that_cannot_be_recovered_are_reported_lost(subject):
    driver = scripted(subject, fail_after_rows=2, lose=True)
    text = driver.bind(ask("a", 12), 0)
    driver.tick((text, 6))
    outcome = driver.tick((text, 5))
    assert outcome.lost == {text.sequence}
    text.computed = 0
    ops = [KvOp(OpKind.CLEAR, 0)] if sequences(driver) else []
    assert driver.say(text, OUT, ops=ops) == alone(subject, text.request, OUT)


def test_no_room_changes_nothing(subject):
    driver = scripted(subject, no_room=True)
    text = driver.bind(ask("a", 12), 0)
    driver.tick((text, 6))
    outcome = driver.tick((text, 5))
    assert outcome.failure is PassFailure.NO_ROOM
    assert (outcome.ran, outcome.lost) == (False, frozenset())
    assert driver.say(text, OUT) == alone(subject, text.request, OUT)


def test_a_tick_launched_before_a_failure_was_collected_is_void(subject):
    """Its binds take effect, its operations and rows do not, and it returns no operation results."""
    driver = scripted(subject, fail_after_rows=1)
    text = driver.bind(ask("a", 12), 0)
    driver.tick((text, 6))
    driver.launch((text, 5))
    newcomer = driver.bind(ask("b", 5, start=7), 1)
    ops = [KvOp(OpKind.CLEAR, 1)] if sequences(driver) else []
    driver.launch((newcomer, 2), ops=ops)
    assert driver.backend.collect().failure is PassFailure.FAILED
    void = driver.backend.collect()
    assert (void.failure, void.ran, void.op_results) == (PassFailure.VOID, False, ())
    assert (list(void.counts), list(void.tokens)) == ([], [])
    driver.launched.clear()
    lost = driver.backend.recover({text.sequence: text.computed})
    if text.sequence in lost:
        text.computed = 0
        driver.tick(ops=[KvOp(OpKind.CLEAR, text.sequence)])
    assert driver.say(newcomer, OUT, ops=ops) == alone(subject, newcomer.request, OUT)
    assert driver.say(text, OUT) == alone(subject, text.request, OUT)
