"""Low-rank adapters of a model: which exist, which are in memory, and which requests use them."""

from stretto.backends.adapters.store import (
    AdapterLease,
    AdapterSource,
    AdapterStore,
    AdapterUsage,
    LoadedAdapter,
)

__all__ = ["AdapterLease", "AdapterSource", "AdapterStore", "AdapterUsage", "LoadedAdapter"]
