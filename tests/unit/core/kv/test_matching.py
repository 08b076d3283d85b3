"""What a prompt could reuse: longest first, cheapest among equals, never all of it."""

from __future__ import annotations

from stretto.core.kv.ledger import PrefixKind
from tests.unit.core.kv.rig import Bench, job
from tests.unit.core.rig import prompt, streams

TEXT = prompt(60)


def test_never_the_whole_prompt():
    bench = Bench(streams(2))
    bench.close(bench.run(job("a", TEXT), 50))
    assert bench.best(job("b", TEXT[:30])).length == 29
    assert bench.ledger.match(job("b", TEXT[:1])).sources == ()


def test_longest_first_then_cheapest():
    bench = Bench(streams(3))
    bench.close(bench.run(job("short", TEXT[:20] + prompt(9, 4)), 29))
    donor = bench.run(job("long", TEXT), 40)
    sources = bench.ledger.match(job("b", TEXT)).sources
    assert [(s.kind, s.length) for s in sources] == [(PrefixKind.RUNNING, 40), (PrefixKind.RESIDENT, 20)]
    bench.close(donor)
    assert [s.kind for s in bench.ledger.match(job("b", TEXT)).sources] == [PrefixKind.RESIDENT] * 2


def test_a_source_that_extends():
    bench = Bench(streams(1))
    bench.close(bench.run(job("a", TEXT), 30))
    assert bench.best(job("b", TEXT)).extends
    assert not bench.best(job("b", TEXT[:20] + prompt(9, 5))).extends


def test_a_donor_that_is_still_computing_what_we_need():
    bench = Bench(streams(2))
    donor = bench.run(job("a", TEXT), 10)
    coming = bench.ledger.match(job("b", TEXT[:50] + prompt(5, 5))).coming
    assert (coming.slot, coming.request_id, coming.length) == (donor.index, "a", 50)
    bench.tick(rows=((donor, 59),))
    assert bench.ledger.match(job("b", TEXT)).coming is None


def test_a_conversation_that_can_be_neither_copied_nor_saved_is_busy():
    bench = Bench(streams(2, share_from_running=False, snapshots=False))
    donor = bench.run(job("a", TEXT), 59)
    busy = bench.ledger.match(job("b", TEXT[:50] + prompt(5, 5))).busy
    assert (busy.slot, busy.request_id, busy.length) == (donor.index, "a", 50)


def test_what_is_not_settled_is_nobodys_source():
    bench = Bench(streams(2))
    donor = bench.run(job("a", TEXT), 30)
    branch_job = job("b", TEXT)
    branch = bench.open(branch_job, bench.best(branch_job))
    places = {s.place for s in bench.ledger.match(job("c", TEXT)).sources}
    assert places == {donor.sequence}
    assert branch.sequence not in places
