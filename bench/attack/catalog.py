"""Imports every module that registers attacks."""

from __future__ import annotations

from bench.attack import bodies, connections, readers, worker
from bench.attack.registry import ATTACKS

__all__ = ["ATTACKS", "bodies", "connections", "readers", "worker"]
