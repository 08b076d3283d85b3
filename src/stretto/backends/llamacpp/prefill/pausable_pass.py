"""A pass that pauses between layers, so that others can run meanwhile.

A pass over many rows is the cheapest way to compute a prompt, and the worst for whoever waits for a token.
llama.cpp asks a callback of ours at the nodes of a graph; at the end of a layer ours leaves the pass as it
stands, C stack and all (a greenlet), and goes on with it when it is asked to. It is the same thread all the
time: a second one would bring a team of OpenMP threads of its own, and slow every pass down.

Nothing that the paused context holds may be touched before the pass has ended, or was given up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

from stretto.backends.llamacpp.native.library import library

LAYER_ENDS = b"l_out"  # what llama.cpp calls the node


def _name_of() -> Any:
    function = library().llama_cpp._lib.ggml_get_name
    function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_char_p
    return function


class Strides:
    """One pass at a time. `callback` is for the context whose passes pause."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.done = 0  # layers of the pass that runs
        self._name_of = _name_of()
        self._until = 0
        self._given_up = False
        self._pass: Any = None
        self.callback = library().ggml_backend_sched_eval_callback(self._called)

    @property
    def paused(self) -> bool:
        return self._pass is not None

    def start(self, work: Callable[[], int], until: int) -> int | None:
        """Begin a pass. Its answer, or None: `until` layers are done, and it is paused."""
        self.done, self._given_up = 0, False
        self._pass = greenlet(work)
        return self.go_on(until)

    def go_on(self, until: int) -> int | None:
        """The same for a pass that is paused. All layers: to its end."""
        self._until = until if until < self.layers else self.layers + 1
        running = self._pass
        running.parent = getcurrent()
        try:
            answer = running.switch()
        finally:
            if running.dead:
                self._pass = None
        return int(answer) if running.dead else None

    def give_up(self) -> None:
        """What the pass has computed is worth nothing; it ends without computing more."""
        if self._pass is not None:
            self._given_up = True
            self._pass.parent = getcurrent()
            self._pass.switch()
            self._pass = None

    def _called(self, node: int, asks: bool, _: object) -> bool:
        if self._pass is None or self._given_up:
            return not self._given_up and not asks
        if asks:
            return bool(self._name_of(node).startswith(LAYER_ENDS))
        self.done += 1
        if self.done >= self._until:
            self._pass.parent.switch()
        return not self._given_up
