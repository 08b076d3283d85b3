"""Who sits in which slot, and how its tokens are chosen: on the device by the table, or on the host.

Nearly every request is sampled on the device. A grammar needs its mask from the host before each row, and
near `max_tokens` the host samples, because only it can tell whether the text could still be closed. What the
device does not know (DRY, XTC, typical_p, drafts together with penalties or a grammar) is sampled on the host
by the same numpy sampler that the llama.cpp backend uses, from a copy of its logits. A request that cannot be
seated fails alone, when its first token is due.
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
    """One request in a slot."""

    __slots__ = ("error", "matched", "matcher", "output", "params", "prompt", "request", "sampler")

    def __init__(self, binding: Binding) -> None:
        self.request = binding.request
        self.params = binding.request.params
        self.prompt = len(binding.request.tokens)
        self.output = array("i", binding.generated)
        self.error = ""  # a code, where this request cannot be followed
        self.matcher: GrammarMatcher | None = None
        self.matched = 0  # tokens of the output that the matcher has seen
        self.sampler: Any = None  # the host's own request, where the host samples

    @property
    def is_tracked(self) -> bool:
        """Does the host follow its tokens?"""
        return self.matcher is not None or self.sampler is not None

    def take(self, index: int, tokens: Iterable[int]) -> None:
        """Tokens from output `index` on are part of the text."""
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
        self._bound: dict[int, DeviceRequest] = {}
        self._special: dict[
            int, DeviceRequest
        ] = {}  # errors, grammars and host samplers: the others need no look
        self._mode: SamplingMode | None = None

    def __getitem__(self, slot: int) -> DeviceRequest:
        return self._bound[slot]

    def __contains__(self, slot: int) -> bool:
        return slot in self._bound

    @property
    def mode(self) -> SamplingMode:
        """What the sampler must be able to do for those who are seated now."""
        if self._mode is None:
            params = [
                request.params
                for request in self._bound.values()
                if not request.error and request.sampler is None
            ]
            mode = SamplingMode.of(params)
            biases = bool(self._suppressed) or any(map(self._is_biased, params))
            best = (
                TOP_LOGPROBS_MAX if mode.logprobs > 0 else mode.logprobs
            )  # a graph for each number is too many
            self._mode = replace(mode, biases=biases, logprobs=best)
        return self._mode

    def _is_biased(self, params: SamplingParams) -> bool:
        held = self._eos if params.ignore_eos or params.min_tokens else frozenset()
        return bool(params.logit_bias or held or (params.min_tokens and params.stop_token_ids))

    @property
    def special(self) -> dict[int, DeviceRequest]:
        return self._special

    # --- coming and going ------------------------------------------------------------------------

    def unbind(self, slot: int) -> None:
        self._bound.pop(slot, None)
        self._special.pop(slot, None)
        self._mode = None

    def bind(self, binding: Binding) -> None:
        request = DeviceRequest(binding)
        self.unbind(binding.slot)
        self._bound[binding.slot] = request
        try:
            self._prepare(request, binding)
        except StrettoError as error:
            request.error = error.code
        if request.error or request.is_tracked:
            self._special[binding.slot] = request

    def _prepare(self, request: DeviceRequest, binding: Binding) -> None:
        params = request.params
        if params.logit_bias and not all(0 <= token < self._vocab for token in params.logit_bias):
            raise InvalidTokenError(f"logit_bias names a token outside the vocabulary of {self._vocab}")
        if samples_on_host(params):
            request.sampler = self._host_request(binding)
            return
        tokens = binding.request.tokens + binding.generated
        self._table.bind(binding.slot, params, tokens, eos=self._eos, suppressed=self._suppressed)
        if params.grammar:
            request.matcher = self._grammars().matcher(params.grammar)
            request.matcher.limit(params.max_tokens)

    def _grammars(self) -> GrammarFactory:
        if self._make_grammars is None:
            raise BadOutputError("this model has no tokenizer, so it cannot follow a grammar")
        return self._make_grammars()

    def _host_request(self, binding: Binding) -> Any:
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

        request = BoundRequest(binding, make, draft_cost=1.0, drafts_max=0)
        request.at(len(binding.generated))  # parameters that cannot be followed are found here
        return request

    # --- grammars --------------------------------------------------------------------------------

    def send_mask(self, slot: int, request: DeviceRequest, index: int) -> None:
        """The mask for output `index`, which needs all tokens before it."""
        assert request.matcher is not None
        try:
            if request.matched > index or request.matched > len(request.output):
                request.matcher.rebuild(request.output[:index])
            else:
                for token in request.output[request.matched : index]:
                    request.matcher.advance(token)
            request.matched = index
            if request.matcher.is_near_end(request.params.max_tokens - index - 1):
                self._move_to_host(slot, request, index)
            else:
                self._table.set_mask(slot, self._bits(request.matcher))
        except StrettoError as error:
            request.error = error.code

    def _move_to_host(self, slot: int, request: DeviceRequest, index: int) -> None:
        """The last tokens of a guided text are checked one by one, so that it closes before its limit."""
        request.sampler = self._host_request(Binding(slot, request.request, request.output[:index]))
        request.matcher = None
        self._mode = None

    def _bits(self, matcher: GrammarMatcher) -> torch.Tensor:
        bits = np.zeros(-(-self._vocab // 32) * 4, dtype=np.uint8)
        matcher.mask(bits)
        return torch.from_numpy(bits.view(np.int32))


def samples_on_host(params: SamplingParams) -> bool:
    odd = params.typical_p < 1 or params.xtc_probability > 0 or params.dry_multiplier > 0
    penalties = params.repeat_penalty != 1 or params.frequency_penalty or params.presence_penalty
    drafted = params.draft_tokens > 0 and (penalties or params.grammar)
    held = params.grammar and (params.min_tokens > 0 or params.ignore_eos)  # a grammar overrules those
    return bool(odd or drafted or held)


def accepted(sampled: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Of tokens sampled behind drafts: those whose drafts (in `rows`) were right, and one more."""
    kept: list[int] = []
    for at, token in enumerate(sampled):
        kept.append(token)
        if at + 1 < len(rows) and rows[at + 1] != token:
            break
    return kept
