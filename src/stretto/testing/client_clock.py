"""An asyncio event loop in virtual time: nothing sleeps, the clock jumps to the next timer.

Callbacks run in asyncio's order, so that a program with seeded randomness behaves identically every time and
takes no longer than its own code.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any


class Stuck(Exception):
    """All tasks are waiting and no timer is set: a lost wake-up."""


class _JumpingSelector(selectors.BaseSelector):
    """Reports no I/O. Waiting advances the clock instead."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, number, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is due and nothing can happen")
        self.now_s += max(0.0, timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self.unhandled: list[str] = []
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._jumping.now_s

    def _note(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")
