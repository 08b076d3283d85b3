"""The page at `/`: a chat playground and a live view of the scheduler, drawn from its events."""

from __future__ import annotations

from stretto.server.dashboard.routes import router

__all__ = ["router"]
