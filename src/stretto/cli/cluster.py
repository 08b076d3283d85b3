"""`stretto cluster serve`: the same server over several replicas, on Ray Serve.

Without `--address` a Ray of its own is started on this machine and ends with the command.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from stretto.cli.context import GlobalOptions
from stretto.cli.flags import ModelFlags, ServerFlags, server_values, values
from stretto.cli.output import note, say, tell
from stretto.errors import NotReadyError

if TYPE_CHECKING:
    from stretto.cluster.options import RayOptions
    from stretto.settings import LoadedSettings

CLUSTER_HELP = "Serve a model over several replicas and machines, on Ray Serve."
READY_TIMEOUT_S = 600.0
LOOK_EVERY_S = 0.1
app = App(name="cluster", help=CLUSTER_HELP, default_parameter=Parameter(show_default=False))


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFlags:
    """The cluster."""

    replicas: int = 1
    """Workers, each with the whole model. [default: 1]"""
    replicas_max: int = 0
    """Scale up to so many by predicted wait, and down again. [default: as --replicas]"""
    gates: int = 1
    """HTTP servers, which share the port on a machine. [default: 1]"""
    address: str | None = None
    """A running Ray cluster, e.g. auto or 10.0.0.1:6379. [default: a new one on this machine]"""
    token_file: Path | None = None
    """Secret of the cluster, mode 0600, on every machine. [default: made at start]"""
    cpus_per_replica: float = 1.0
    """CPUs that Ray counts for a replica. [default: 1]"""
    gpus_per_replica: float = 0.0
    """GPUs that Ray counts for a replica. [default: 0]"""
    scaling: Annotated[dict[str, float] | None, Parameter(negative="")] = None
    """When to scale, e.g. --scaling.allowed-wait-s 2 --scaling.up-delay-s 5 --scaling.down-delay-s 120."""
    routing: Literal["predicted", "random", "two"] = "predicted"
    """predicted: where a request should wait least. The others are there to compare with."""


CLUSTER = ClusterFlags()


@app.command
def serve(
    model: Annotated[str | None, Parameter(name="MODEL")] = None,
    /,
    *,
    cluster: ClusterFlags = CLUSTER,
    server: ServerFlags = None,
    flags: ModelFlags = None,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Serve a model over several replicas. SIGTERM or Ctrl-C lets running requests finish.

    Parameters
    ----------
    model
        As for `stretto serve`. With --address every machine needs it at the same path.
    """
    from stretto.cli.serve import prepared, set_up_logs, with_server_defaults
    from stretto.cluster.options import RayOptions
    from stretto.server.run import check

    given = values(flags)
    loaded = context.settings(given | server_values(server))
    set_up_logs(loaded.settings.server.log_format, loaded.settings.server.log_level)
    for text in loaded.notes:
        note(text)
    check(loaded.settings.server)
    port = _port(loaded)
    options = RayOptions(
        model=prepared(context, loaded, model) or "",
        replicas=cluster.replicas,
        replicas_max=cluster.replicas_max,
        gates=cluster.gates,
        settings=with_server_defaults(loaded, given) | server_values(server) | {"server.port": port},
        config=None if loaded.path is None else str(loaded.path),
        cache_dir=str(context.cache_dir),
        token_file=None if cluster.token_file is None else str(cluster.token_file),
        replica_cpus=cluster.cpus_per_replica,
        replica_gpus=cluster.gpus_per_replica,
        scaling={name.replace("-", "_"): value for name, value in (cluster.scaling or {}).items()},
        routing=cluster.routing,
        drain_s=loaded.settings.server.drain_timeout_s,
    )
    _run(options, address=cluster.address, host=loaded.settings.server.host, port=port)


def _run(options: RayOptions, *, address: str | None, host: str, port: int) -> None:
    from stretto.cluster import application

    application.ray_serve()  # before anything is started
    stopping = threading.Event()
    say(f"starting {options.replicas} replicas and {options.gates} gates on Ray")
    try:
        application.run(options, address=address)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopping.set())
        url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"  # noqa: S104
        if options.replicas:
            _until_ready(url, stopping)
        if not stopping.is_set() and not tell(
            "ready", url=url, replicas=options.replicas, gates=options.gates
        ):
            say(f"ready: {url}")
        stopping.wait()
        say("draining")
    finally:
        application.stop(options, address=address)


def _until_ready(url: str, stopping: threading.Event) -> None:
    end_s = time.monotonic() + READY_TIMEOUT_S
    while not stopping.is_set():
        try:
            with urllib.request.urlopen(f"{url}/readyz", timeout=5) as reply:  # noqa: S310 - our own gate
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if time.monotonic() > end_s:
            raise NotReadyError("no gate became ready", hint="ray logs, or /tmp/ray-*/session_latest/logs")
        stopping.wait(LOOK_EVERY_S)


def _port(loaded: LoadedSettings) -> int:
    """The gates' port; a free one for --port 0, because all gates need the same."""
    chosen: Any = loaded.settings.server.port
    if chosen:
        return int(chosen)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
