"""Several machines as one: routing, fairness, scaling and failover over replicas.

`policy/` decides and is pure: no clock, no I/O, no Ray. What surrounds it (deployments, transport) moves
reports and requests between processes and asks the policies what to do.
"""

from typing import Any


def app(args: dict[str, Any] | None = None) -> Any:
    """The Ray Serve application, for `import_path: stretto.cluster:app`. Imports Ray when it is called."""
    from stretto.cluster.application import app as make

    return make(args)
