"""The base of every message between engine and runtime."""

from __future__ import annotations

from msgspec import Struct


class Message(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The base of everything that is sent. Unknown fields are an error."""
