"""Several machines as one: routing, fairness, scaling and failover over replicas.

`policy/` decides and is pure: no clock, no I/O, no Ray. What surrounds it (deployments, transport) moves
reports and requests between processes and asks the policies what to do.
"""
