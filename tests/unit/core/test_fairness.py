"""Fair share: weights, no credit from idling, and a bounded memory of tenants."""

from __future__ import annotations

from stretto.core.fairness import ACCOUNTS_IDLE_MAX, OUTPUT_GUESS, Account, Accounts
from stretto.core.limits import Limits
from stretto.core.tick import PreemptReason
from tests.unit.core.rig import Rig, ask, streams


def test_a_heavier_tenant_pays_less():
    light, heavy = Account("a", 1.0), Account("b", 2.0)
    light.charge(10)
    heavy.charge(10)
    assert (light.served, heavy.served) == (10, 5)


def test_who_comes_back_from_idle_has_no_credit():
    accounts = Accounts({})
    busy = accounts.join("busy")
    busy.charge(1000)
    late = accounts.join("late")
    assert late.served == 1000
    accounts.leave(late)
    busy.charge(500)
    assert accounts.join("late").served == 1500


def test_who_is_ahead_stays_ahead_when_it_comes_back():
    accounts = Accounts({})
    greedy = accounts.join("greedy")
    greedy.charge(900)
    accounts.leave(greedy)
    accounts.join("other")
    assert accounts.join("greedy").served == 900


def test_tenants_that_come_once_are_forgotten():
    accounts = Accounts({})
    for number in range(ACCOUNTS_IDLE_MAX + 500):
        accounts.leave(accounts.join(f"t{number}"))
    assert len(accounts) <= ACCOUNTS_IDLE_MAX + 1


def test_what_is_done_again_after_parking_is_free():
    """A tenant pays once for a prompt, however often it is computed."""
    rig = Rig(Limits(n_seq_max=2, cache="none"), streams(2, snapshots=False))
    rig.accept(ask("a", 40, max_tokens=3, tenant="t"))
    rig.step()
    slot = rig.slot_of("a")
    rig.state.preempt(slot, PreemptReason.MEMORY)
    rig.run()
    account = rig.state.accounts.join("t")
    assert rig.ends["a"].preemptions == 1
    assert account.served == 39 + 2 * 3


def served_while_all_have_work(weights, *, load=10, turns=400) -> dict[str, int]:
    """Tokens given to each tenant while all have work, the first one sending `load` times as much."""
    limits = Limits(
        n_seq_max=8, n_batch=64, queue_depth=4, max_queue=4000, cache="none", tenant_weights=weights
    )
    rig = Rig(limits, streams(8), check=False)
    tenants, number = ("flood", "b", "c", "d", "e"), 0
    for turn in range(turns):
        if turn % 8 == 0:
            for tenant in tenants:
                for _ in range(load if tenant == "flood" else 2):
                    number += 1
                    rig.accept(ask(f"r{number}", 24, max_tokens=12, tenant=tenant))
        rig.step()
    totals = dict.fromkeys(tenants, 0)
    for witness in rig.witnesses.values():
        totals[witness.request.tenant] += len(witness.output)
    for tenant in tenants:
        waiting = [j for j in rig.state.jobs.values() if j.request.tenant == tenant]
        assert waiting, f"{tenant} ran out of work: the figure would mean nothing"
    return totals


def jain(shares) -> float:
    shares = list(shares)
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def test_a_tenant_with_ten_times_the_load_gets_no_more():
    totals = served_while_all_have_work({})
    assert jain(totals.values()) >= 0.95, totals


def test_weights_are_kept():
    totals = served_while_all_have_work({"b": 2.0})
    others = [totals[tenant] for tenant in ("flood", "c", "d", "e")]
    assert 1.5 <= totals["b"] / (sum(others) / len(others)) <= 2.5, totals


def test_slots_that_become_free_together_are_shared_out():
    """Nobody has generated anything yet: what they will is charged when they take a slot."""
    rig = Rig(Limits(n_seq_max=6, n_batch=64, queue_depth=4, cache="none"), streams(6))
    for tenant in ("a", "b", "c"):
        for number in range(8):
            rig.accept(ask(f"{tenant}{number}", 24, max_tokens=12, tenant=tenant))
    rig.step()
    taken = [slot.job.request.tenant for slot in rig.state.active]
    assert sorted(taken.count(tenant) for tenant in ("a", "b", "c")) in ([2, 2, 2], [1, 2, 3])


def test_what_was_paid_in_advance_is_settled_whatever_the_length():
    rig = Rig(Limits(n_seq_max=2, cache="none"), streams(2))
    for number, tokens in enumerate((1, 3, 200)):  # less than answers cost on average, and more
        rig.accept(ask(f"r{number}", 10, max_tokens=tokens, tenant=f"t{number}"))
    rig.run()
    for number, tokens in enumerate((1, 3, 200)):
        account = rig.state.accounts.of(f"t{number}")
        assert account.served >= 9 + 2 * tokens  # or lifted to what the others were served meanwhile
    assert rig.state.accounts.output_mean > OUTPUT_GUESS
