"""The base class of all messages between client and worker."""

from __future__ import annotations

from msgspec import Struct


class Message(Struct, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of all messages. Unknown fields are an error."""
