"""Decisions of a cluster as pure code: time is an argument, and nothing here sends or reads anything.

`blocks` names prefixes, `prefixes` remembers which replica holds them, `routing` chooses a replica,
`reports` is what replicas say about themselves, `counters` shares tenants' service between replicas,
`permits` bounds requests per key, `scaling` chooses the number of replicas, `failover` what happens to the
requests of a replica that died. The simulator of the cluster runs the same code.
"""
