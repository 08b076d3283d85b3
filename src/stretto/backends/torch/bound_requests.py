"""The requests bound to slots, and how each is sampled: on the device by the table, or on the host.

Most requests are sampled on the device. A grammar needs a mask from the host before each row, and near
`max_tokens` the host samples, because only it knows whether the text can still be completed. Options that the
device lacks (DRY, XTC, typical_p) are sampled on the host, from a copy of the logits, by the numpy sampler
shared with the llama.cpp backend. A request that cannot be bound fails alone, when its first token is due.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stretto.backends.torch.ops import SamplingMode, SamplingTable
from stretto.backends.torch.sampling_table import TOP_LOGPROBS_MAX
from stretto.core.request import SamplingParams
from stretto.core.tick import Binding
from stretto.errors import BadOutputError, InvalidTokenError, StrettoError

if TYPE_CHECKING:
    from stretto.text.grammar import GrammarMatcher
    from stretto.text.grammar_factory import GrammarFactory

MakeGrammars = Callable[[], "GrammarFactory"]


class DeviceRequest:
    """One request bound to a slot."""

    __slots__ = ("error", "matched", "matcher", "output", "params", "prompt", "request", "sampler")

    def __init__(self, binding: Binding) -> None:
        self.request = binding.request
        self.params = binding.request.params
        self.prompt = len(binding.request.tokens)
        self.output = array("i", binding.generated)
        self.error = ""  # the error code if this request cannot be sampled
        self.matcher: GrammarMatcher | None = None
        self.matched = 0  # output tokens that the matcher has consumed
        self.sampler: Any = None  # the host's bound request, if the host samples

    @property
    def is_tracked(self) -> bool:
        """Whether the host tracks its tokens."""
        return self.matcher is not None or self.sampler is not None

    def take(self, index: int, tokens: Iterable[int]) -> None:
        """Appends tokens from output `index` on."""
        del self.output[index:]
        self.output.extend(tokens)


class DeviceRequests:
    def __init__(
        self,
        table: SamplingTable,
        *,
        vocab: int,
        eos: frozenset[int],
        suppressed: frozenset[int] = frozenset(),
        make_grammars: MakeGrammars | None = None,
    ) -> None:
        self._table = table
        self._vocab = vocab
        self._eos = frozenset(token for token in eos if 0 <= token < vocab)
        self._suppressed = frozenset(token for token in suppressed if 0 <= token < vocab)
        self._make_grammars = make_grammars
        self._requests: dict[int, DeviceRequest] = {}
        self._special: dict[int, DeviceRequest] = {}  # with errors, grammars or host samplers
        self._mode: SamplingMode | None = None

    def __getitem__(self, slot: int) -> DeviceRequest:
        return self._requests[slot]

    def __contains__(self, slot: int) -> bool:
        return slot in self._requests

    def missing(self, slots: Iterable[int]) -> set[int]:
        """Of these slots, those without a request."""
        return set(slots) - self._requests.keys()

    @property
    def mode(self) -> SamplingMode:
        """The sampler features that the bound requests need."""
        if self._mode is None:
            params = [
                bound.params for bound in self._requests.values() if not bound.error and bound.sampler is None
            ]
            mode = SamplingMode.of(params)
            biases = bool(self._suppressed) or any(map(self._is_biased, params))
            best = (
                TOP_LOGPROBS_MAX if mode.logprobs > 0 else mode.logprobs
            )  # one graph per number would be too many
            self._mode = replace(mode, biases=biases, logprobs=best)
        return self._mode

    def _is_biased(self, params: SamplingParams) -> bool:
        held = self._eos if params.ignore_eos or params.min_tokens else frozenset()
        return bool(params.logit_bias or held or (params.min_tokens and params.stop_token_ids))

    @property
    def special(self) -> dict[int, DeviceRequest]:
        return self._special

    # --- bind and unbind -------------------------------------------------------------------------

    def unbind(self, slot: int) -> None:
        self._requests.pop(slot, None)
        self._special.pop(slot, None)
        self._mode = None

    def bind(self, binding: Binding) -> None:
        bound = DeviceRequest(binding)
        self.unbind(binding.slot)
        self._requests[binding.slot] = bound
        try:
            self._bind_sampling(bound, binding)
        except StrettoError as error:
            bound.error = error.code
        if bound.error or bound.is_tracked:
            self._special[binding.slot] = bound

    def _bind_sampling(self, bound: DeviceRequest, binding: Binding) -> None:
        params = bound.params
        if params.logit_bias and not all(0 <= token < self._vocab for token in params.logit_bias):
            raise InvalidTokenError(f"logit_bias names a token outside the vocabulary of {self._vocab}")
        if samples_on_host(params):
            bound.sampler = self._host_sampler(binding)
            return
        tokens = binding.request.tokens + binding.generated
        self._table.bind(binding.slot, params, tokens, eos=self._eos, suppressed=self._suppressed)
        if params.grammar:
            bound.matcher = self._grammars().matcher(params.grammar)
            bound.matcher.limit(params.max_tokens)

    def _grammars(self) -> GrammarFactory:
        if self._make_grammars is None:
            raise BadOutputError("grammars need a tokenizer, and this model has none")
        return self._make_grammars()

    def _host_sampler(self, binding: Binding) -> Any:
        from stretto.backends.sampling import MatcherGuide, Sampler
        from stretto.backends.sampling.bound_request import BoundRequest

        def make(request: Any, generated: array[int]) -> Sampler:
            grammar = request.params.grammar
            return Sampler(
                request,
                generated,
                vocab=self._vocab,
                eos=self._eos,
                suppressed=np.array(sorted(self._suppressed), dtype=np.int64),
                guide=MatcherGuide(self._grammars().matcher(grammar)) if grammar else None,
            )

        bound = BoundRequest(binding, make, drafts_max=0)
        bound.at(len(binding.generated))  # raises for unsupported parameters
        return bound

    # --- grammars --------------------------------------------------------------------------------

    def send_mask(self, slot: int, bound: DeviceRequest, index: int) -> None:
        """Sends the mask for output `index`, which depends on all tokens before it."""
        assert bound.matcher is not None
        try:
            if bound.matched > index or bound.matched > len(bound.output):
                bound.matcher.rebuild(bound.output[:index])
            else:
                for token in bound.output[bound.matched : index]:
                    bound.matcher.advance(token)
            bound.matched = index
            if bound.matcher.is_near_end(bound.params.max_tokens - index - 1):
                self._move_to_host(slot, bound, index)
            else:
                self._table.set_mask(slot, self._bits(bound.matcher))
        except StrettoError as error:
            bound.error = error.code

    def _move_to_host(self, slot: int, bound: DeviceRequest, index: int) -> None:
        """The last tokens of a guided text are sampled on the host, so that it ends within its limit."""
        bound.sampler = self._host_sampler(Binding(slot, bound.request, bound.output[:index]))
        bound.matcher = None
        self._mode = None

    def _bits(self, matcher: GrammarMatcher) -> torch.Tensor:
        bits = np.zeros(-(-self._vocab // 32) * 4, dtype=np.uint8)
        matcher.mask(bits)
        return torch.from_numpy(bits.view(np.int32))


def samples_on_host(params: SamplingParams) -> bool:
    odd = params.typical_p < 1 or params.xtc_probability > 0 or params.dry_multiplier > 0
    held = params.grammar and (params.min_tokens > 0 or params.ignore_eos)  # a grammar overrides those
    return bool(odd or held)


def accepted(sampled: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Of the tokens sampled for draft rows: those of accepted drafts (in `rows`), and one more."""
    kept: list[int] = []
    for at, token in enumerate(sampled):
        kept.append(token)
        if at + 1 < len(rows) and rows[at + 1] != token:
            break
    return kept
