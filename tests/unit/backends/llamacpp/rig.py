"""Real llama.cpp on tiny models: a plain one-sequence loop as the reference, and a scheduler beside it.

A token of ours is right when, teacher-forced on the same text, the reference's logit for it is within
`TOLERANCE` of its best one: kernels add in another order when a batch has another size.
"""

from __future__ import annotations

import ctypes
import itertools
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from stretto.backends.base import complete
from stretto.backends.llamacpp import Context, ContextOptions, LlamaCppBackend, Model, ModelOptions, load
from stretto.backends.llamacpp.attention import Machine
from stretto.backends.llamacpp.media import Media
from stretto.backends.llamacpp.native.library import library
from stretto.core import invariants
from stretto.core.capabilities import Rewind
from stretto.core.limits import Limits
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Events, Idle, Note, Outcome, Terminal, Tick
from stretto.testing import tiny_models

TOLERANCE = 0.05
STATEFUL_KINDS = ("hybrid-qwen3next", "hybrid-mrope", "hybrid-granite", "hybrid-lfm2", "recurrent")
TEXT_KINDS = ("dense", "moe", "swa", "mrope", *STATEFUL_KINDS)


class GreedySampled(NamedTuple):
    token: int
    logprobs: object | None = None


class NotFinite(Exception):
    pass


class GreedySampler:
    """The least a sampler can be, for tests that are not about sampling."""

    greedy = True
    lowered: frozenset[int] = frozenset()

    def __init__(self, request: Request, generated: array[int]) -> None:
        self.accepted = array("i", generated)

    def sample(self, logits: np.ndarray, index: int) -> GreedySampled:
        assert index == len(self.accepted), "asked for an output that is not the next"
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise NotFinite
        return GreedySampled(best)

    def accept(self, token: int) -> None:
        self.accepted.append(token)


class SlowSampler(GreedySampler):
    """Takes the way of samplers that look at every logit."""

    greedy = False
    lowered: frozenset[int] = frozenset()


@lru_cache(maxsize=16)
def tiny(kind: str) -> Model:
    return load(tiny_models.make(kind), ModelOptions(n_gpu_layers=0), cache_dir=None, trial=False)


def options(**more) -> ContextOptions:
    defaults = {"n_seq_max": 4, "context_window": 512, "n_batch": 256, "n_ubatch": 64, "n_threads": 1}
    return ContextOptions(**defaults | more)


def make_backend(
    model: Model | str,
    *,
    sampler=GreedySampler,
    cache_ram_bytes: int = 64 << 20,
    machine: Machine | None = None,
    make_context: type[Context] = Context,
    media: Media | None = None,
    **more,
) -> LlamaCppBackend:
    model = tiny(model) if isinstance(model, str) else model
    backend = LlamaCppBackend(
        make_context(model, options(**more), machine=machine),
        make_sampler=sampler,
        cache_ram_bytes=cache_ram_bytes,
        media=media,
    )
    if backend.capabilities.rewind is not Rewind.CHECKPOINT:
        # Tiny models have F32 weights, whose products differ with the number of rows: no drafts, by rights.
        backend.drafting.drafts_max = backend.context.options.drafts_max
    return backend


class Reference:
    """One sequence, one context, no batching: what llama.cpp itself says. Token by token, or all at once."""

    def __init__(
        self,
        model: Model,
        *,
        window: int = 1024,
        flash: bool | None = None,
        swa_full: bool = True,
        n_ubatch: int = 512,
    ) -> None:
        self._lib = library()
        self._vocab = model.vocabulary.vocab_size
        params = self._lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = window, window, n_ubatch
        params.n_threads = params.n_threads_batch = 1
        stateful = model.is_hybrid or model.is_recurrent
        params.flash_attn_type = int(not stateful if flash is None else flash)
        params.swa_full = swa_full
        self._model = model
        self._context = self._lib.llama_init_from_model(model.weights.handle, params)
        assert self._context

    def _clear(self) -> None:
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)

    def _decode(self, tokens: Sequence[int]) -> None:
        buffer = (ctypes.c_int32 * len(tokens))(*tokens)
        assert self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(buffer, len(tokens))) == 0

    def _logits(self) -> np.ndarray:
        return np.ctypeslib.as_array(self._lib.llama_get_logits_ith(self._context, -1), (self._vocab,))

    def logprobs(self, tokens: Sequence[int]) -> list[float]:
        """Of each token but the first, after those before it."""
        self._clear()
        found: list[float] = []
        for token, after in itertools.pairwise(tokens):
            self._decode([token])
            logits = self._logits().astype(np.float64)
            found.append(float(logits[after] - logits.max() - np.log(np.exp(logits - logits.max()).sum())))
        return found

    def generate(self, prompt: Sequence[int], count: int, stops: frozenset[int] = frozenset()) -> list[int]:
        self._clear()
        self._decode(prompt)
        output: list[int] = []
        while True:
            output.append(int(self._logits().argmax()))
            if len(output) >= count or output[-1] in stops:
                return output
            self._decode(output[-1:])

    def gap(self, prompt: Sequence[int], output: Sequence[int]) -> float:
        """How far the worst token of `output` is from the reference's best, on the same text before it."""
        self._clear()
        self._decode(prompt)
        return self._gap(output)

    def _gap(self, output: Sequence[int]) -> float:
        worst = 0.0
        for token in output:
            logits = self._logits()
            worst = max(worst, float(logits.max() - logits[token]))
            self._decode([token])
        return worst

    def close(self) -> None:
        self._lib.llama_free(self._context)


def limits(cache: str, *, slots: int = 4, chunk: int = 512, shared_min: int = 8) -> Limits:
    """Nothing but the cache policy decides what is kept."""
    return Limits(
        n_seq_max=slots,
        n_batch=256,
        prefill_chunk=chunk,
        cache=cache,
        cache_min_tokens=shared_min,
        target_itl_s=10.0,
        cache_slot_timeout_s=1e6,
    )


class Loop:
    """Plan, launch, complete, commit, with the core's books checked after every tick."""

    def __init__(self, backend: LlamaCppBackend, limits: Limits | None = None, *, capabilities=None) -> None:
        can = capabilities or backend.capabilities
        self.backend = backend
        self.limits = limits or Limits(n_seq_max=can.sequences_max, n_batch=can.rows_max, target_itl_s=10.0)
        self.scheduler = Scheduler(self.limits, can)
        self.outputs: dict[str, list[int]] = {}
        self.extras: dict[str, list[object]] = {}
        self.ends: dict[str, Terminal] = {}
        self.notes: list[Note] = []
        self.outcomes: list[Outcome] = []
        self.ticks: list[Tick] = []
        self.now = 0.0

    def submit(self, *requests: Request) -> None:
        for request in requests:
            answer = self.scheduler.submit(request, self.now)
            assert answer.accepted, answer.error
            self.outputs[request.id] = []

    def step(self) -> bool:
        planned = self.scheduler.plan(self.now)
        if isinstance(planned, Idle):
            self._take(self.scheduler.take_events())
            return False
        self.backend.launch(planned)
        outcome = complete(self.backend, planned)
        self.now += outcome.pass_s + 1e-4
        self.ticks.append(planned)
        self.outcomes.append(outcome)
        self._take(self.scheduler.commit(outcome, self.now))
        invariants.check_books(self.scheduler)
        return True

    def run(self, *requests: Request, ticks_max: int = 3000) -> dict[str, list[int]]:
        self.submit(*requests)
        for _ in range(ticks_max):
            if not self.step():
                return self.outputs
        raise AssertionError("not done")

    def _take(self, events: Events) -> None:
        at = 0
        for request_id, count in zip(events.requests, events.counts, strict=True):
            self.outputs[request_id].extend(events.tokens[at : at + count])
            at += count
        for request_id, extra in events.extras.items():
            self.extras.setdefault(request_id, []).append(extra)
        self.ends |= {end.request_id: end for end in events.ends}
        self.notes += events.notes


def text(count: int, start: int = 0) -> array[int]:
    """Token ids that do not repeat soon; another `start`, another text from the first token on."""
    return array("i", [1000 + (start * 7919 + at * 104729 + at * at * 31) % 40000 for at in range(count)])


def ask(
    request_id: str,
    tokens: Sequence[int] | int,
    *,
    max_tokens: int = 12,
    boundaries: tuple[int, ...] = (),
    **params,
) -> Request:
    if isinstance(tokens, int):
        tokens = text(tokens, sum(request_id.encode()))
    return Request(
        id=request_id,
        tokens=array("i", tokens),
        params=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, **params),
        boundaries=boundaries,
    )
