"""Imports every module that registers attacks."""

from __future__ import annotations

from benchmarks.attack import bodies, connections, pictures, readers, worker
from benchmarks.attack.registry import ATTACKS

__all__ = ["ATTACKS", "bodies", "connections", "pictures", "readers", "worker"]
