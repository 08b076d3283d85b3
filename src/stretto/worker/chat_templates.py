"""The chat template that the settings name, in place of the model's own."""

from __future__ import annotations

from pathlib import Path

from stretto import settings as settings_
from stretto.errors import InvalidRequestError


def template_source(chosen: settings_.ModelSettings) -> str | None:
    if chosen.chat_template is None:
        return None
    try:
        return Path(chosen.chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidRequestError(
            f"the chat template {chosen.chat_template} cannot be read: {reason}", hint="name a text file"
        ) from None
