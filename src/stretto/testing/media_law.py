"""Media in prompts: a witness of ticks that knows what the encoder has done, not how the core waits for it.

A request runs only after its media were encoded. The rows themselves need no law here: the simulated backend
refuses parts of pictures that belong together, and clients recompute every token from the pictures they sent.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.core.request import Need
from stretto.core.scheduler import Scheduler
from stretto.core.slot import Job, Slot, Status
from stretto.core.tick import Idle, Tick
from stretto.errors import InvariantError


class MediaLaw:
    def __init__(self, scheduler: Scheduler, saw: Callable[[str], None]) -> None:
        self._scheduler = scheduler
        self._saw = saw
        self._encoded: set[str] = set()
        self._running: dict[str, int] = {}  # with media, and the epoch of their slots

    def encoded(self, request_id: str) -> None:
        """The encoder is done with a request, and the scheduler will be told."""
        self._encoded.add(request_id)

    def ended(self, request_id: str) -> None:
        self._encoded.discard(request_id)
        self._running.pop(request_id, None)

    def check(self, planned: Tick | Idle) -> None:
        """After a plan."""
        state = self._scheduler.state
        for slot in state.active:
            if slot.job is not None:
                self._check_running(slot, slot.job)
        if isinstance(planned, Tick):
            for chunk in planned.media:
                self._observe(
                    state.slots[planned.slots[chunk.span]], planned.counts[chunk.span], chunk.offset
                )

    def _check_running(self, slot: Slot, job: Job) -> None:
        unready = self._scheduler.state.queue.unready
        if any(other.arrival < job.arrival and Need.MEDIA in other.needs for other in unready):
            self._saw("a request ran while an older one waited for the encoder")
        if not job.media:
            return
        if job.id not in self._encoded or job.status is not Status.RUNNING:
            raise InvariantError(f"{job.id} runs, and its media are not encoded")
        if self._running.get(job.id) == slot.epoch:
            return
        self._running[job.id] = slot.epoch
        if slot.started_at >= job.media[0].end:
            self._saw("a prefix with a picture was reused")
        if job.preemptions:
            self._saw("a preempted request resumed with its pictures")

    def _observe(self, slot: Slot, rows: int, offset: int) -> None:
        if offset:
            self._saw("a picture was computed in several chunks")
        elif rows > self._scheduler.state.limits.prefill_chunk:
            self._saw("a whole picture was a chunk over prefill_chunk")
