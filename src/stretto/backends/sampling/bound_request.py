"""A request bound to a slot: its output so far, its sampler and its drafts.

The sampler is a function of tokens: if the output index asked for is not the next one (a pass failed after
sampling, a slot was rebuilt), it is made anew from the tokens. Samples row by row, and stops at a wrong
draft.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.backends.sampling.drafts import Drafter, Proposal, RecentAnswers
from stretto.core.request import Request
from stretto.core.tick import Binding
from stretto.errors import BadOutputError, InvariantError


class SamplerLike(Protocol):
    @property
    def greedy(self) -> bool: ...
    @property
    def lowered(self) -> frozenset[int]: ...
    def sample(self, logits: NDArray[np.float32], index: int) -> Any: ...
    def accept(self, token: int) -> None: ...


MakeSampler = Callable[[Request, "array[int]"], SamplerLike]


class SpanResult(NamedTuple):
    """The result of a span's output rows."""

    tokens: list[int]
    extras: list[object]


class BoundRequest:
    def __init__(
        self,
        binding: Binding,
        make_sampler: MakeSampler,
        *,
        drafts_max: int,
        recent: RecentAnswers | None = None,
    ) -> None:
        self.request = binding.request
        self.prompt = len(binding.request.tokens)  # its number of tokens
        self._output = array("i", binding.generated)
        self._make = make_sampler
        self._sampler: SamplerLike | None = None
        self._drafter: Drafter | None = None  # made when drafts are first wanted
        self._recent = recent
        self._drafts_max = min(binding.request.params.draft_tokens, drafts_max)
        params = binding.request.params
        self._stops = frozenset() if params.ignore_eos else params.stop_token_ids

    def __len__(self) -> int:
        """Known tokens: the prompt and what was generated."""
        return self.prompt + len(self._output)

    @property
    def in_main_context(self) -> bool:
        """Whether all of its rows run there: logprobs of the prompt are wanted, or it has media."""
        return self.request.params.prompt_logprobs >= 0 or bool(self.request.media)

    def text_before(self, position: int) -> int:
        """Tokens before this position, back to the last row of media: those that may run again."""
        ends = [item.end for item in self.request.media if item.end <= position]
        return position - ends[-1] if ends else position

    def known(self, begin: int, end: int) -> array[int]:
        """The tokens at these positions, of the prompt and of the output."""
        tokens = array("i", self.request.tokens[begin:end])
        tokens.extend(self._output[max(0, begin - self.prompt) : max(0, end - self.prompt)])
        return tokens

    def at(self, index: int) -> SamplerLike:
        """The sampler for output `index`, with every token before it accepted."""
        if index > len(self._output):
            raise InvariantError(
                f"{self.request.id}: output {index} asked for, {len(self._output)} are known"
            )
        if self._sampler is None or index < len(self._output):
            del self._output[index:]
            self._sampler = self._make(self.request, array("i", self._output))
        return self._sampler

    def take(self, sampler: SamplerLike, token: int) -> None:
        sampler.accept(token)
        self._output.append(token)

    def index_of(self, position: int) -> int:
        """The output index of the token sampled from the row at `position`."""
        return position + 1 - self.prompt

    def sample(self, logits: NDArray[np.float32], rows: Sequence[int], position: int) -> SpanResult:
        """One token for each row of `logits`, as long as the draft in the next row was right.

        `rows` are the span's own last tokens, `position` is that of the first of them.
        """
        tokens: list[int] = []
        extras: list[object] = []
        for at, row in enumerate(logits):
            index = self.index_of(position + at)
            sampler = self.at(index)
            got = sampler.sample(row, index)
            token = int(got.token)
            if not 0 <= token < len(row):
                raise InvariantError(f"a sampler returned token {token}")
            self.take(sampler, token)
            tokens.append(token)
            extras.append(got.logprobs)
            if token in self._stops or (at + 1 < len(rows) and rows[at + 1] != token):
                break
        return SpanResult(tokens, extras)

    def take_best(self, token: int, position: int) -> bool:
        """Take the best token of a row, found for many rows at once. False: the sampler must decide."""
        sampler = self.at(self.index_of(position))
        if token in sampler.lowered:
            return False
        self.take(sampler, token)
        return True

    @property
    def drafts(self) -> bool:
        return self._drafts_max > 0

    @property
    def output(self) -> array[int]:
        return self._output

    def propose(self) -> Proposal | None:
        """Tokens that may follow what is known, by lookup; None if nothing was found."""
        if not self._drafts_max:
            return None
        if self._drafter is None or len(self._drafter) > len(self):
            self._drafter = self._make_drafter()
        self._drafter.extend(self._output[len(self._drafter) - self.prompt :])
        found = self._drafter.propose(self._drafts_max)
        return _before_media(found) if found is not None and self.request.media else found

    def _make_drafter(self) -> Drafter:
        request = self.request
        others = self._recent.of(request.scope) if self._recent is not None else ()
        return Drafter(self.known(0, len(self)), predicted=request.predicted, others=others)


def _before_media(found: Proposal) -> Proposal | None:
    """What was found may run into rows of media, which are no tokens."""
    count = next((at for at, token in enumerate(found.tokens) if token < 0), len(found.tokens))
    return found._replace(tokens=found.tokens[:count]) if count else None


BAD_OUTPUT = BadOutputError.code
