"""Supported fields of llama-server, vLLM and Ollama on OpenAI's routes.

`Generating` is the base of the three generating bodies: sampling, guidance, these fields, and the generation
parameters they share.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from stretto.errors import InvalidFieldError
from stretto.server.http.caller import Caller
from stretto.server.http.fields import (
    Body,
    Extensions,
    Ignored,
    MaxTokensOrAll,
    SamplingFields,
    Stops,
    only,
)
from stretto.server.openai.guided import GuidedByAnyName

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
PROMPT_TOKENS_MAX = 1 << 24
ADAPTERS_MAX = 8


class OllamaOptions(SamplingFields):
    """Ollama's `options`: used for fields that the body does not set."""

    where: ClassVar[str] = "options"

    num_predict: MaxTokensOrAll = None
    stop: Stops | None = None


class AdapterChoice(Body):
    """One of `lora`."""

    where: ClassVar[str] = "lora"

    name: Annotated[str, Field(min_length=1, max_length=128)]
    scale: Annotated[float, Field(ge=-100.0, le=100.0)] | None = None
    """Default: the one in the model's settings."""


class Generating(GuidedByAnyName, SamplingFields, Extensions):
    """Fields of every generating route of OpenAI's dialect."""

    cache_prompt: bool | None = None
    """false: do not use cached prefixes."""
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=PROMPT_TOKENS_MAX)] | None = None
    """Keep only the last n tokens of the prompt; -1: as many as fit the context window."""
    skip_special_tokens: bool | None = None
    """false: include generated control tokens in the text."""
    include_stop_str_in_output: bool | None = None
    options: OllamaOptions | None = None
    keep_alive: Ignored = None
    add_special_tokens: only(True) = None  # type: ignore[valid-type]
    use_beam_search: only(False) = None  # type: ignore[valid-type]
    mirostat: only(0) = None  # type: ignore[valid-type]
    lora: Annotated[list[AdapterChoice], Field(max_length=ADAPTERS_MAX)] | None = None
    """Adapters of the model, each with a scale."""
    prompt_embeds: None = None
    """Send text or token ids."""
    logits_processors: None = None
    """Requests cannot contain code."""
    draft_model: None = None
    """Requests cannot choose a draft model."""

    def sampling(self) -> dict[str, Any]:
        own = super().sampling()
        if self.options is None:
            return own
        base = self.options.sampling()
        if self.seed is None and self.options.seed is not None:
            own["seed"] = base["seed"]
        return {**base, **own}

    @property
    def stops_by_default(self) -> list[str]:
        return list(self.options.stop or ()) if self.options is not None else []

    @property
    def limit_by_default(self) -> int | None:
        return self.options.num_predict if self.options is not None else None

    def common(self, stream_id: str, caller: Caller) -> dict[str, Any]:
        """Names of `GenerateParams`."""
        salt = self.cache_salt or ""
        biases = self.bias_texts or (self.options.bias_texts if self.options is not None else [])
        ids = self.stop_token_ids or (self.options.stop_token_ids if self.options is not None else None)
        return {
            "stop_token_ids": list(ids or ()),
            "bias_texts": biases,
            "priority": caller.priority(self.priority),
            "tenant": caller.tenant,
            "cache_salt": f"{salt}\x1f{stream_id}" if self.cache_prompt is False else salt,
            "deadline_ms": self.deadline_ms,
            "truncate_prompt_tokens": self._truncation(),
            "show_control": self.skip_special_tokens is False,
            "include_stop": bool(self.include_stop_str_in_output),
            "lora": [(each.name, each.scale) for each in self.lora or ()],
        }

    def _truncation(self) -> int | None:
        if self.truncate_prompt_tokens == 0:
            raise InvalidFieldError("leaves no prompt tokens", param="truncate_prompt_tokens")
        return self.truncate_prompt_tokens


class ThinkingSwitch(Body):
    where: ClassVar[str] = "thinking"

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Ignored = None


class ReasoningSwitch(Body):
    where: ClassVar[str] = "reasoning"

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: Ignored = None
    summary: Ignored = None


class OpenAIThinking(Body):
    """Whether the model may reason, under the names used by other servers. Chat templates know two."""

    enable_thinking: bool | None = None
    thinking: bool | ThinkingSwitch | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    reasoning: ReasoningSwitch | None = None
    reasoning_effort: Effort | None = None

    def thinking_options(self) -> dict[str, Any]:
        """The template's variables; the most specific field wins."""
        found: dict[str, Any] = {}
        for switch in (self.think, self._thinking(), self._reasoning(), self.enable_thinking):
            if isinstance(switch, bool):
                found["enable_thinking"] = switch
            elif switch is not None:
                found |= thinking_options(switch)
        if self.reasoning_effort is not None:
            found |= thinking_options(self.reasoning_effort)
        return found

    def _thinking(self) -> bool | None:
        if isinstance(self.thinking, ThinkingSwitch):
            return self.thinking.type != "disabled"
        return self.thinking

    def _reasoning(self) -> bool | str | None:
        if self.reasoning is None:
            return None
        return self.reasoning.effort if self.reasoning.effort is not None else self.reasoning.enabled


def thinking_options(effort: str) -> dict[str, Any]:
    """The names used by chat templates: some have a switch, some a level."""
    return {"enable_thinking": effort != "none", "reasoning_effort": effort}
