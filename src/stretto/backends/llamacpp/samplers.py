"""Makes the sampler of a request, and the grammar matcher that it needs.

Knows the vocabulary. Building llguidance's view of it takes a few tenths of a second, so it happens once and
only when a grammar is asked for. Callers compile grammars (`grammars.compile`) on a thread of their own
before a request is accepted, so that no tick waits for one.
"""

from __future__ import annotations

import threading
from array import array
from typing import TYPE_CHECKING

import numpy as np

from stretto.backends.llamacpp.native.vocabulary import Vocabulary
from stretto.core.request import Request

if TYPE_CHECKING:
    from stretto.backends.sampling import Sampler
    from stretto.text.grammar_factory import GrammarFactory


class Samplers:
    """Called with a request and what it has generated. `grammars` may be used from any thread."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._suppressed = np.array(sorted(vocabulary.suppressed), dtype=np.int64)
        self._lock = threading.Lock()
        self._grammars: GrammarFactory | None = None

    def __call__(self, request: Request, generated: array[int]) -> Sampler:
        from stretto.backends.sampling import MatcherGuide, Sampler

        grammar = request.params.grammar
        return Sampler(
            request,
            generated,
            vocab=self._vocabulary.vocab_size,
            eos=self._vocabulary.eos,
            suppressed=self._suppressed,
            guide=MatcherGuide(self.grammars.matcher(grammar)) if grammar else None,
        )

    @property
    def grammars(self) -> GrammarFactory:
        with self._lock:
            if self._grammars is None:
                self._grammars = self._build()
            return self._grammars

    def _build(self) -> GrammarFactory:
        from stretto.text.grammar import build_ll_tokenizer
        from stretto.text.grammar_factory import GrammarFactory

        words = self._vocabulary
        tokens = range(words.vocab_size)
        tokenizer = build_ll_tokenizer(
            [words.token_bytes(token) for token in tokens],
            sorted(words.eos),
            control=[token for token in tokens if words.is_control(token)],
            encode=lambda text: words.encode(text, False),
        )
        return GrammarFactory(tokenizer, eos=words.eos)
