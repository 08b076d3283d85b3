"""ModelText: a model's tokenizer, chat template and context window: everything about text, without weights.

Turns conversations and texts into prompts. The worker has one beside each loaded model; an API process builds
one from the `TextSource` that the worker announces. Knows nothing about requests or backends.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgspec

from stretto.errors import PromptTooLongError
from stretto.rpc.media import MediaItem
from stretto.rpc.text_bound import TextBound
from stretto.text import bounds
from stretto.text.media_marks import check_all_placed, marks_for, numbers_in
from stretto.text.provenance import Segment
from stretto.text.reasoning import Tags, opened_by_prompt, tags_for
from stretto.text.templates import CHATML, ChatTemplate, Rendered
from stretto.text.token_cache import TokenCache
from stretto.text.tokenizer import PromptTokens, Tokenizer, encode_prompt, encode_text
from stretto.text.tool_prompt import fitted, tool_dialect
from stretto.text.tools import Dialect


@dataclass(frozen=True, slots=True)
class Prompt:
    """Tokens to continue, and whether the template has already opened a reasoning block.

    `files` are its media, each with its place among the tokens, in order.
    """

    tokens: PromptTokens
    tags: Tags | None = None
    opened: bool = False
    files: tuple[MediaItem, ...] = ()
    media: object = None  # the worker's: which rows are media, and their encodings


@cache  # minijinja never frees an environment: one per chat would leak
def _chatml() -> ChatTemplate:
    """For models without a template."""
    return ChatTemplate(CHATML)


def template_of(source: str, vocabulary: Tokenizer) -> ChatTemplate:
    """The model's own template. Its end-of-text is the smallest token that ends a generation."""
    named = [vocabulary.bos, min(vocabulary.eos, default=None)]
    bos, eos = ("" if t is None else vocabulary.token_bytes(t).decode("utf-8", "replace") for t in named)
    return ChatTemplate(source, bos=bos, eos=eos)


class ModelText:
    """Thread-safe. `window`: maximum tokens of one request."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        window: int,
        template: ChatTemplate | None = None,
        add_bos: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.window = window
        self.add_bos = add_bos
        self._token_cache = TokenCache(tokenizer)

    @cached_property
    def text_bound(self) -> TextBound | None:
        return bounds.text_bound(self.tokenizer, self.window)

    def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        scope: Hashable = None,
        continue_final: bool = False,
        add_generation_prompt: bool = True,
        tokens_max: int | None = None,
        media: Sequence[MediaItem] = (),
    ) -> Prompt:
        """`options` are the template's. Tokenized texts are cached within a scope; without a scope they are
        not.

        A text that clearly exceeds `tokens_max` tokens (default: the context window) is not tokenized.
        `media` are named by parts of the messages, by their numbers.
        """
        most = self.window if tokens_max is None else tokens_max
        template = self.template or _chatml()
        marks = marks_for(len(media), [messages, tools], template.source)
        shown, offered = fitted(messages, tools, template.support, self.tool_dialect, marks=marks)
        rendered: Rendered = template.render(
            shown,
            offered,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final,
            check=lambda text: bounds.check_text(text, self.tokenizer, most),
            **(options or {}),
        )
        bounds.check_segments(rendered.segments, self.tokenizer, most)
        tokens = encode_prompt(rendered, self._tokenizer_for(scope), add_bos=self.add_bos, marks=marks)
        if marks:
            check_all_placed(numbers_in(messages), (number for number, _ in tokens.places))
        files = (msgspec.structs.replace(media[number], at=at) for number, at in tokens.places)
        tags = tags_for(template.source)
        opened = tags is not None and opened_by_prompt(rendered.tail, tags)
        return Prompt(tokens, tags, opened, tuple(files))

    @property
    def tool_dialect(self) -> Dialect:
        """How the model is told to call tools."""
        template = self.template or _chatml()
        return tool_dialect(template.source, template.support)

    @property
    def tools_shown_by(self) -> str:
        """`template`, or `system prompt` if the template ignores tools."""
        return "template" if (self.template or _chatml()).support.tools else "system prompt"

    def text_prompt(self, text: str, *, scope: Hashable = None, tokens_max: int | None = None) -> Prompt:
        most = self.window if tokens_max is None else tokens_max
        bounds.check_text(text, self.tokenizer, most)
        bounds.check_segments((Segment(text, user=True),), self.tokenizer, most)
        return Prompt(encode_text(text, self._tokenizer_for(scope), add_bos=self.add_bos))

    def _tokenizer_for(self, scope: Hashable) -> Tokenizer:
        return self.tokenizer if scope is None else self._token_cache.for_scope(scope)

    def check_length(self, prompt: Prompt) -> None:
        """Reject a prompt that cannot fit before it is queued, with both lengths."""
        count = len(prompt.tokens.tokens)
        if count >= self.window:
            raise PromptTooLongError.of(count, self.window)
