"""A loaded generating model: its `ModelRuntime`, its settings, and the choices made for it.

Created by `loading` and its siblings, one per backend; used by the model pool and by the SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stretto import settings as settings_
from stretto.rpc.messages import TextSource
from stretto.rpc.text_bound import TextBound
from stretto.text.tokenizer import Tokenizer
from stretto.worker.model import ModelRuntime

Progress = Callable[[str, float], None]  # stage, and fraction done
Beat = Callable[[int, bool], None]
TEMPLATE_CHARS_MAX = 1 << 16  # of a template that is shown to clients


def _name(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A loaded model, its settings and the choices made for it."""

    runtime: ModelRuntime
    settings: settings_.ModelSettings
    description: Mapping[str, Any]
    after_close: Callable[[], None] | None = None
    text_source: TextSource | None = None  # for API processes that make the text

    @property
    def busy(self) -> bool:
        return self.runtime.stats.busy or self.runtime.stats.queued > 0

    @property
    def alive(self) -> bool:
        return self.runtime.alive

    @property
    def seed(self) -> int | None:
        return self.settings.seed

    @property
    def drafts(self) -> int:
        """Default number of draft tokens per request."""
        return self.settings.drafts

    @property
    def text_bound(self) -> TextBound | None:
        return self.runtime.text.text_bound

    @property
    def modalities(self) -> list[str]:
        return self.runtime.modalities

    @property
    def vocabulary(self) -> Mapping[str, Any]:
        """Vocabulary facts for clients with their own tokenizer."""
        tokenizer, template = self.runtime.tokenizer, self.runtime.text.template
        ends = sorted(tokenizer.eos)
        return {
            "bos_token": None if tokenizer.bos is None else _name(tokenizer, tokenizer.bos),
            "eos_token": _name(tokenizer, ends[0]) if ends else None,
            "vocab_size": tokenizer.vocab_size,
            "chat_template": template.source[:TEMPLATE_CHARS_MAX] if template is not None else None,
        }

    def drain(self) -> None:
        self.runtime.drain()

    def close(self) -> None:
        self.runtime.close()
        if self.after_close is not None:
            self.after_close()
