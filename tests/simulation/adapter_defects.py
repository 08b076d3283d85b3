"""Defects in how requests wait for adapters, for `defects.py`: planted, and caught by the simulator."""

from __future__ import annotations

from tools.plant import Defect

ADAPTERS = ("--where", "adapters=some")

ADAPTER_DEFECTS = (
    Defect(
        "a request runs before its adapters are loaded",
        "core/request.py",
        "return (*media, Need.ADAPTERS) if self.adapters_absent else media",
        "return media",
        ADAPTERS,
    ),
    Defect(
        "a request that waits for two things runs with one of them",
        "core/scheduler.py",
        "            if not job.needs:\n                self.state.queue.ready(job, now)\n",
        "            self.state.queue.ready(job, now)\n",
        (*ADAPTERS, "--where", "media=some"),
    ),
    Defect(
        "an adapter in use is dropped",
        "backends/adapters/places.py",
        "if not users and name not in claim.names]",
        "if name not in claim.names]",
        ADAPTERS,
    ),
    Defect(
        "a request waits for adapters while later ones keep them in use",
        "backends/adapters/places.py",
        "return needs_place or any(name in self.closed for name in claim.names)",
        "return needs_place",
        ADAPTERS,
    ),
    Defect(
        "a request that waits for adapters is passed for ever",
        "backends/adapters/places.py",
        "                    earlier.passed += 1\n",
        "                    earlier.passed += 0\n",
        ADAPTERS,
    ),
    Defect(
        "an ended request keeps its adapters",
        "backends/adapters/store.py",
        "            if lease.granted:\n                self._places.release(lease.claim.names)\n",
        "            if lease.granted:\n                pass\n",
        ADAPTERS,
    ),
    Defect(
        "a request that ended while it waited stays in the line for adapters",
        "backends/adapters/store.py",
        "                self._places.leave(lease.claim)\n",
        "                pass\n",
        ADAPTERS,
    ),
)
