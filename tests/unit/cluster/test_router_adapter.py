"""Ray Serve's side of routing: the policy decides also in the copy of the router that Ray makes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from stretto.cluster.policy.routing import RouteHint
from stretto.cluster.route_table import RouteTable
from stretto.cluster.targets import RouteCall

pytest.importorskip("ray", reason="RAY IS NOT INSTALLED: its router is not tested")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, when it is imported


def copied():
    """`PolicyRouter` as a gate gets it: Ray pickles its module by value."""
    from ray import cloudpickle

    from stretto.cluster import router_adapter

    cloudpickle.register_pickle_by_value(router_adapter)
    try:
        return cloudpickle.loads(cloudpickle.dumps(router_adapter.PolicyRouter))
    finally:
        cloudpickle.unregister_pickle_by_value(router_adapter)


def replica(name: str) -> SimpleNamespace:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name))


def pending(*args) -> SimpleNamespace:
    return SimpleNamespace(args=list(args), routing_context=SimpleNamespace(should_backoff=False))


def chosen(router, *args) -> list[str]:
    candidates = [replica("a"), replica("b"), replica("c")]
    ranked = asyncio.run(router.choose_replicas(candidates, pending(*args)))
    return [one.replica_id.unique_id for one in ranked[0]]


def test_requests_spread_over_replicas():
    kind = copied()
    router = object.__new__(kind)
    router._table = RouteTable()
    router._table._router.set_replicas([(name, "") for name in "abc"])
    hint = RouteHint((), 10, 10, "tenant")
    found = [chosen(router, RouteCall(f"request {index}", hint)) for index in range(6)]
    assert sorted(found) == [["a"], ["a"], ["b"], ["b"], ["c"], ["c"]]


def test_a_call_without_a_hint_takes_any_replica():
    router = object.__new__(copied())
    assert chosen(router, RouteCall("", None)) == ["a", "b", "c"]
