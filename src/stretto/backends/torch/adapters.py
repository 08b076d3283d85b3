"""Adapters of a model on the device: requests with any adapters share a pass.

The store's thread reads files to host memory; the thread that runs ticks copies an adapter into the tables of
the linear layers (`models/low_rank.py`) when the first request that uses it is bound. `scales` holds what
each slot asks of each place in the tables; a row finds its own by its slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from stretto.backends.adapters import AdapterSource, AdapterStore
from stretto.backends.torch.models import CausalModel
from stretto.backends.torch.peft import PeftAdapter, rank_of, read_peft
from stretto.core.tick import Binding

RANK_MULTIPLE = 8  # of the tables: products are faster, and sums are made in the same order at each place


class TorchAdapters:
    def __init__(
        self, model: CausalModel, sources: Mapping[str, AdapterSource], *, loaded_max: int, slots: int
    ) -> None:
        count = min(loaded_max, len(sources))
        rank = max([1, *(rank_of(source.path) for source in sources.values())])
        self._rank = -(-rank // RANK_MULTIPLE) * RANK_MULTIPLE
        self._tables = model.add_adapters(count=count, rank=self._rank)
        self._shapes = {name: shape for table in self._tables for name, shape in table.shapes.items()}
        self.store: AdapterStore[PeftAdapter] = AdapterStore(sources, self._load, loaded_max=count)
        device, dtype = model.place.device, model.place.dtype
        self.scales = torch.zeros(slots + 1, count, dtype=dtype, device=device)  # the last: padding rows
        self._free = list(range(count))
        self._places: dict[int, tuple[PeftAdapter, int]] = {}  # by identity
        self._using: dict[int, None] = {}  # slots whose requests have adapters

    def _load(self, name: str, path: Path) -> PeftAdapter:
        return read_peft(path, self._shapes, rank_max=self._rank)

    def update(self, unbind: Iterable[int], bind: Sequence[Binding]) -> None:
        """Before a pass: slots get the scales of their requests, and new adapters their place."""
        for slot in unbind:
            self._set(slot, {})
        if not bind:
            return
        for adapter in self.store.take_retired():
            _, place = self._places.pop(id(adapter), (adapter, -1))
            if place >= 0:
                self._free.append(place)
        for binding in bind:
            group = binding.request.adapters
            self._set(binding.slot, {self._place(use.name): use.scale for use in group})

    def active(self, slots: Iterable[int]) -> bool:
        """Whether a request in one of these slots has adapters."""
        return bool(self._using) and any(slot in self._using for slot in slots)

    def _set(self, slot: int, scales: Mapping[int, float]) -> None:
        if not scales and slot not in self._using:
            return
        self.scales[slot] = 0.0
        self._using.pop(slot, None)
        for place, scale in scales.items():
            self.scales[slot, place] = scale
            self._using[slot] = None

    def _place(self, name: str) -> int:
        adapter = self.store.get(name)
        known = self._places.get(id(adapter))
        if known is not None:
            return known[1]
        place = self._free.pop(0)
        for table in self._tables:
            table.clear(place)
            for module in table.shapes:
                if module in adapter.matrices:
                    table.put(module, place, *adapter.matrices[module])
        self._places[id(adapter)] = (adapter, place)
        return place
