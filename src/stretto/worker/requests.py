"""From a `generate` call to a request: validation, rendering, tokenization, guidance.

`prepare` runs on a separate thread, because a long prompt takes milliseconds and a new grammar most of a
second. Rejections are typed errors; nothing here touches the scheduler.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stretto.errors import (
    EmptyPromptError,
    InvalidRequestError,
    InvalidTokenError,
    UnsupportedByModelError,
)
from stretto.rpc.messages import GenerateParams, TokenizeParams, ToolUse
from stretto.rpc.text_bound import TOKENS_MAX
from stretto.text import bounds
from stretto.text.provenance import Segment
from stretto.text.tokenizer import PromptTokens
from stretto.text.tool_schema import schema_for_tools, tool_names
from stretto.text.tools import Dialect
from stretto.worker.embedding import EmbeddingRuntime
from stretto.worker.loaded import LoadedModel
from stretto.worker.model import ModelRuntime, PreparedRequest, Prompt
from stretto.worker.options import SAMPLING_NAMES, RequestOptions, parse
from stretto.worker.prompts import begin_of_text, cut_left, fitting, mixed_prompt
from stretto.worker.text_stream import Shown, ToolReading

_PROMPTS = ("messages", "prompt", "tokens", "pieces")
_TEMPLATE_OPTIONS_TAKEN = ("messages", "tools", "self", "add_generation_prompt", "continue_final_message")


def prepare(loaded: LoadedModel, params: GenerateParams, parent: Prompt | None = None) -> PreparedRequest:
    """The request of a call. `parent`: prompt of the generation that this one forks."""
    if params.draft_model:
        raise InvalidRequestError(
            f"draft_model {params.draft_model[:80]!r} cannot be used", hint="set speculation: ngram instead"
        )
    model = loaded.runtime
    tools, schema = _tools(params.tool_use, model, eager=params.streamed)
    options = _options(loaded, params, schema)
    prompt = parent if parent is not None else prompt_of(model, params)
    if params.truncate_prompt_tokens is not None and parent is None:
        keep = params.truncate_prompt_tokens
        prompt = cut_left(prompt, keep if keep > 0 else model.capabilities.pool_tokens - 1)
    if not prompt.tokens.tokens:
        raise EmptyPromptError("the prompt is empty")
    model.check_length(prompt)
    if options.params.grammar:
        prompt = replace(prompt, tags=None, opened=False)  # the grammar does not allow a reasoning block
    room = model.capabilities.pool_tokens
    return PreparedRequest(
        prompt=prompt,
        params=replace(
            options.params,
            max_tokens=options.max_tokens or room,
            prompt_logprobs=-1 if params.fork_of else options.params.prompt_logprobs,
        ),
        stops=options.stops,
        tools=tools,
        priority=options.priority,
        tenant=options.tenant,
        cache_salt=_salt(params, options),
        streamed=params.streamed,
        shown=Shown(
            control=params.show_control,
            stop=params.include_stop,
            prompt=prompt.tokens.tokens if options.params.prompt_logprobs >= 0 else (),
        ),
        progress=params.progress,
        resumed=_tokens(model, params.resumed),
    )


def _salt(params: GenerateParams, options: RequestOptions) -> str:
    """Prompt log-probabilities require computing the prompt: it shares cache only with its own forks."""
    if options.params.prompt_logprobs < 0:
        return options.cache_salt
    return f"{options.cache_salt}\x1f{params.fork_of or params.stream_id}"


def prompt_of(model: ModelRuntime, params: GenerateParams) -> Prompt:
    given = [name for name in _PROMPTS if getattr(params, name) is not None]
    if len(given) != 1:
        raise InvalidRequestError(
            f"{' and '.join(given) or 'no prompt'} given", hint=f"send one of {', '.join(_PROMPTS)}"
        )
    if params.tokens is not None:
        return Prompt(PromptTokens(_tokens(model, params.tokens)))
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
            window=model.capabilities.pool_tokens,
            max_tokens=params.max_tokens,
        )
    return _chat_prompt(model, params, messages)


def _chat_prompt(model: ModelRuntime, params: GenerateParams, messages: list[dict[str, Any]]) -> Prompt:
    use = params.tool_use
    offered = use.tools if use is not None and use.choice != "none" else None
    return model.chat_prompt(
        messages,
        offered or None,
        _template_options(params.template_options),
        scope=(params.tenant, params.cache_salt),
        continue_final=params.continue_final,
        add_generation_prompt=params.add_generation_prompt,
        tokens_max=_tokens_max(model, params),
    )


def _tokens_max(model: ModelRuntime, params: GenerateParams) -> int:
    """Texts longer than the window are tokenized only if they are truncated afterwards."""
    return model.window if params.truncate_prompt_tokens is None else max(TOKENS_MAX, model.window)


def _template_options(options: dict[str, Any]) -> dict[str, Any]:
    taken = [name for name in options if name in _TEMPLATE_OPTIONS_TAKEN]
    if taken:
        raise InvalidRequestError(f"template option {taken[0]} is reserved", hint="omit it")
    return options


def tokens_of(model: ModelRuntime | EmbeddingRuntime, params: TokenizeParams) -> list[int]:
    """The tokens of a text or a conversation."""
    if (params.text is None) == (params.messages is None):
        raise InvalidRequestError("text or messages must be given", hint="send one of the two")
    if params.text is not None:
        most = max(TOKENS_MAX, model.window)
        bounds.check_text(params.text, model.tokenizer, most)
        bounds.check_segments((Segment(params.text, user=True),), model.tokenizer, most)
        return model.tokenizer.encode(params.text, params.special)
    if not isinstance(model, ModelRuntime):
        raise UnsupportedByModelError("this model does not accept messages")
    prompt = model.chat_prompt(
        params.messages or [],
        params.tools or None,
        _template_options(params.template_options),
        continue_final=params.continue_final,
        add_generation_prompt=params.add_generation_prompt,
        tokens_max=max(TOKENS_MAX, model.window),  # counting may exceed the window
    )
    return list(prompt.tokens.tokens)


def text_of(model: ModelRuntime | EmbeddingRuntime, tokens: list[int]) -> str:
    most = max(TOKENS_MAX, model.window)
    if len(tokens) > most:
        raise InvalidRequestError(
            f"{len(tokens)} tokens to detokenize; the maximum is {most}",
            hint="send them in several requests",
        )
    return b"".join(map(model.tokenizer.token_bytes, _tokens(model, tokens))).decode("utf-8", "replace")


def _tokens(model: ModelRuntime | EmbeddingRuntime, tokens: list[int]) -> array[int]:
    size = model.tokenizer.vocab_size
    if tokens and not (min(tokens) >= 0 and max(tokens) < size):
        raise InvalidTokenError(f"a token id is outside the vocabulary of {size}")
    return array("i", tokens)


def _options(loaded: LoadedModel, params: GenerateParams, schema: Mapping[str, Any] | None) -> RequestOptions:
    foreign = [name for name in params.sampling if name not in SAMPLING_NAMES]
    options: dict[str, Any] = {
        **params.sampling,
        "max_tokens": params.max_tokens,
        "stop": params.stops,
        "stop_token_ids": list(_tokens(loaded.runtime, params.stop_token_ids)),
        "priority": params.priority,
        "tenant": params.tenant,
        "cache_salt": params.cache_salt,
    }
    if foreign:
        raise InvalidRequestError(
            f"{foreign[0][:80]!r} is not a sampling parameter", hint=", ".join(sorted(SAMPLING_NAMES))
        )
    if params.bias_texts:
        options["logit_bias"] = _biases(loaded.runtime, params)
    if params.guidance is not None:
        if schema is not None:
            raise InvalidRequestError("a forced tool call excludes guidance", hint="send one of the two")
        mode = params.guidance.mode
        options[mode] = True if mode == "json_object" else params.guidance.value
        if not options[mode]:
            raise InvalidRequestError(f"guidance {mode} has no value", hint="send a schema or a pattern")
    elif schema is not None:
        options["json_schema"] = schema
    eos = loaded.runtime.tokenizer.eos
    return parse(options, eos=eos, seed=loaded.settings.seed, drafts=loaded.drafts)


def _biases(model: ModelRuntime, params: GenerateParams) -> dict[str, float]:
    """Biases given by text, in addition to those given by id."""
    found = {str(key): value for key, value in (params.sampling.get("logit_bias") or {}).items()}
    for text, bias in params.bias_texts:
        found |= {str(token): bias for token in model.tokenizer.encode(text, False)}
    return found


def _tools(
    use: ToolUse | None, model: ModelRuntime, *, eager: bool
) -> tuple[ToolReading | None, dict[str, Any] | None]:
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
