"""Routing: prefixes are followed while that is faster, and never further."""

from __future__ import annotations

from array import array
from dataclasses import replace

from stretto.cluster.policy.reports import PrefixDigest, ReplicaReport
from stretto.cluster.policy.routing import RouteHint, Router, RoutingPolicy
from stretto.core.backlog import Backlog

IDLE = Backlog(slots=4, occupied=0, prefill_s=0.0, service_s=2.0)
FAMILY = RouteHint(tuple(range(1, 33)), 32 * 64 + 10)


def report(name: str, backlog: Backlog = IDLE, **fields: object) -> ReplicaReport:
    return replace(ReplicaReport(replica_id=name, backlog=backlog, prefill_s_per_token=1e-3), **fields)


def make(*names: str, policy: RoutingPolicy | None = None, node: str = "") -> Router:
    router = Router(policy, node=node)
    router.set_replicas((name, f"node of {name}") for name in names)
    for name in names:
        router.report(report(name), 0.0)
    return router


def send(router: Router, request_id: str, hint: RouteHint, now: float) -> str:
    chosen = router.choose(hint, now)
    assert chosen is not None
    router.sent(request_id, chosen.replica_id, hint, now)
    return chosen.replica_id


def test_a_prefix_is_followed():
    router = make("a", "b", "c")
    first = send(router, "1", FAMILY, 0.0)
    router.ended("1")
    for turn in range(2, 6):
        assert send(router, str(turn), FAMILY, turn * 10.0) == first
        router.ended(str(turn))


def test_unrelated_prompts_are_spread():
    router = make("a", "b", "c")
    others = [RouteHint(tuple(range(base, base + 10)), 640) for base in (100, 200, 300)]
    assert sorted(send(router, str(i), hint, 0.0) for i, hint in enumerate(others)) == ["a", "b", "c"]


def test_a_hot_prefix_is_copied_when_its_queue_costs_more_than_a_prefill():
    router = make("a", "b")
    first = send(router, "0", FAMILY, 0.0)
    where = [send(router, str(i), FAMILY, 5.0) for i in range(1, 9)]
    # a prefill takes 2.1 s, a fifth request on four slots waits for 0.5 s, a ninth one for 2.5 s
    assert where[:6] == [first] * 6
    assert where[-1] != first


def test_sends_since_the_report_count_for_all_gates():
    alone, crowd = make("a", "b"), make("a", "b", policy=RoutingPolicy(gates=8))
    for router, expected in ((alone, ["a", "a", "a"]), (crowd, ["a", "b", "a"])):
        for name, occupied in (("a", 0), ("b", 3)):
            router.report(report(name, IDLE._replace(occupied=occupied), prefill_s_per_token=0.0), 0.0)
        assert [send(router, str(i), RouteHint((), 10), 0.0) for i in range(3)] == expected


def test_a_report_replaces_what_was_added_since_the_last():
    router = make("a", "b")
    for i in range(8):
        router.sent(str(i), "a", RouteHint((), 10), 1.0)
    assert router.choose(RouteHint((), 10), 1.0).replica_id == "b"
    for i in range(8):
        router.ended(str(i))
    router.report(report("a", IDLE._replace(occupied=1)), 2.0)
    router.report(report("b", IDLE._replace(occupied=4)), 2.0)
    assert router.choose(RouteHint((), 10), 2.0).replica_id == "a"


def test_a_send_just_before_a_report_is_not_lost():
    router = make("a", "b", policy=RoutingPolicy(lag_s=0.5))
    for i in range(6):
        router.sent(str(i), "a", RouteHint((), 10), 1.9)
    router.report(report("a"), 2.0)  # made before the requests arrived
    router.report(report("b", IDLE._replace(occupied=3)), 2.0)
    assert router.choose(RouteHint((), 10), 2.0).replica_id == "b"


def test_the_digest_of_a_replica_shows_what_another_gate_sent():
    router = make("a", "b")
    router.report(report("b", digest=PrefixDigest(1, array("Q", FAMILY.blocks), True)), 1.0)
    assert router.choose(FAMILY, 1.0) == ("b", 0.01, 32 * 64)


def test_what_a_replica_evicted_is_not_followed():
    router = make("a", "b")
    first = send(router, "1", FAMILY, 0.0)
    router.ended("1")
    router.report(report(first, digest=PrefixDigest(1, array("Q"), True)), 60.0)
    assert router.choose(FAMILY, 60.0).cached_tokens == 0


def test_draining_replicas_get_nothing_while_there_are_others():
    router = make("a", "b")
    router.report(report("a", draining=True), 0.0)
    assert [score.replica_id for score in router.rank(FAMILY, 0.0)] == ["b"]
    router.remove("b")
    assert [score.replica_id for score in router.rank(FAMILY, 0.0)] == ["a"]


def test_without_replicas_there_is_no_choice():
    assert Router().choose(FAMILY, 0.0) is None
    assert Router().rank(FAMILY, 0.0) == []


def test_locality_decides_last():
    router = make("a", "b", "c", node="node of c")
    assert router.choose(FAMILY, 0.0).replica_id == "c"
    router.sent("1", "c", RouteHint((), 10), 0.0)
    assert router.choose(FAMILY, 10.0).replica_id != "c"  # busier


def test_a_replica_without_memory_for_the_prompt_waits_for_a_request_to_end():
    router = make("a", "b")
    router.report(report("a", kv_free_tokens=100), 0.0)
    assert router.choose(FAMILY, 0.0).replica_id == "b"


def test_busy_replicas_generate_more_slowly():
    router = make("a", "b")
    router.sent("1", "a", FAMILY, 0.0)
    for name, occupied in (("a", 3), ("b", 0)):
        router.report(report(name, IDLE._replace(occupied=occupied), row_s=0.02), 60.0)
    short, long = FAMILY._replace(output_tokens=10), FAMILY._replace(output_tokens=200)
    assert router.choose(short, 60.0).replica_id == "a"
    assert router.choose(long, 60.0).replica_id == "b"


def test_rank_lists_all_best_first_and_among_restricts_it():
    router = make("a", "b", "c")
    router.sent("1", "b", FAMILY, 0.0)
    ranked = router.rank(FAMILY, 30.0)
    assert ranked[0].replica_id == "b"
    assert sorted(score.replica_id for score in ranked) == ["a", "b", "c"]
    assert {score.replica_id for score in router.rank(FAMILY, 30.0, among=["a", "c"])} == {"a", "c"}


def test_a_tenant_waits_behind_its_own_requests():
    """With equal shares, another tenant's queue does not count; the own one does, so it is spread."""
    router = make("a", "b")
    router.sent("first", "a", FAMILY._replace(tenant="light"), 0.0)
    for i in range(80):
        router.sent(f"h{i}", "ab"[i % 2], RouteHint((), 10, tenant="heavy"), 0.0)
    light = FAMILY._replace(tenant="light")
    where = [send(router, f"l{i}", light, 60.0) for i in range(8)]
    assert where[0] == "a"  # its prefix is there
    assert "b" in where
    assert router.choose(light, 60.0).seconds < router.choose(light._replace(tenant="heavy"), 60.0).seconds


def test_without_a_tenant_the_whole_queue_counts():
    router = make("a", "b")
    router.report(report("a", IDLE._replace(occupied=20)), 0.0)  # sent by other gates
    router.report(report("b", IDLE._replace(occupied=6)), 0.0)
    for name in ("a", "b"):
        router.sent(name, name, RouteHint((), 10), 1.0)
    assert router.choose(RouteHint((), 10), 60.0).replica_id == "b"
    assert router.rank(RouteHint((), 10), 60.0)[1].seconds > 8.0


def test_memory_is_bounded():
    router = make("a", "b", policy=RoutingPolicy(blocks_max=50, in_flight_max=20))
    for i in range(200):
        send(router, str(i), RouteHint(tuple(range(i * 10, i * 10 + 10)), 640), float(i))
    assert router.blocks_remembered <= 2 * 50
    assert router.in_flight <= 20


def test_a_lost_replica_is_forgotten_and_its_requests_may_still_end():
    router = make("a", "b")
    router.sent("1", "a", FAMILY, 0.0)
    router.remove("a")
    router.ended("1")
    router.report(report("a"), 1.0)
    assert router.replicas == ("b",)
    assert router.in_flight == 0


def test_gates_that_meet_a_prefix_at_the_same_time_choose_the_same_replica():
    names = [f"replica-{index}" for index in range(4)]
    homes = set()
    for family in range(40):
        hint = RouteHint([family * 7919 + block for block in range(30)], 2000, 8)
        chosen = []
        for gate in range(3):
            router = Router(RoutingPolicy(gates=3))
            router.set_replicas((name, "") for name in names)
            for index, name in enumerate(names):
                backlog = Backlog(slots=8, occupied=(gate + index) % 3, prefill_s=0.0, service_s=1.0)
                router.report(
                    ReplicaReport(replica_id=name, backlog=backlog, prefill_s_per_token=1e-3, row_s=1e-3), 0.0
                )
            chosen.append(router.choose(hint, 1.0).replica_id)
        assert len(set(chosen)) == 1
        homes.add(chosen[0])
    assert homes == set(names)


def test_a_home_that_is_busy_is_not_waited_for():
    router = Router(RoutingPolicy(gates=2))
    router.set_replicas([("a", ""), ("b", "")])
    hint = RouteHint(list(range(30)), 2000, 8)
    for name in ("a", "b"):
        router.report(
            ReplicaReport(replica_id=name, backlog=Backlog(8, 0, 0.0, 1.0), prefill_s_per_token=1e-3), 0.0
        )
    home = router.choose(hint, 1.0).replica_id
    busy = Backlog(slots=8, occupied=40, prefill_s=0.0, service_s=1.0)
    router.report(ReplicaReport(replica_id=home, backlog=busy, prefill_s_per_token=1e-3), 2.0)
    assert router.choose(hint, 3.0).replica_id != home
