"""Contexts that turn token sequences into vectors or scores: llama.cpp with pooling.

One set of weights serves several contexts; each belongs to one thread at a time. A batch holds whole inputs,
one after the other, each as a sequence of its own. Models without KV memory (BERT) encode a batch in one
pass. Causal models decode it; where only the last token counts, an input longer than a pass takes several.
Every call that could end the process is guarded, as in `context`.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.model import Model
from stretto.backends.llamacpp.native.batch import Batch, Rows
from stretto.backends.llamacpp.native.library import forget_log, last_error, library
from stretto.backends.llamacpp.native.openmp_team import release_team
from stretto.errors import (
    BadOutputError,
    ContextError,
    InvariantError,
    PassFailedError,
    UnsupportedByModelError,
)

SEQUENCES_MAX = 64
PASS_TOKENS_CAUSAL = 512
WINDOW_AUTO_MAX = 2048
OUTPUT_BYTES_AUTO_MAX = (
    512 << 20
)  # llama.cpp clears a row of logits for every token, also where none are made
WINDOW_AUTO_MIN = 512


class Pooling(IntEnum):
    """How the states of tokens become one vector, by the file; llama.cpp's numbers."""

    NONE = 0
    MEAN = 1
    CLS = 2
    LAST = 3
    RANK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOptions:
    context_window: int = 0  # tokens of one input; 0: the model's own, at most 2048 and as memory allows
    sequences_max: int = SEQUENCES_MAX
    n_threads: int = 1
    flash_attention: str = "auto"


def pooling_of(model: Model) -> Pooling:
    """The pooling that the file names; an error for a model without one."""
    shape = model.shape
    if shape.pooling not in set(Pooling) or shape.pooling == Pooling.NONE:
        what = "embedding" if not shape.causal else f"text ({shape.kind.value})"
        raise UnsupportedByModelError(
            f"{model.file.path.name} is a {shape.architecture} {what} model whose file names no pooling: "
            "it makes no embeddings",
            hint="name an embedding model, e.g. all-MiniLM-L6-v2 (`stretto pull demo`)",
        )
    return Pooling(shape.pooling)


def window_of(model: Model, wanted: int) -> int:
    """Most tokens of one input."""
    trained = model.n_ctx_train
    if wanted:
        return min(wanted, trained)
    affordable = OUTPUT_BYTES_AUTO_MAX // (4 * model.vocabulary.vocab_size)
    return min(trained, WINDOW_AUTO_MAX, max(affordable, WINDOW_AUTO_MIN))


@dataclass(frozen=True, slots=True)
class Marks:
    """Tokens that the model's tokenizer adds before, after, and between the two texts of a pair."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    between: tuple[int, ...]


def marks_of(model: Model) -> Marks:
    """Found by tokenizing a short text with and without them.

    A pair is `[CLS] a [SEP] b [SEP]` for BERT and `<s> a </s></s> b </s>` for RoBERTa's family.
    """
    lib = library()
    vocab = lib.llama_model_get_vocab(model.weights.handle)
    plain, marked = (_tokenized(lib, vocab, b"a", marks=marks) for marks in (False, True))
    places = range(len(marked) - len(plain) + 1)
    at = next((at for at in places if marked[at : at + len(plain)] == plain), None)
    if at is None:
        raise InvariantError("the tokenizer changes a text when it adds special tokens")
    before, after = tuple(marked[:at]), tuple(marked[at + len(plain) :])
    doubled = lib.llama_vocab_get_add_eos(vocab) and lib.llama_vocab_get_add_sep(vocab)
    return Marks(before, after, (*after, int(lib.llama_vocab_sep(vocab))) if doubled else after)


def _tokenized(lib: Any, vocab: Any, text: bytes, *, marks: bool) -> list[int]:
    room = 16
    buffer = (ctypes.c_int32 * room)()
    count = int(lib.llama_tokenize(vocab, text, len(text), buffer, room, marks, False))
    return list(buffer[: max(count, 0)])


class EmbeddingContext:
    """`run` is the whole interface. `rebuild` after a failure; freed by `close` or when collected."""

    def __init__(self, model: Model, options: EmbeddingOptions | None = None) -> None:
        options = options or EmbeddingOptions()
        self._lib = library()
        self._model = model
        self._options = options
        self.pooling = pooling_of(model)
        self.window = window_of(model, options.context_window)
        causal = model.shape.causal
        self._splits = causal and self.pooling in (Pooling.LAST, Pooling.RANK)
        self.pass_tokens_max = min(self.window, PASS_TOKENS_CAUSAL) if self._splits else self.window
        self.sequences_max = max(1, min(options.sequences_max, self.pass_tokens_max))
        self._finalizer: weakref.finalize[..., EmbeddingContext] | None = None
        self._create()

    # --- life ------------------------------------------------------------------------------------

    def _create(self) -> None:
        lib, weights = self._lib, self._model.weights
        forget_log()
        handle = lib.llama_init_from_model(weights.handle, self._native())
        if not handle:
            raise ContextError(f"no embedding context of {self.window} tokens: {last_error()}")
        self._handle = handle
        self._finalizer = weakref.finalize(self, _free, lib, handle, weights)
        self._memory = lib.llama_get_memory(handle)
        ranks = self.pooling is Pooling.RANK
        model_handle = weights.handle
        self.width = int(
            lib.llama_model_n_cls_out(model_handle) if ranks else lib.llama_model_n_embd_out(model_handle)
        )
        self._batch = Batch(lib, int(lib.llama_n_ubatch(handle)))

    def _native(self) -> Any:
        params = self._lib.llama_context_default_params()
        params.n_ctx = self.window
        params.n_batch = params.n_ubatch = self.pass_tokens_max
        params.n_seq_max = self.sequences_max
        params.n_threads = params.n_threads_batch = self._options.n_threads
        params.embeddings = True
        params.pooling_type = int(self.pooling)
        params.kv_unified = True  # streams would split a pass, and take a mean over a part
        params.flash_attn_type = {"auto": -1, "on": 1, "off": 0}[self._options.flash_attention]
        return params

    def rebuild(self) -> None:
        self.close()
        self._create()

    def rest(self) -> None:
        release_team()

    def close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()

    @property
    def closed(self) -> bool:
        return self._finalizer is None or not self._finalizer.alive

    # --- passes ----------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """One row for each input: its pooled state, or its class scores. Not normalized."""
        if self.closed:
            raise InvariantError("embedding context used after close()")
        rows = self._rows(inputs)
        if self._memory:
            self._lib.llama_memory_clear(self._memory, False)
        for start in range(0, len(rows), self.pass_tokens_max):
            self._pass(_part(rows, start, start + self.pass_tokens_max))
        vectors = np.stack([self._vector(sequence) for sequence in range(len(inputs))])
        if not np.isfinite(vectors).all():
            raise BadOutputError(
                "the model's vector is not finite", hint="check the model file and the input"
            )
        return vectors

    def _rows(self, inputs: Sequence[Sequence[int]]) -> Rows:
        counts = [len(tokens) for tokens in inputs]
        total = sum(counts)
        fits = total <= self.pass_tokens_max or (self._splits and len(inputs) == 1 and total <= self.window)
        if not inputs or len(inputs) > self.sequences_max or min(counts) < 1 or not fits:
            raise InvariantError(f"{len(inputs)} inputs of {total} tokens do not fit one pass")
        tokens = array("i", chain.from_iterable(inputs))
        if min(tokens) < 0 or max(tokens) >= self._model.vocabulary.vocab_size:
            raise InvariantError("a token outside the vocabulary")
        return Rows(
            spans=[],
            tokens=tokens,
            positions=array("i", chain.from_iterable(map(range, counts))),
            sequences=array("i", chain.from_iterable(map(repeat, range(len(inputs)), counts))),
            outputs=array("b", repeat(1, total)),
            outputs_count=total,
        )

    def _pass(self, rows: Rows) -> None:
        forget_log()
        run = self._lib.llama_decode if self._memory else self._lib.llama_encode
        code = int(run(self._handle, self._batch.fill(rows)))
        if code:
            raise PassFailedError(
                f"llama.cpp could not embed {len(rows)} tokens (code {code}): {last_error()}"
            )

    def _vector(self, sequence: int) -> NDArray[np.float32]:
        pointer = self._lib.llama_get_embeddings_seq(self._handle, sequence)
        if not pointer:
            raise PassFailedError("llama.cpp returned no vector for an input")
        cells: Any = (ctypes.c_float * self.width).from_address(ctypes.addressof(pointer.contents))
        vector: NDArray[np.float32] = np.frombuffer(cells, dtype=np.float32)
        return vector.copy()  # the next pass overwrites it


def _part(rows: Rows, start: int, end: int) -> Rows:
    count = len(rows.tokens[start:end])
    return Rows(
        spans=[],
        tokens=rows.tokens[start:end],
        positions=rows.positions[start:end],
        sequences=rows.sequences[start:end],
        outputs=rows.outputs[start:end],
        outputs_count=count,
    )


def _free(lib: Any, handle: Any, weights: object) -> None:  # noqa: ARG001
    """`weights` is referenced until here: a context must not outlive its model."""
    lib.llama_free(handle)
