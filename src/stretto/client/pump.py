"""Pump: asks the batcher for due calls at the right moments. It knows event-loop iterations and timers.

Enqueued requests are sent at the end of the loop iteration, when every request read from a socket in that
iteration has been announced (`client.arrivals`), and when the batcher's wake-up time comes. Within an
iteration only overdue calls are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stretto.client.arrivals import Arrivals
from stretto.client.batch_call import BatchCall
from stretto.client.traffic import Traffic


class Pump:
    """`send` sends one call, `cancel` withdraws one stream from the worker."""

    def __init__(
        self,
        traffic: Traffic,
        *,
        window_s: float,
        clock: Callable[[], float],
        send: Callable[[BatchCall], None],
        cancel: Callable[[str], None],
    ) -> None:
        self._traffic = traffic
        self._clock = clock
        self._send = send
        self._cancel = cancel
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self.arrivals = Arrivals(window_s=window_s, clock=clock, settled=self.soon)

    def soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def overdue(self) -> None:
        """Send full or overdue batches before the end of an iteration that reads many requests."""
        batcher = self._traffic.batcher
        batcher.expect(self.arrivals.until_s())
        if batcher.overdue(self._clock()):
            self._send_due()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._scheduled = False
        self._send_due()

    def _send_due(self) -> None:
        self._traffic.batcher.expect(self.arrivals.until_s())
        for call in self._traffic.due(self._clock()):
            self._send(call)
        for stream_id in self._traffic.take_cancels():
            self._cancel(stream_id)
        self.stop()
        moment_s = self._traffic.wake_at_s()
        if moment_s is not None:
            delay_s = max(0.0, moment_s - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._run)
