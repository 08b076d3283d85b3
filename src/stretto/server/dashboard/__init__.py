"""The page at `/`: a chat playground and the engine at work, drawn from the engine's own events."""

from __future__ import annotations

from stretto.server.dashboard.routes import router

__all__ = ["router"]
