"""A context that computes nothing: an input's vector is a function of its tokens. It fails on command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

WIDTH = 4


def vector_of(tokens: Sequence[int]) -> list[float]:
    """What `ScriptedEncoder` answers for an input."""
    return [float(len(tokens)), float(sum(tokens)), float(tokens[0]), float(tokens[-1])]


class ScriptedEncoder:
    """`fails(inputs)` decides whether a pass fails; `gate`, where given, holds passes until it is set."""

    def __init__(
        self,
        *,
        fails: Callable[[Sequence[Sequence[int]]], bool] | None = None,
        gate: threading.Event | None = None,
        pass_s: float = 0.0,
    ) -> None:
        self.batches: list[list[list[int]]] = []
        self.rebuilds = self.rests = 0
        self.closed = False
        self._fails = fails or (lambda _: False)
        self._gate = gate
        self._pass_s = pass_s
        self._entered = threading.Lock()

    def run(self, inputs: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        assert self._entered.acquire(blocking=False), "two threads in one context"
        try:
            assert not self.closed
            self.batches.append([list(tokens) for tokens in inputs])
            if self._gate is not None:
                self._gate.wait()
            time.sleep(self._pass_s)
            if self._fails(inputs):
                raise RuntimeError("the pass failed, as the script says")
            return np.array([vector_of(tokens) for tokens in inputs], dtype=np.float32)
        finally:
            self._entered.release()

    def rebuild(self) -> None:
        self.rebuilds += 1

    def rest(self) -> None:
        assert not self.closed
        self.rests += 1

    def close(self) -> None:
        self.closed = True
