"""A replica's numbers on their way: into Ray's statistics and out again, for routing and scaling."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace

import msgspec

from stretto.cluster.exchange import SILENT_S, SharedCounters
from stretto.cluster.hints import hint_of
from stretto.cluster.merging import merge_stats
from stretto.cluster.policy.routing import RouteHint
from stretto.cluster.reporting import MISSES_KEPT, Reporting, from_stats, to_stats
from stretto.cluster.route_table import RouteTable
from stretto.cluster.scaling_adapter import BacklogScaling, stats_of_backlog
from stretto.cluster.targets import ReplicaTarget
from stretto.core.backlog import Backlog
from stretto.rpc.messages import GenerateParams, ModelStats, Stats
from stretto.rpc.routing import ModelRouting, RoutingResult

BUSY = ModelRouting(
    model_id="m", slots=4, occupied=9, prefill_s=0.5, service_s=2.0, prefill_s_per_token=1e-3, blocks=[1, 2]
)


def test_a_report_survives_the_way_through_ray():
    stats = to_stats(BUSY, 3, draining=False)
    report = from_stats("r", stats, digests=True)
    assert report.backlog == Backlog(4, 9, 0.5, 2.0)
    assert (report.digest.version, list(report.digest.blocks), report.digest.complete) == (3, [1, 2], True)
    assert from_stats("r", stats, digests=False).digest is None
    assert from_stats("r", {}, digests=True) is None
    assert to_stats(None, 0, draining=False) == {}


def context(backlogs: dict[str, Backlog], target: int, now: float, state: dict) -> SimpleNamespace:
    columns: dict[str, dict[str, float]] = {}
    for name, backlog in backlogs.items():
        for field, value in stats_of_backlog(backlog, 0).items():
            columns.setdefault(field, {})[name] = value
    return SimpleNamespace(
        aggregated_metrics=columns,
        target_num_replicas=target,
        current_time=now,
        total_queued_requests=0,
        policy_state=state,
    )


def test_misses_are_those_of_the_last_reports_and_survive_a_restart_of_the_worker():
    class Worker:
        def __init__(self) -> None:
            self.transport = self
            self.missed = 0

        async def call(self, _method, _params):
            model = msgspec.structs.replace(BUSY, missed=self.missed)
            return RoutingResult(models=[model])

    async def publish(_version, _services):
        return {}

    async def scenario():
        worker = Worker()
        reports = Reporting(worker, publish, secret=b"")
        for missed, expected in ((2, 2), (5, 5), (5, 5), (1, 6)):
            worker.missed = missed
            await reports._once()
            assert reports.missed == expected
        for _ in range(MISSES_KEPT):
            await reports._once()
        assert reports.missed == 0

    asyncio.run(scenario())


def test_misses_reach_the_scaling_policy():
    policy = BacklogScaling(floor=1, ceiling=4, allowed_wait_s=1.0, up_delay_s=0.0, down_delay_s=5.0)
    given = context({"r": Backlog(4, 1, 0.0, 2.0)}, 1, 0.0, {})
    given.aggregated_metrics["missed"] = {"r": 3.0}
    assert policy(given)[0] == 2


def test_a_backlog_scales_up_after_its_delay_and_idleness_down():
    policy = BacklogScaling(floor=1, ceiling=4, allowed_wait_s=1.0, up_delay_s=2.0, down_delay_s=5.0)
    late, idle = {"r": Backlog(4, 40, 0.0, 2.0)}, {"r": Backlog(4, 0, 0.0, 2.0)}
    target, state = policy(context(late, 1, 0.0, {}))
    assert target == 1
    target, state = policy(context(late, 1, 3.0, state))
    assert target == 2
    target, state = policy(context(idle, 2, 4.0, state))
    assert target == 2
    assert policy(context(idle, 2, 10.0, state))[0] == 1


def test_tenants_counters_are_shared_and_those_of_the_dead_remain():
    now = [0.0]
    shared = SharedCounters(clock=lambda: now[0])
    assert shared.publish("a", 1, {"m": {"t": (5.0, True)}}) == {"m": {"t": (0.0, False)}}
    assert shared.publish("b", 1, {"m": {"t": (2.0, True)}}) == {"m": {"t": (5.0, True)}}
    now[0] = SILENT_S + 1.0
    assert shared.publish("b", 2, {"m": {"t": (3.0, True)}}) == {"m": {"t": (5.0, False)}}
    assert shared.totals() == {"m": {"t": 8.0}}


def test_statistics_of_replicas_add_up():
    def stats(backlog_s: float, **fields) -> Stats:
        model = ModelStats("m", slots=4, kv_blocks=10, backlog_s=backlog_s, **fields)
        return Stats(uptime_s=1.0, memory_bytes=5, streams=2, models=[model])

    merged = merge_stats([(0, stats(3.0, queued={"default": 2})), (1, stats(1.0, queued={"default": 5}))])
    (model,) = merged.models
    assert (merged.streams, merged.memory_bytes) == (4, 10)
    assert (model.slots, model.kv_blocks, model.queued, model.backlog_s) == (8, 20, {"default": 7}, 1.0)


def test_hints_share_a_prefix_within_a_tenant_alone():
    system = "You are helpful. " * 40

    def blocks(tenant: str, tail: str, **other) -> tuple:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": tail}]
        params = GenerateParams(stream_id="s", messages=messages, tenant=tenant, **other)
        return hint_of(params, secret=b"secret").blocks

    first, second, foreign = blocks("a", "one " * 99), blocks("a", "two " * 99), blocks("b", "one " * 99)
    assert first[:2] == second[:2]
    assert first[-1] != second[-1]
    assert not set(first) & set(foreign)
    odd = GenerateParams(stream_id="s", prompt="\ud800 alone", resumed=[1, 2])
    assert hint_of(odd, secret=b"").prompt_tokens > 2
    tokens = GenerateParams(stream_id="s", tokens=list(range(130)))
    assert len(hint_of(tokens, secret=b"").blocks) == 2


def test_a_table_puts_excluded_replicas_last_and_forgets_what_ended():
    random.seed(1)
    table = RouteTable(clock=lambda: 0.0)
    table.update([ReplicaTarget(name, "h", 1) for name in "abc"], ())
    hint = RouteHint((), 10)
    for index in range(6):
        first, *_, last = table.rank(f"q{index}", hint, candidates="abc", excluded=frozenset("b"))
        assert first != "b"
        assert last == "b"
    for index in range(6):
        table.ended(f"q{index}")
    table.remove("a")
    assert {target.replica_id for target in table.targets()} == {"b", "c"}
