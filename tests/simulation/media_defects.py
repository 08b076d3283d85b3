"""Defects in how the core handles media, for `defects.py`: planted, and caught by the simulator."""

from __future__ import annotations

from tools.plant import Defect

MEDIA = ("--where", "media=some")

MEDIA_DEFECTS = (
    Defect(
        "a drain forgets requests whose media are being encoded",
        "core/scheduler.py",
        "if job.status in (Status.WAITING, Status.DEFERRED, Status.UNREADY):",
        "if job.status in (Status.WAITING, Status.DEFERRED):",
        MEDIA,
    ),
    Defect(
        "a picture that belongs together is split",
        "core/prefill_budget.py",
        "            if is_whole(slot.media, context):\n"
        "                return self._grant_whole(slot, end, budget)\n",
        "",
        MEDIA,
    ),
    Defect(
        "text and a picture in one chunk",
        "core/prefill_budget.py",
        "            end = rows_alike(slot.media, context, context + end)\n",
        "",
        MEDIA,
    ),
    Defect(
        "half a picture is computed where memory is short",
        "core/batching.py",
        "        if slot.media and is_whole(slot.media, slot.planned):\n"
        "            return self._fit_whole(slot, count)\n",
        "",
        MEDIA,
    ),
    Defect(
        "different pictures have the same id",
        "core/media.py",
        "key = (item.digest, item.rows, item.whole)",
        'key = (b"", item.rows, item.whole)',
        MEDIA,
    ),
    Defect(
        "a request starts inside a picture that belongs together",
        "core/media.py",
        "and (item.whole or item.grid_width):",
        "and item.grid_width:",
        MEDIA,
    ),
    Defect(
        "a request runs before its media are encoded",
        "core/request.py",
        "media = (Need.MEDIA,) if self.media else ()",
        "media = ()",
        MEDIA,
    ),
    Defect(
        "a request that was cancelled in the encoder stays on its list",
        "core/queue.py",
        "        elif job.status is Status.UNREADY:\n            self.unready.remove(job)\n",
        "",
        MEDIA,
    ),
    Defect(
        "a request in the encoder keeps its place in flight from one that runs",
        "core/queue.py",
        "*self.deferred, *self.unready) if",
        "*self.deferred) if",
        MEDIA,
    ),
)
