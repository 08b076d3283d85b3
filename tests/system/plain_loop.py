"""A plain one-sequence llama.cpp loop without our code: the reference for greedy text.

If our kernels are interposed, they are disabled while it computes, unless `own_kernels` asks for them.
"""

from __future__ import annotations

import ctypes
from contextlib import nullcontext

import numpy as np

from stretto.backends.llamacpp.kernels.interpose import disabled, install
from stretto.settings.places import cache_home

install(cache_home())  # before llama.cpp is loaded, or the backend could not use them either

import llama_cpp  # noqa: E402


@llama_cpp.llama_log_callback
def _silence(level: int, text: bytes, user_data: object) -> None:
    """Discards llama.cpp's log."""


class PlainLoop:
    """All options but `threads` must match the backend: other kernels differ by tenths."""

    def __init__(
        self,
        path: str,
        *,
        special_buffers: bool,
        row_attention: bool = False,
        own_kernels: bool = False,
        window: int = 2048,
        threads: int = 2,
    ) -> None:
        self._kernels = nullcontext if own_kernels else disabled
        llama_cpp.llama_log_set(_silence, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = special_buffers
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        assert self._model, "the reference does not load"
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = window
        context.n_batch = 512
        context.n_ubatch = 56 if row_attention else 512
        context.n_threads = context.n_threads_batch = threads
        context.flash_attn_type = int(
            row_attention
        )  # else, as our slots run on a CPU, without flash attention
        self._context = llama_cpp.llama_init_from_model(self._model, context)
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._size = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._memory = llama_cpp.llama_get_memory(self._context)

    def _decode(self, tokens: list[int]) -> np.ndarray:
        """Logits after these tokens, which continue the sequence."""
        for start in range(0, len(tokens), 512):
            part = tokens[start : start + 512]
            row = (llama_cpp.llama_token * len(part))(*part)
            with self._kernels():
                code = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(row, len(part)))
            assert code == 0, f"llama_decode answered {code}"
        pointer = llama_cpp.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(
            ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self._size,)
        ).copy()

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """The greedy continuation, to its end or to `count` tokens."""
        llama_cpp.llama_memory_clear(self._memory, True)
        logits = self._decode(prompt)
        output: list[int] = []
        while len(output) < count:
            token = int(logits.argmax())
            output.append(token)
            if llama_cpp.llama_vocab_is_eog(self._vocab, token):
                break
            logits = self._decode([token])
        return output

    def margin(self, prefix: list[int], token: int) -> float:
        """The gap between the maximum and this token's reference logit, teacher-forced on the prefix."""
        llama_cpp.llama_memory_clear(self._memory, True)
        logits = self._decode(prefix)
        return float(logits.max() - logits[token])

    def close(self) -> None:
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)
