"""From a `generate` call to a request: validation of its options, and its text unless it carries tokens.

`prepare` runs on a separate thread, because a long prompt takes milliseconds and a new grammar most of a
second. Rejections are typed errors; nothing here touches the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stretto.errors import InvalidRequestError, UnsupportedByModelError
from stretto.rpc.messages import GenerateParams, TokenizeParams
from stretto.text import requests as texts
from stretto.text.model_text import ModelText, Prompt
from stretto.text.requests import PreparedText
from stretto.text.stream import PLAIN
from stretto.worker.embedding import EmbeddingRuntime
from stretto.worker.loaded import LoadedModel
from stretto.worker.media_input import check_modalities
from stretto.worker.model import ModelRuntime, PreparedRequest
from stretto.worker.options import SAMPLING_NAMES, RequestOptions, parse

_TEXT_FIELDS = ("stops", "tool_use", "bias_texts", "guidance")


def prepare(loaded: LoadedModel, params: GenerateParams, parent: Prompt | None = None) -> PreparedRequest:
    """The request of a call. `parent`: prompt of the generation that this one forks."""
    if params.draft_model:
        raise InvalidRequestError(
            f"draft_model {params.draft_model[:80]!r} cannot be used", hint="set speculation: ngram instead"
        )
    check_modalities(loaded.description, loaded.runtime.modalities, params.media)
    model = loaded.runtime.text
    adapters = loaded.runtime.adapter_group(params.lora)
    options = _options(loaded, params)
    prepared = _tokens_only(model, params) if params.number else texts.prepare_text(model, params, parent)
    return PreparedRequest(
        prompt=prepared.prompt,
        params=replace(
            options.params,
            max_tokens=options.max_tokens or model.window,
            prompt_logprobs=-1 if params.fork_of else options.params.prompt_logprobs,
            grammar=prepared.grammar,
        ),
        stops=prepared.stops,
        tools=prepared.tools,
        priority=options.priority,
        tenant=options.tenant,
        cache_salt=_salt(params, options),
        adapters=adapters,
        streamed=params.streamed,
        shown=prepared.shown,
        progress=params.progress,
        resumed=texts.checked_tokens(model.tokenizer, params.resumed),
        predicted=_predicted(model, params) if options.params.draft_tokens else (),
    )


def _predicted(model: ModelText, params: GenerateParams) -> Sequence[int]:
    return model.tokenizer.encode(params.prediction, False)[: model.window] if params.prediction else ()


def _tokens_only(model: ModelText, params: GenerateParams) -> PreparedText:
    """A call whose text is the caller's: it carries tokens, and at most a converted grammar."""
    given = [name for name in _TEXT_FIELDS if getattr(params, name)]
    if params.tokens is None or given:
        raise InvalidRequestError(
            f"a call with a number carries tokens{f', not {given[0]}' if given else ''}",
            hint="omit number, or prepare the text first",
        )
    prompt = texts.token_prompt(model, params)
    return PreparedText(prompt, params.grammar, (), None, PLAIN)


def _salt(params: GenerateParams, options: RequestOptions) -> str:
    """Prompt log-probabilities require computing the prompt: it shares cache only with its own forks."""
    if options.params.prompt_logprobs < 0:
        return options.cache_salt
    return f"{options.cache_salt}\x1f{params.fork_of or params.stream_id}"


def tokens_of(model: ModelRuntime | EmbeddingRuntime, params: TokenizeParams) -> list[int]:
    """The tokens of a text or a conversation."""
    if (params.text is None) == (params.messages is None):
        raise InvalidRequestError("text or messages must be given", hint="send one of the two")
    if params.text is not None:
        return texts.tokens_of_text(model.tokenizer, params.text, window=model.window, special=params.special)
    if not isinstance(model, ModelRuntime):
        raise UnsupportedByModelError("this model does not accept messages")
    return texts.tokens_of_messages(model.text, params)


def text_of(model: ModelRuntime | EmbeddingRuntime, tokens: list[int]) -> str:
    return texts.text_of(model.tokenizer, tokens, window=model.window)


def _options(loaded: LoadedModel, params: GenerateParams) -> RequestOptions:
    foreign = [name for name in params.sampling if name not in SAMPLING_NAMES]
    if foreign:
        raise InvalidRequestError(
            f"{foreign[0][:80]!r} is not a sampling parameter", hint=", ".join(sorted(SAMPLING_NAMES))
        )
    tokenizer = loaded.runtime.tokenizer
    options: dict[str, Any] = {
        **params.sampling,
        "max_tokens": params.max_tokens,
        "stop_token_ids": list(texts.checked_tokens(tokenizer, params.stop_token_ids)),
        "priority": params.priority,
        "tenant": params.tenant,
        "cache_salt": params.cache_salt,
    }
    if params.sampling.get("draft_tokens") is not None:  # a caller may want fewer than the operator allows
        options["draft_tokens"] = min(params.sampling["draft_tokens"], loaded.drafts)
    if params.bias_texts:
        options["logit_bias"] = texts.biases(tokenizer, params)
    return parse(options, eos=tokenizer.eos, seed=loaded.settings.seed, drafts=loaded.drafts)
