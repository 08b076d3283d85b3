"""`LLM`: load a model, ask it things."""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from stretto import settings as settings_
from stretto.core.tick import Terminal
from stretto.errors import InvalidRequestError, UnsupportedByModelError
from stretto.llm.batch import check_ids_only, run_calls
from stretto.llm.child import ChildModel, open_child
from stretto.llm.child_process import ChildStart
from stretto.llm.embedding import (
    Embeddings,
    Inputs,
    Ranked,
    Truncate,
    embed_params,
    embeddings_of,
    ranking_of,
    rerank_params,
)
from stretto.llm.media import Media, check_media, with_images
from stretto.llm.placement import runs_in_child
from stretto.llm.progress import ProgressBar
from stretto.llm.results import Completion
from stretto.llm.runtime import OpenModel, Runtime
from stretto.llm.streams import AsyncStream, Stream
from stretto.llm.telemetry import RequestMeasures, Subscription, TickMeasures, measures_of
from stretto.telemetry.event_log import EventLog
from stretto.text.model_text import Prompt
from stretto.text.tokenizer import PromptTokens, Tokenizer
from stretto.worker.contexts import PoolStats
from stretto.worker.embedding import EmbeddingRuntime
from stretto.worker.embedding_loading import load_any
from stretto.worker.loaded import LoadedModel
from stretto.worker.loop import LoopStats
from stretto.worker.media_input import with_media
from stretto.worker.model import ModelRuntime, PreparedRequest
from stretto.worker.options import RequestOptions, parse

Messages = Sequence[Mapping[str, Any]]
TextOrTokens = str | Sequence[int]
ANSWER_TOKENS = 1024  # default max_tokens: small models may ramble to the end of their window


class LLM:
    """A loaded model that serves many callers concurrently.

    `model` is a path to a GGUF file, a name from the store, or nothing (the bundled SmolLM2). Every key of
    `stretto.yaml`'s model section is a keyword here: `n_seq_max=8, context_window=4096, cache="prefix", …`.
    An answer ends after `max_tokens` tokens: 1,024 unless the call says otherwise.

    `own_process`: run the model in a worker process, so that it does not wait for this program's Python. By
    default (`runtime.own_process: auto`) where torch runs on a GPU. If that process dies, calls with output
    raise RuntimeLostError and later ones wait for its successor.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        progress: Callable[[str, float], None] | None = None,
        cache_dir: str | Path | None = None,
        config: str | Path | None = None,
        own_process: bool | None = None,
        **settings: Any,
    ) -> None:
        self._opened: OpenModel | EmbeddingRuntime
        self._event_log: EventLog | None = None
        name, read = str(model) if model is not None else "", settings_.load(config, flags=settings)
        if runs_in_child(read.settings, name, asked=own_process):
            start = ChildStart(name, settings, config=config, cache_dir=cache_dir)
            self._opened = open_child(start, read, progress=progress)
            return
        self._opened = opened = load_any(
            model, settings, cache_dir=cache_dir, progress=progress, config=config
        )
        if isinstance(opened, LoadedModel):
            self._event_log = EventLog(str(opened.description.get("model", "")))
            opened.runtime.observe(self._event_log.take)

    # --- asking ----------------------------------------------------------------------------------

    def chat(
        self,
        messages: str | Messages,
        *,
        tools: Messages | None = None,
        images: Sequence[Media] = (),
        **options: Any,
    ) -> Completion:
        """One answer to a conversation; a plain string is one user message. With n > 1 see `chat_many`.

        `images` (paths, bytes or PIL images) open the last user message; parts of messages may be pictures
        and sounds as well (`llm.media`).
        """
        return self._one(self._chat_prompt(messages, tools, images), options)

    def chat_many(self, conversations: Sequence[str | Messages], **options: Any) -> list[Completion]:
        return self._many([self._chat_prompt(messages, None) for messages in conversations], options)

    def generate(
        self,
        prompts: str | Sequence[TextOrTokens],
        each: Sequence[Mapping[str, Any]] | None = None,
        *,
        detokenize: bool = True,
        **options: Any,
    ) -> list[Completion]:
        """Continue texts (or token ids): n completions for each prompt, in order, with a progress bar.

        `options` hold for all prompts, and `each[i]`, where given, for prompt i in addition. With
        `detokenize=False` completions have tokens and no text, which costs less.
        """
        texts = [prompts] if isinstance(prompts, str) else prompts
        return self._many(
            [self._text_prompt(prompt) for prompt in texts], options, each, detokenize=detokenize
        )

    def stream(self, prompt: str | Messages, *, images: Sequence[Media] = (), **options: Any) -> Stream:
        """Stream deltas: a list of messages is a chat, a string without images is continued."""
        return Stream(self._runtime, self._streamed(prompt, options, images))

    async def achat(
        self,
        messages: str | Messages,
        *,
        tools: Messages | None = None,
        images: Sequence[Media] = (),
        **options: Any,
    ) -> Completion:
        prompt, parsed = self._chat_prompt(messages, tools, images), self._parse(options)
        threaded = bool(prompt.files)  # decoding a picture takes a while
        call = await asyncio.to_thread(self._call, prompt, parsed) if threaded else self._call(prompt, parsed)
        return await AsyncStream(self._runtime, call).read()

    async def agenerate(self, prompts: str | Sequence[TextOrTokens], **options: Any) -> list[Completion]:
        texts = [prompts] if isinstance(prompts, str) else prompts
        parsed = self._parse(options)
        calls = [call for text in texts for call in self._calls(self._text_prompt(text), parsed)]
        gate = asyncio.Semaphore(self._window)

        async def one(call: PreparedRequest) -> Completion:
            async with gate:
                return await AsyncStream(self._runtime, call).read()

        return list(await asyncio.gather(*(one(replace(call, fork_of="", request_id="")) for call in calls)))

    def astream(self, prompt: str | Messages, *, images: Sequence[Media] = (), **options: Any) -> AsyncStream:
        return AsyncStream(self._runtime, self._streamed(prompt, options, images))

    # --- vectors and rankings --------------------------------------------------------------------

    def embed(
        self,
        inputs: Inputs,
        *,
        dimensions: int | None = None,
        truncate: Truncate = "",
        normalize: bool = True,
        timeout_s: float | None = None,
    ) -> Embeddings:
        """Vectors of texts or token ids, one row each. `truncate`: the end at which long inputs are cut."""
        params = embed_params(
            inputs, dimensions=dimensions, truncate=truncate, normalize=normalize, timeout_s=timeout_s
        )
        return embeddings_of(self._vectors("makes no embeddings").embed(params))

    async def aembed(
        self,
        inputs: Inputs,
        *,
        dimensions: int | None = None,
        truncate: Truncate = "",
        normalize: bool = True,
        timeout_s: float | None = None,
    ) -> Embeddings:
        params = embed_params(
            inputs, dimensions=dimensions, truncate=truncate, normalize=normalize, timeout_s=timeout_s
        )
        return embeddings_of(await self._vectors("makes no embeddings").aembed(params))

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: Truncate = "",
        raw_scores: bool = False,
        timeout_s: float | None = None,
    ) -> list[Ranked]:
        """Documents ranked by relevance to the query, best first; scores are probabilities unless raw."""
        params = rerank_params(
            query, documents, truncate=truncate, raw_scores=raw_scores, timeout_s=timeout_s
        )
        return ranking_of(self._vectors("does not score documents").rerank(params), documents, top_n)

    async def arerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: Truncate = "",
        raw_scores: bool = False,
        timeout_s: float | None = None,
    ) -> list[Ranked]:
        params = rerank_params(
            query, documents, truncate=truncate, raw_scores=raw_scores, timeout_s=timeout_s
        )
        result = await self._vectors("does not score documents").arerank(params)
        return ranking_of(result, documents, top_n)

    # --- inspection ------------------------------------------------------------------------------

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        return self._tokenizer.encode(text, special)

    def chat_prompt_tokens(self, messages: str | Messages, tools: Messages | None = None) -> list[int]:
        """The tokens of a conversation, including the chat template."""
        return list(self._chat_prompt(messages, tools).tokens.tokens)

    def detokenize(self, tokens: Iterable[int]) -> str:
        return b"".join(map(self._tokenizer.token_bytes, tokens)).decode("utf-8", "replace")

    def stats(self) -> LoopStats:
        return self._runtime.stats

    def pool_stats(self) -> PoolStats:
        """Statistics of the context pool of an embedding model or reranker."""
        return self._vectors("has no pool of contexts").stats

    def on_tick(self, callback: Callable[[TickMeasures], object]) -> Subscription[TickMeasures]:
        """Call `callback` after every tick, in order, on a separate thread. Call the result to unsubscribe.

        A slow callback blocks nothing: beyond 1,024 pending ticks, ticks are dropped and counted (`dropped`).
        """
        return self._runtime.on_tick(callback)

    def on_request_done(self, callback: Callable[[RequestMeasures], object]) -> Subscription[Terminal]:
        """Call `callback` with the measurements of every request at its end; otherwise like `on_tick`."""
        return self._runtime.on_request_done(lambda end: callback(measures_of(end)))

    @property
    def description(self) -> Mapping[str, Any]:
        """What was loaded, and the origin of each setting."""
        return self._opened.description

    @property
    def worker_pid(self) -> int | None:
        """The process that runs the model; None if it is this one, or while a dead worker is replaced."""
        return self._opened.process.pid if isinstance(self._opened, ChildModel) else None

    def close(self) -> None:
        self._opened.close()
        if self._event_log is not None:
            self._event_log.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ----------------------------------------------------------------------------------

    @property
    def _loaded(self) -> OpenModel:
        if isinstance(self._opened, EmbeddingRuntime):
            raise UnsupportedByModelError(
                f"{self._opened.making.name} is {self._opened.what}: it does not generate text",
                hint="name a language model",
            )
        return self._opened

    @property
    def _runtime(self) -> Runtime:
        return self._loaded.runtime

    @property
    def _tokenizer(self) -> Tokenizer:
        opened = self._opened
        return opened.tokenizer if isinstance(opened, EmbeddingRuntime) else opened.runtime.tokenizer

    def _vectors(self, failing: str) -> EmbeddingRuntime:
        if isinstance(self._opened, EmbeddingRuntime):
            return self._opened
        name, kind = (self._opened.description.get(key, "") for key in ("model", "kind"))
        raise UnsupportedByModelError(
            f"{name or 'this'} is a {kind or 'text'} language model without a pooling type: it {failing}",
            hint="name an embedding model, e.g. all-MiniLM-L6-v2, or a reranker",
        )

    @property
    def _window(self) -> int:
        """Requests submitted at a time: enough to fill the slots, few enough not to be rejected."""
        limits = self._runtime.limits
        return min(2 * limits.in_flight_max, limits.in_flight_max + limits.max_queue)

    def _parse(self, options: Mapping[str, Any]) -> RequestOptions:
        loaded = self._loaded
        return parse(options, eos=self._runtime.tokenizer.eos, seed=loaded.seed, drafts=loaded.drafts)

    def _chat_prompt(
        self, messages: str | Messages, tools: Messages | None, images: Sequence[Media] = ()
    ) -> Prompt:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        shown, media = with_images(messages, images)
        check_media(self._loaded, media)
        return self._runtime.text.chat_prompt(shown, tools, scope="", media=media)

    def _text_prompt(self, prompt: TextOrTokens) -> Prompt:
        if isinstance(prompt, str):
            return self._runtime.text.text_prompt(prompt, scope="")
        return Prompt(PromptTokens(array("i", prompt)))

    def _any_prompt(self, prompt: str | Messages, images: Sequence[Media]) -> Prompt:
        if isinstance(prompt, str) and not images:
            return self._text_prompt(prompt)
        return self._chat_prompt(prompt, None, images)

    def _streamed(
        self, prompt: str | Messages, options: Mapping[str, Any], images: Sequence[Media]
    ) -> PreparedRequest:
        return replace(self._call(self._any_prompt(prompt, images), self._parse(options)), streamed=True)

    def _call(self, prompt: Prompt, options: RequestOptions) -> PreparedRequest:
        params = replace(options.params, max_tokens=options.max_tokens or ANSWER_TOKENS)
        call = PreparedRequest(
            prompt=prompt,
            params=params,
            stops=options.stops,
            priority=options.priority,
            tenant=options.tenant,
            cache_salt=options.cache_salt,
            timeout_s=options.timeout_s,
            adapters=self._runtime.adapter_group(options.lora),
            held=self._runtime.compile_grammar(params.grammar),
        )
        runtime = self._runtime
        return with_media(runtime, call) if prompt.files and isinstance(runtime, ModelRuntime) else call

    def _calls(self, prompt: Prompt, options: RequestOptions) -> list[PreparedRequest]:
        """One call, or n that share the first one's prompt and differ in their seed."""
        first = self._call(prompt, options)
        if options.n == 1:
            return [first]
        parent = self._runtime.new_id()
        seeds = [replace(first.params, seed=first.params.seed + i) for i in range(options.n)]
        forks = [replace(first, params=params, fork_of=parent) for params in seeds[1:]]
        return [replace(first, request_id=parent), *forks]

    def _one(self, prompt: Prompt, options: Mapping[str, Any]) -> Completion:
        if options.get("n") not in (None, 1):
            raise InvalidRequestError("n needs generate or chat_many", hint="they return a list")
        return self._many([prompt], options)[0]

    def _many(
        self,
        prompts: Sequence[Prompt],
        options: Mapping[str, Any],
        each: Sequence[Mapping[str, Any]] | None = None,
        *,
        detokenize: bool = True,
    ) -> list[Completion]:
        if each is not None and len(each) != len(prompts):
            raise InvalidRequestError(
                f"{len(each)} sets of options for {len(prompts)} prompts", hint="give one for each prompt"
            )
        parsed = [self._parse(options)] * len(prompts) if each is None else []
        parsed += [self._parse({**options, **own}) for own in each or ()]
        for prompt in prompts:
            self._runtime.text.check_length(prompt)
        calls = [call for at, prompt in enumerate(prompts) for call in self._calls(prompt, parsed[at])]
        if not detokenize:
            for call in calls:
                check_ids_only(call)
        with ProgressBar(len(calls), enabled=len(calls) > 1 and sys.stderr.isatty()) as progress:
            completions = run_calls(
                self._runtime, calls, progress, window=self._window, detokenize=detokenize
            )
        for completion in completions:
            if completion.error is not None:
                raise completion.error
        return completions
