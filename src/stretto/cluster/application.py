"""The Ray Serve application: gates in front, replicas behind.

`app` is an application builder, for a Serve config YAML (`import_path: stretto.cluster:app`, options under
`args`) and for `stretto cluster serve`. `run_local` and `stop` are what the command adds: a Ray of its own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec
import structlog

from stretto.cluster.exchange import forget_counters
from stretto.cluster.options import RayOptions, read_options
from stretto.errors import NotReadyError, SettingsError

INSTALL = "pip install 'stretto[ray]'"
OBJECT_STORE_BYTES = 80 << 20  # nothing of ours is stored there; Ray wants at least 75 MiB
ONGOING_MAX = 1 << 20  # limits are the workers' own
STATS_PERIOD_S = 0.5
LOOK_BACK_S = 2.0
STARTS = 3
RAY_SETTINGS = {  # of a Ray that is started here; Ray reads them from the environment alone
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # 15 by default: gates and replicas would yield to everything on the machine
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",
}

log = structlog.get_logger("stretto.cluster")
_temporary = ""  # directory of the Ray that was started here


def app(args: Mapping[str, Any] | None = None) -> Any:
    """The application. `args`: the fields of `cluster.options.RayOptions`."""
    return build(read_options(args or {}))


def build(options: RayOptions) -> Any:
    serve = ray_serve()
    from ray.serve.config import RequestRouterConfig

    from stretto.cluster.gate import ClusterGate
    from stretto.cluster.replica import ClusterReplica

    options = options.with_token()
    given = msgspec.to_builtins(options)
    common = {
        "max_ongoing_requests": ONGOING_MAX,
        "graceful_shutdown_timeout_s": options.drain_s + 5.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        "health_check_period_s": 2.0,
        "health_check_timeout_s": 10.0,
    }
    replica = serve.deployment(
        ClusterReplica,
        name="Replica",
        ray_actor_options={"num_cpus": options.replica_cpus, "num_gpus": options.replica_gpus},
        request_router_config=RequestRouterConfig(
            request_router_class="stretto.cluster.router_adapter.PolicyRouter",
            request_router_kwargs={
                "table": options.name,
                "gates": options.gates,
                "routing": options.routing,
            },
            request_routing_stats_period_s=STATS_PERIOD_S,
        ),
        **_scale(options),
        **common,
    )
    gate = serve.deployment(
        ClusterGate,
        name="Gate",
        num_replicas=options.gates,
        ray_actor_options={"num_cpus": options.gate_cpus},
        **common,
    )
    return gate.bind(replica.bind(given), given)


def _scale(options: RayOptions) -> dict[str, Any]:
    """A fixed number, or our policy; its delays are the only ones."""
    if not options.autoscales:
        return {"num_replicas": options.replicas}
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    policy = AutoscalingPolicy(
        policy_function="stretto.cluster.scaling_adapter:BacklogScaling",
        policy_kwargs=asdict(options.scaling_policy()),
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=options.replicas,
            max_replicas=options.replicas_max,
            initial_replicas=options.replicas,
            look_back_period_s=LOOK_BACK_S,
            metrics_interval_s=LOOK_BACK_S / 4,
            upscale_delay_s=0.0,
            downscale_delay_s=0.0,
            downscale_to_zero_delay_s=0.0,
            policy=policy,
        )
    }


def run(options: RayOptions, *, address: str | None) -> None:
    """Deploy on the Ray at `address`, or on a new one in this machine; returns when gates listen."""
    serve = ray_serve()
    connect(options, address=address)
    serve.start(proxy_location="Disabled")
    serve.run(build(options), name=options.name, route_prefix=None)


def connect(options: RayOptions, *, address: str | None) -> None:
    import ray

    if address is not None:
        ray.init(address=address, namespace=options.name, log_to_driver=False)
        return
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)  # noqa: TID251 - Ray has no other switch
    global _temporary  # noqa: PLW0603 - one Ray in a process
    _temporary = tempfile.mkdtemp(prefix="ray-")
    actors = max(options.replicas, options.replicas_max) * options.replica_cpus
    start = partial(
        ray.init,
        num_cpus=int(actors + options.gates * options.gate_cpus) + 2,  # places, not cores
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        namespace=options.name,
        log_to_driver=False,
        _temp_dir=_temporary,
    )
    patiently(start, give_up=ray.shutdown)


def patiently(start: Callable[[], object], *, give_up: Callable[[], object]) -> None:
    """Ray waits 30 s for its own processes, a fixed time: a crowded machine needs another attempt."""
    for attempt in range(1, STARTS + 1):
        try:
            start()
            return
        except Exception as error:
            if type(error) is not Exception:  # Ray's class for processes that did not come up in time
                raise
            log.warning("ray-start-failed", attempt=attempt, error=str(error))
            give_up()
            reason = str(error)
    raise NotReadyError(
        f"Ray did not start: {reason}",
        hint="the machine may be overloaded; or start Ray yourself and use --address",
    )


def stop(options: RayOptions, *, address: str | None) -> None:
    """Drain and remove the application; a Ray that `run` started ends with it."""
    import ray

    serve = ray_serve()
    if not ray.is_initialized():
        return
    serve.delete(options.name)
    forget_counters(options.name)
    if address is None:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(_temporary, ignore_errors=True)


def ray_serve() -> Any:
    """The module, or an error with the command that installs it."""
    try:
        from ray import serve
    except ImportError as error:
        raise SettingsError(f"Ray Serve is not installed ({error})", hint=INSTALL) from None
    return serve
