"""A cluster on a virtual clock: the cluster's own policies over simulated replicas, with laws.

`workloads` makes requests, `replicas` and `event_replica` run them (the real scheduler, or a model of it for
very many requests), `gates` route them, `simulation` moves time, `laws` says what must hold.
"""
