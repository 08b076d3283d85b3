"""Low-rank adapters of a model: which exist, which are in memory, and which requests use them."""

from stretto.backends.adapters.store import AdapterSource, AdapterStore, AdapterUsage, LoadedAdapter

__all__ = ["AdapterSource", "AdapterStore", "AdapterUsage", "LoadedAdapter"]
