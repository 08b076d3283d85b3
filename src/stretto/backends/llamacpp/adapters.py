"""GGUF adapters of a model in llama.cpp: checked, loaded, set on contexts and freed.

llama.cpp applies adapters to a whole context, so all rows of a tick have the same group. Files are read by
the store's thread (a model's tensors are only looked up meanwhile); contexts are changed, and adapters freed,
by the thread that runs ticks. The model keeps a set of its adapters, so one is never loaded
while another is freed; ticks do not wait for a file, they free later.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.backends.adapters import AdapterSource, AdapterStore
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.model import Model
from stretto.backends.llamacpp.native.library import forget_log, last_error, library
from stretto.backends.llamacpp.prefill.side_context import NO_SEQUENCE, SideContext
from stretto.core.request import AdapterGroup
from stretto.errors import AdapterFileError
from stretto.model_files.adapter import read_adapter


@dataclass(frozen=True, slots=True)
class NativeAdapter:
    name: str
    handle: Any
    size_bytes: int


class Adapters:
    def __init__(self, model: Model, sources: Mapping[str, AdapterSource], *, loaded_max: int) -> None:
        self._model = model
        self._changing = threading.Lock()  # the set of adapters that the native model has
        self.store: AdapterStore[NativeAdapter] = AdapterStore(sources, self._load, loaded_max=loaded_max)

    def _load(self, name: str, path: Path) -> NativeAdapter:
        file = read_adapter(path, self._model.file)
        forget_log()
        with self._changing:
            handle = library().llama_adapter_lora_init(self._model.weights.handle, str(file.path).encode())
        if not handle:
            raise AdapterFileError(f"llama.cpp does not load adapter {name}: {last_error()}")
        return NativeAdapter(name, handle, file.weights_bytes)

    def set(self, context: Context, group: AdapterGroup) -> None:
        context.set_adapters(group, [self.store.get(use.name).handle for use in group])

    def free_retired(self, main: Context, side: SideContext | None) -> None:
        """Free what no request uses any more, after every context has let go of it."""
        if not self.store.has_retired or not self._changing.acquire(blocking=False):
            return
        try:
            self._free(main, side)
        finally:
            self._changing.release()

    def _free(self, main: Context, side: SideContext | None) -> None:
        retired = {adapter.name: adapter for adapter in self.store.take_retired()}
        if any(use.name in retired for use in main.adapters):
            main.set_adapters((), ())
        if side is not None and any(use.name in retired for use in side.context.adapters):
            if side.sequence != NO_SEQUENCE:
                side.hand_over()  # a paused pass still computes with it
            side.context.set_adapters((), ())
        for adapter in retired.values():
            library().llama_adapter_lora_free(adapter.handle)

    def close(self) -> None:
        """After the contexts were closed."""
        with self._changing:
            for adapter in self.store.close():
                library().llama_adapter_lora_free(adapter.handle)
