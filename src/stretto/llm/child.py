"""ChildModel: a generating model in a worker process, as `LLM` uses it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto import settings as settings_
from stretto.backends.adapters import AdapterStore
from stretto.errors import UnsupportedByModelError
from stretto.llm.child_process import ChildProcess, ChildStart
from stretto.llm.child_runtime import ChildRuntime
from stretto.llm.placement import chosen_settings
from stretto.rpc.messages import ModelInfo
from stretto.text_client.sources import read_source
from stretto.worker.adapter_sources import adapter_sources


@dataclass(frozen=True, slots=True)
class ChildModel:
    runtime: ChildRuntime
    info: ModelInfo
    chosen: settings_.ModelSettings
    process: ChildProcess

    @property
    def description(self) -> Mapping[str, Any]:
        about = self.info.description
        return {**about, "warnings": tuple(about.get("warnings", ()))}

    @property
    def seed(self) -> int | None:
        return self.chosen.seed or 0 if self.info.backend == "simulated" else self.chosen.seed

    @property
    def drafts(self) -> int:
        return self.chosen.drafts

    def close(self) -> None:
        self.process.close(self.runtime.end_all)
        self.runtime.close_subscriptions()


def open_child(
    start: ChildStart,
    loaded: settings_.LoadedSettings,
    *,
    progress: Callable[[str, float], None] | None = None,
) -> ChildModel:
    """Raises a StrettoError that says in one line what is wrong and what to do.

    The process ends with the last reference to the runtime, at the latest with this program.
    """
    for note in loaded.notes:
        warnings.warn(note, FutureWarning, stacklevel=3)  # at the line that made the `LLM`
    process = ChildProcess(start, loaded.settings)
    try:
        info = process.load(progress)
        chosen = chosen_settings(loaded.settings, start.name)
        runtime = _runtime(process, info, chosen)
    except BaseException:
        process.close()
        raise
    weakref.finalize(runtime, process.close)
    return ChildModel(runtime, info, chosen, process)


def _runtime(process: ChildProcess, info: ModelInfo, chosen: settings_.ModelSettings) -> ChildRuntime:
    if info.text is None:
        raise UnsupportedByModelError(
            f"{info.id or 'the model'} generates no text: it runs in the caller's process only",
            hint="omit own_process",
        )
    sources = adapter_sources(chosen)
    names: AdapterStore[Any] = AdapterStore(sources, _load_nothing, loaded_max=chosen.adapters_loaded_max)
    return ChildRuntime(
        process.loop,
        process.client,
        read_source(info.text),
        chosen.limits(),
        adapters=names if sources else None,
        ask_stats=process.stats,
    )


def _load_nothing(name: str, *_: object) -> Any:
    raise AssertionError(f"adapter {name} is loaded by the worker, not here")
