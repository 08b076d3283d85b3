"""A forward pass that can pause between layers, so that other passes run in between.

A pass over many rows is the cheapest way to compute a prompt, and it delays every stream that waits for a
token. llama.cpp calls back at the nodes of a graph; at the end of a layer the callback switches out of the
pass, C stack included (a greenlet), and back into it later. Everything stays on one thread: a second thread
would get its own OpenMP team and slow every pass down.

Nothing in the paused context may be touched until the pass has ended or was abandoned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

from stretto.backends.llamacpp.native.library import library

LAYER_ENDS = b"l_out"  # llama.cpp's name of the node


def _name_of() -> Any:
    function = library().llama_cpp._lib.ggml_get_name
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_char_p
    return function


class PausablePass:
    """One pass at a time. `callback` belongs to the context whose passes pause."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.done = 0  # layers computed in the current pass
        self._name_of = _name_of()
        self._until = 0
        self._abandoned = False
        self._pass: Any = None
        self.callback = library().ggml_backend_sched_eval_callback(self._on_node)

    @property
    def paused(self) -> bool:
        return self._pass is not None

    def start(self, work: Callable[[], int], until: int) -> int | None:
        """Begin a pass. Returns its result, or None when it paused after `until` layers."""
        self.done, self._abandoned = 0, False
        self._pass = greenlet(work)
        return self.resume(until)

    def resume(self, until: int) -> int | None:
        """Go on with the paused pass until `until` layers are done; all layers: to its end."""
        self._until = until if until < self.layers else self.layers + 1
        running = self._pass
        running.parent = getcurrent()
        try:
            answer = running.switch()
        finally:
            if running.dead:
                self._pass = None
        return int(answer) if running.dead else None

    def abandon(self) -> None:
        """End the paused pass without computing more; its results are discarded."""
        if self._pass is not None:
            self._abandoned = True
            self._pass.parent = getcurrent()
            self._pass.switch()
            self._pass = None

    def _on_node(self, node: int, asks: bool, _: object) -> bool:
        if self._pass is None or self._abandoned:
            return not self._abandoned and not asks
        if asks:
            return bool(self._name_of(node).startswith(LAYER_ENDS))
        self.done += 1
        if self.done >= self._until:
            self._pass.parent.switch()
        return not self._abandoned
