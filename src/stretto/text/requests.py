"""The text of a `generate` call: its prompt in tokens, and how its output becomes text.

`prepare_text` runs on a thread, because a long prompt takes milliseconds: in the worker for calls that carry
text, in an API process for calls that it sends as tokens. Rejections are typed errors.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stretto.errors import EmptyPromptError, InvalidRequestError, InvalidTokenError
from stretto.rpc.messages import GenerateParams, MediaItem, TokenizeParams, ToolUse
from stretto.rpc.text_bound import TOKENS_MAX
from stretto.text import bounds
from stretto.text.guidance import grammar_of, guidance_options
from stretto.text.model_text import ModelText, Prompt
from stretto.text.prompts import begin_of_text, cut_left, fitting, mixed_prompt
from stretto.text.provenance import Segment
from stretto.text.stops import check_stops
from stretto.text.stream import Shown, ToolReading
from stretto.text.tokenizer import PromptTokens, Tokenizer
from stretto.text.tool_schema import schema_for_tools, tool_names
from stretto.text.tools import Dialect

_PROMPTS = ("messages", "prompt", "tokens", "pieces")
_TEMPLATE_OPTIONS_TAKEN = ("messages", "tools", "self", "add_generation_prompt", "continue_final_message")


@dataclass(frozen=True, slots=True)
class PreparedText:
    """What a call's text comes to: tokens and a grammar for the scheduler, the rest for its `TextStream`."""

    prompt: Prompt
    grammar: str
    stops: tuple[str, ...]
    tools: ToolReading | None
    shown: Shown


def prepare_text(model: ModelText, params: GenerateParams, parent: Prompt | None = None) -> PreparedText:
    """`parent`: prompt of the generation that this one forks."""
    tools, forced = _tools(params.tool_use, model, eager=params.streamed)
    grammar = grammar_of(guidance_options(params.guidance, forced))
    stops = check_stops(tuple(params.stops))
    prompt = parent if parent is not None else prompt_of(model, params)
    if params.truncate_prompt_tokens is not None and parent is None:
        keep = params.truncate_prompt_tokens
        prompt = cut_left(prompt, keep if keep > 0 else model.window - 1)
    if not prompt.tokens.tokens:
        raise EmptyPromptError("the prompt is empty")
    model.check_length(prompt)
    if grammar:
        prompt = replace(prompt, tags=None, opened=False)  # the grammar does not allow a reasoning block
    measured = params.sampling.get("prompt_logprobs")
    scored = isinstance(measured, int) and measured >= 0
    return PreparedText(
        prompt=prompt,
        grammar=grammar,
        stops=stops,
        tools=tools,
        shown=Shown(
            control=params.show_control,
            stop=params.include_stop,
            prompt=prompt.tokens.tokens if scored else (),
        ),
    )


def token_prompt(model: ModelText, params: GenerateParams) -> Prompt:
    """The prompt of a call that carries tokens, with the offsets at which its messages end."""
    tokens = checked_tokens(model.tokenizer, params.tokens or [])
    if not tokens:
        raise EmptyPromptError("the prompt is empty")
    kept = sorted({offset for offset in params.boundaries if 0 < offset <= len(tokens)})
    prompt = Prompt(PromptTokens(tokens, tuple(kept)), files=_files(params))
    model.check_length(prompt)
    return prompt


def prompt_of(model: ModelText, params: GenerateParams) -> Prompt:
    given = [name for name in _PROMPTS if getattr(params, name) is not None]
    if len(given) != 1:
        raise InvalidRequestError(
            f"{' and '.join(given) or 'no prompt'} given", hint=f"send one of {', '.join(_PROMPTS)}"
        )
    if params.tokens is not None:
        return Prompt(PromptTokens(checked_tokens(model.tokenizer, params.tokens)), files=_files(params))
    if params.media and params.messages is None:
        raise InvalidRequestError("pictures and sounds need messages or tokens", hint="send messages")
    scope = (params.tenant, params.cache_salt)
    if params.pieces is not None:
        return mixed_prompt(model, params.pieces, scope=scope)
    if params.prompt is not None:
        if not params.prompt:
            return begin_of_text(model)
        return model.text_prompt(params.prompt, scope=scope, tokens_max=_tokens_max(model, params))
    messages = params.messages or []
    if params.truncate_messages:
        return fitting(
            lambda kept: _chat_prompt(model, params, kept),
            messages,
            window=model.window,
            max_tokens=params.max_tokens,
        )
    return _chat_prompt(model, params, messages)


def _chat_prompt(model: ModelText, params: GenerateParams, messages: list[dict[str, Any]]) -> Prompt:
    use = params.tool_use
    offered = use.tools if use is not None and use.choice != "none" else None
    return model.chat_prompt(
        messages,
        offered or None,
        template_options(params.template_options),
        scope=(params.tenant, params.cache_salt),
        continue_final=params.continue_final,
        add_generation_prompt=params.add_generation_prompt,
        tokens_max=_tokens_max(model, params),
        media=params.media,
    )


def _files(params: GenerateParams) -> tuple[MediaItem, ...]:
    return tuple(sorted(params.media, key=lambda one: one.at))


def _tokens_max(model: ModelText, params: GenerateParams) -> int:
    """Texts longer than the window are tokenized only if they are truncated afterwards."""
    return model.window if params.truncate_prompt_tokens is None else max(TOKENS_MAX, model.window)


def template_options(options: dict[str, Any]) -> dict[str, Any]:
    taken = [name for name in options if name in _TEMPLATE_OPTIONS_TAKEN]
    if taken:
        raise InvalidRequestError(f"template option {taken[0]} is reserved", hint="omit it")
    return options


def tokens_of_text(tokenizer: Tokenizer, text: str, *, window: int, special: bool) -> list[int]:
    most = max(TOKENS_MAX, window)
    bounds.check_text(text, tokenizer, most)
    bounds.check_segments((Segment(text, user=True),), tokenizer, most)
    return tokenizer.encode(text, special)


def tokens_of_messages(model: ModelText, params: TokenizeParams) -> list[int]:
    prompt = model.chat_prompt(
        params.messages or [],
        params.tools or None,
        template_options(params.template_options),
        continue_final=params.continue_final,
        add_generation_prompt=params.add_generation_prompt,
        tokens_max=max(TOKENS_MAX, model.window),  # counting may exceed the window
    )
    return list(prompt.tokens.tokens)


def text_of(tokenizer: Tokenizer, tokens: list[int], *, window: int) -> str:
    most = max(TOKENS_MAX, window)
    if len(tokens) > most:
        raise InvalidRequestError(
            f"{len(tokens)} tokens to detokenize; the maximum is {most}",
            hint="send them in several requests",
        )
    found = checked_tokens(tokenizer, tokens)
    return b"".join(map(tokenizer.token_bytes, found)).decode("utf-8", "replace")


def checked_tokens(tokenizer: Tokenizer, tokens: list[int]) -> array[int]:
    size = tokenizer.vocab_size
    if tokens and not (min(tokens) >= 0 and max(tokens) < size):
        raise InvalidTokenError(f"a token id is outside the vocabulary of {size}")
    return array("i", tokens)


def biases(tokenizer: Tokenizer, params: GenerateParams) -> dict[str, float]:
    """Biases given by text, in addition to those given by id."""
    found = {str(key): value for key, value in (params.sampling.get("logit_bias") or {}).items()}
    for text, bias in params.bias_texts:
        found |= {str(token): bias for token in tokenizer.encode(text, False)}
    return found


def _tools(
    use: ToolUse | None, model: ModelText, *, eager: bool
) -> tuple[ToolReading | None, Mapping[str, Any] | None]:
    """How tool calls are parsed, and the schema of a forced call."""
    if use is None:
        return None, None
    names = frozenset(tool_names(use.tools))
    schema = schema_for_tools(use.tools, use.choice, parallel=use.parallel)
    if use.choice == "none" or not names:
        return None, None
    if schema is not None:  # a forced call is bare JSON, whatever the model's own dialect
        return ToolReading(Dialect.JSON, names, use.parallel, forced=True, eager=eager), schema
    return ToolReading(model.tool_dialect, names, use.parallel, eager=eager), None
