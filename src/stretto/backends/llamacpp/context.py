"""A llama_context with a guard before every call that could end the process.

llama.cpp aborts on a batch that is too large, on too many outputs, on an unknown sequence id and on a partial
copy between streams: each is an InvariantError before the call. One thread at a time. Freed by `close` or
when collected; `rebuild` replaces it after a fatal error.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.llamacpp.attention import UNMEASURED, Machine, Measured
from stretto.backends.llamacpp.model import LoadWarning, Model
from stretto.backends.llamacpp.native.batch import Batch, EmbeddingBatch, Rows
from stretto.backends.llamacpp.native.library import forget_log, last_error, library, log_lines
from stretto.backends.llamacpp.options import ROPE_SCALING, ContextOptions
from stretto.backends.llamacpp.plan import ContextPlan, resolve
from stretto.core.request import AdapterGroup
from stretto.errors import ContextError, InvariantError
from stretto.model_files.tensor_types import BY_NAME

WHOLE, STATE_ONLY = 0, 1  # llama_state_seq flags; ON_DEVICE (2) aborts on bad data and is never used
N_CTX_MAX = 1 << 31
_BYTES = ctypes.POINTER(ctypes.c_uint8)


class Context:
    def __init__(
        self,
        model: Model,
        options: ContextOptions,
        *,
        on_node: Any = None,
        machine: Machine | None = None,
        measured: Measured = UNMEASURED,
    ) -> None:
        """`on_node`: a callback that llama.cpp calls at the nodes of its graphs (see `pausable_pass`).

        `machine`: resolve the options as on another machine, for tests. `measured`: which attention is
        faster on this one.
        """
        self.lib = library()
        self._on_node = on_node
        self.model = model
        self.weights = model.weights
        self.options = options
        self.plan = resolve(model, options, machine, measured)
        self.vocab = model.vocabulary.vocab_size
        self._outputs = 0
        self._logits: NDArray[np.float32] = np.empty((0, self.vocab), dtype=np.float32)
        self._logits_place = (0, 0)  # address and rows
        self._finalizer: weakref.finalize[..., Context] | None = None
        self._create()

    # --- life ------------------------------------------------------------------------------------

    def _create(self) -> None:
        plan, lib = self.plan, self.lib
        if plan.n_ctx >= N_CTX_MAX:
            raise ContextError(f"{plan.n_ctx} tokens of context are more than llama.cpp can count")
        forget_log()
        params = _native(lib, plan)
        if self._on_node is not None:
            params.cb_eval = self._on_node
        handle = lib.llama_init_from_model(self.weights.handle, params)
        if not handle:
            raise ContextError(f"no context of {plan.n_seq_max} × {plan.window} tokens: {last_error()}")
        self._handle = handle
        self._finalizer = weakref.finalize(self, _free, lib, handle, self.weights)
        self._memory = lib.llama_get_memory(handle)
        if not self._memory:
            self.close()
            raise ContextError("this model has no KV memory: it cannot generate")
        self.flash_attention = plan.flash_attention and not _says_flash_off()
        self.n_seq_max = int(lib.llama_n_seq_max(handle))
        self.n_ctx_seq = int(lib.llama_n_ctx_seq(handle))
        self.n_batch = int(lib.llama_n_batch(handle))
        self.n_ubatch = int(lib.llama_n_ubatch(handle))
        self.pool_tokens = int(lib.llama_n_ctx(handle)) if plan.unified else 0
        self.window = min(plan.window, self.n_ctx_seq)
        self.outputs_max = min(plan.n_outputs_max, self.n_batch)
        self._batch = Batch(lib, self.n_batch)
        self.adapters: AdapterGroup = ()  # that the next pass computes with

    def rebuild(self) -> None:
        """Replace the native context: every sequence is empty afterwards."""
        self.close()
        self._create()

    def close(self) -> None:
        if self._finalizer is not None:
            self._finalizer()

    @property
    def closed(self) -> bool:
        return self._finalizer is None or not self._finalizer.alive

    @property
    def warnings(self) -> tuple[LoadWarning, ...]:
        if self.plan.flash_attention and not self.flash_attention:
            off = LoadWarning("flash_attention_off", "this model runs without flash attention")
            return (*self.plan.warnings, off)
        return self.plan.warnings

    @property
    def handle(self) -> Any:
        if self.closed:
            raise InvariantError("context used after close()")
        return self._handle

    # --- passes ----------------------------------------------------------------------------------

    def decode(self, rows: Rows) -> int:
        """llama_decode: 0 done, 1 no room and nothing changed, -1 refused, below that unusable."""
        if not 0 < len(rows) <= self.n_batch:
            raise InvariantError(f"{len(rows)} rows in a batch of {self.n_batch}")
        if rows.outputs_count > self.outputs_max:
            raise InvariantError(f"{rows.outputs_count} outputs of {self.outputs_max} in one pass")
        if min(rows.sequences) < 0 or max(rows.sequences) >= self.n_seq_max:
            raise InvariantError(f"a sequence id outside 0 to {self.n_seq_max - 1}")
        if min(rows.tokens) < 0 or max(rows.tokens) >= self.vocab:
            raise InvariantError("a token outside the vocabulary")
        self._outputs = rows.outputs_count
        return int(self.lib.llama_decode(self.handle, self._batch.fill(rows)))

    def decode_rows(
        self, data: bytes | memoryview, sequence: int, positions: array[int], *, whole: bool
    ) -> int:
        """llama_decode of embeddings, without outputs; `whole`: in both directions, in one ubatch.

        `positions`: one of each row, with M-RoPE four planes of them.
        """
        self._check(sequence)
        rows = len(positions) // self.model.position_planes
        if not 0 < rows <= (self.n_ubatch if whole else self.n_batch):
            raise InvariantError(f"{rows} rows of media in a batch of {self.n_batch}")
        batch = EmbeddingBatch(self.lib, data, rows, sequence, positions)
        self._outputs = 0
        if whole:
            self.lib.llama_set_causal_attn(self.handle, False)
        try:
            return int(self.lib.llama_decode(self.handle, batch.native))
        finally:
            if whole:
                self.lib.llama_set_causal_attn(self.handle, True)

    def logits(self) -> NDArray[np.float32]:
        """One row for each output of the last pass, in the order of its rows; valid until the next pass."""
        if not self._outputs:
            return np.empty((0, self.vocab), dtype=np.float32)
        pointer = self.lib.llama_get_logits(self.handle)
        if not pointer:
            raise InvariantError("a pass with outputs has no logits")
        place = (ctypes.addressof(pointer.contents), self._outputs)
        if place != self._logits_place:  # the same memory, pass after pass
            cells: Any = (ctypes.c_float * (self._outputs * self.vocab)).from_address(place[0])
            self._logits = np.frombuffer(cells, dtype=np.float32).reshape(self._outputs, self.vocab)
            self._logits_place = place
        return self._logits

    def set_adapters(self, group: AdapterGroup, handles: Sequence[Any]) -> None:
        """Compute with these adapters from the next pass on; `handles` are those of the group, in order."""
        if group == self.adapters:
            return
        count = len(handles)
        scales = (ctypes.c_float * count)(*(use.scale for use in group))
        code = self.lib.llama_set_adapters_lora(
            self.handle, (self.lib.llama_adapter_lora_p_ctypes * count)(*handles), count, scales
        )
        if code != 0:
            raise InvariantError(f"llama.cpp does not take adapters {[use.name for use in group]}")
        self.adapters = group

    def set_threads(self, count: int, count_batch: int) -> None:
        self.lib.llama_set_n_threads(self.handle, count, count_batch)

    # --- memory ----------------------------------------------------------------------------------

    def remove(self, sequence: int, position: int) -> bool:
        """Remove the rows from this position on (0: all of them). False if the model cannot."""
        self._check(sequence)
        _ = self.handle
        begin = -1 if position == 0 else position
        return bool(self.lib.llama_memory_seq_rm(self._memory, sequence, begin, -1))

    def clear(self) -> None:
        """Remove all rows of every sequence and zero the cells: removing alone leaves the values there."""
        _ = self.handle
        self.lib.llama_memory_clear(self._memory, True)

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy a whole sequence; in a unified pool only its first `length` rows, where it can be trimmed.

        After pictures with M-RoPE a few more: positions are never ahead of rows.
        """
        self._check(source, target)
        _ = self.handle
        ranged = self.plan.unified and not (self.model.is_hybrid or self.model.is_recurrent)
        begin, end = (0, length) if ranged else (-1, -1)
        self.lib.llama_memory_seq_cp(self._memory, source, target, begin, end)

    def positions(self, sequence: int) -> tuple[int, int]:
        """The first and last position that the memory holds; -1 if it is empty."""
        self._check(sequence)
        _ = self.handle
        first = int(self.lib.llama_memory_seq_pos_min(self._memory, sequence))
        return first, int(self.lib.llama_memory_seq_pos_max(self._memory, sequence))

    def state_size(self, sequence: int, flags: int) -> int:
        self._check(sequence)
        return int(self.lib.llama_state_seq_get_size_ext(self.handle, sequence, flags))

    def read_state(self, sequence: int, target: NDArray[np.uint8], flags: int) -> int:
        """Bytes written into `target`; 0 is a failure."""
        self._check(sequence)
        pointer = ctypes.cast(target.ctypes.data, _BYTES)
        return int(self.lib.llama_state_seq_get_data_ext(self.handle, pointer, len(target), sequence, flags))

    def write_state(self, sequence: int, source: NDArray[np.uint8], flags: int) -> int:
        """Bytes read from `source`; 0 is a failure, after which the sequence must be cleared."""
        self._check(sequence)
        pointer = ctypes.cast(source.ctypes.data, _BYTES)
        return int(self.lib.llama_state_seq_set_data_ext(self.handle, pointer, len(source), sequence, flags))

    def _check(self, *sequences: int) -> None:
        if not all(0 <= sequence < self.n_seq_max for sequence in sequences):
            raise InvariantError(f"sequence {sequences} outside 0 to {self.n_seq_max - 1}")


def _free(lib: Any, handle: Any, weights: object) -> None:  # noqa: ARG001
    """`weights` is referenced until here: a context must not outlive its model."""
    lib.llama_free(handle)


def _says_flash_off() -> bool:
    """llama.cpp turns flash attention off for a few models, and reports it only in its log."""
    said = [line for line in log_lines() if "flash_attn" in line and "llama_context" in line]
    return any("disabled" in line or "forcing off" in line for line in said)


def _native(lib: Any, plan: ContextPlan) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = plan.n_ctx
    params.n_batch = plan.n_batch
    params.n_ubatch = plan.n_ubatch
    params.n_seq_max = plan.n_seq_max
    params.n_outputs_max = plan.n_outputs_max
    params.n_threads = plan.n_threads
    params.n_threads_batch = plan.n_threads_batch
    params.flash_attn_type = int(plan.flash_attention)
    params.type_k = BY_NAME[plan.cache_type_k].number
    params.type_v = BY_NAME[plan.cache_type_v].number
    params.kv_unified = plan.unified
    params.swa_full = plan.swa_full
    params.offload_kqv = plan.offload_kqv
    params.op_offload = plan.op_offload
    for name, value in plan.rope.items():
        number = ROPE_SCALING[value] if isinstance(value, str) else value
        setattr(params, name, int(number) if name in ("yarn_orig_ctx", "rope_scaling_type") else number)
    return params
