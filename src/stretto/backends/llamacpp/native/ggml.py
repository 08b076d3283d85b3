"""ggml's functions, from the libraries that models compute with: for running single kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from stretto.backends.llamacpp.native.library import compute_functions
from stretto.errors import InvariantError

F32, F16, Q4_0, Q5_0, Q8_0, Q4_K, Q6_K = 0, 1, 2, 6, 8, 12, 14  # ggml's numbers
_CONTEXT_BYTES = 1 << 22
_BUFFER_OFFSET = 8  # of the field `buffer` in ggml_tensor, behind its type
_SOURCES_OFFSET = 152  # of the field `src`
_pointer, _number, _size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t


class _InitParams(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_init": (_pointer, [_InitParams]),
    "ggml_free": (None, [_pointer]),
    "ggml_new_tensor_4d": (_pointer, [_pointer, ctypes.c_int, *[_number] * 4]),
    "ggml_mul_mat": (_pointer, [_pointer] * 3),
    "ggml_flash_attn_ext": (_pointer, [*[_pointer] * 5, *[ctypes.c_float] * 3]),
    "ggml_gelu": (_pointer, [_pointer] * 2),
    "ggml_gelu_quick": (_pointer, [_pointer] * 2),
    "ggml_cast": (_pointer, [_pointer, _pointer, ctypes.c_int]),
    "ggml_permute": (_pointer, [*[_pointer] * 2, *[ctypes.c_int] * 4]),
    "ggml_nbytes": (_size, [_pointer]),
    "ggml_new_graph": (_pointer, [_pointer]),
    "ggml_build_forward_expand": (None, [_pointer] * 2),
    "ggml_backend_alloc_ctx_tensors": (_pointer, [_pointer] * 2),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_pointer, [_pointer] * 2),
    "ggml_backend_buft_name": (ctypes.c_char_p, [_pointer]),
    "ggml_backend_buffer_free": (None, [_pointer]),
    "ggml_backend_tensor_set": (None, [_pointer, _pointer, _size, _size]),
    "ggml_backend_tensor_get": (None, [_pointer, _pointer, _size, _size]),
    "ggml_backend_graph_compute": (ctypes.c_int, [_pointer] * 2),
    "ggml_backend_reg_dev_get": (_pointer, [_pointer, _size]),
    "ggml_backend_reg_get_proc_address": (_pointer, [_pointer, ctypes.c_char_p]),
    "ggml_backend_free": (None, [_pointer]),
    "ggml_backend_dev_supports_op": (ctypes.c_bool, [_pointer] * 2),
    "ggml_backend_buft_alloc_buffer": (_pointer, [_pointer, _size]),
    "ggml_row_size": (_size, [ctypes.c_int, _number]),
    "ggml_quantize_chunk": (_size, [ctypes.c_int, _pointer, _pointer, *[_number] * 3, _pointer]),
    "ggml_backend_cpu_init": (_pointer, []),
    "ggml_backend_cpu_set_n_threads": (None, [_pointer, ctypes.c_int]),
    "ggml_backend_cpu_reg": (_pointer, []),
}


class Ggml:
    """The functions by their names without `ggml_`, and a backend that computes on the processor.

    One thread by default: OpenMP keeps a team for every thread that ever computed, and with more threads
    than processors its barriers sleep instead of spinning.
    """

    def __init__(self, threads: int = 1) -> None:
        libraries = compute_functions()
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(libraries, name)
            function.restype, function.argtypes = result, arguments
            self._functions[name.removeprefix("ggml_")] = function
        self.backend = int(self.backend_cpu_init())
        self.backend_cpu_set_n_threads(self.backend, threads)

    def __getattr__(self, name: str) -> Any:
        return self._functions[name]

    def close(self) -> None:
        self.backend_free(self.backend)

    def special_buffers(self) -> dict[str, int]:
        """Buffer types with a layout of their own that this processor has: AMX, CPU_REPACK."""
        registry = self.backend_cpu_reg()
        address = self.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        if not address:
            return {}
        list_kinds = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)
        kinds = list_kinds(self.backend_reg_dev_get(registry, 0))
        found: dict[str, int] = {}
        while kinds and (kind := kinds[len(found)]):
            found[self.backend_buft_name(kind).decode()] = kind
        return found

    def context(self) -> int:
        return int(self.init(_InitParams(_CONTEXT_BYTES, None, True)))

    def tensor(self, context: int, kind: int, shape: Sequence[int]) -> int:
        return int(self.new_tensor_4d(context, kind, *[*shape, 1, 1, 1][:4]))

    def computed(self, context: int, given: Mapping[int, bytes], result: int) -> bytes:
        """Compute `result` with these tensors filled in. Frees the context and what is in it."""
        with self.prepared(context, given, result) as compute:
            compute()
            room = ctypes.create_string_buffer(self.nbytes(result))
            self.backend_tensor_get(result, room, 0, len(room))
            return room.raw

    @contextmanager
    def prepared(self, context: int, given: Mapping[int, bytes], result: int) -> Iterator[Callable[[], None]]:
        """Computes the graph of a result each time it is called. Frees the context in the end."""
        buffer = self.backend_alloc_ctx_tensors(context, self.backend)
        try:
            for tensor, values in given.items():
                self.fill(tensor, values)
            graph = self.new_graph(context)
            self.build_forward_expand(graph, result)

            def compute() -> None:
                if self.backend_graph_compute(self.backend, graph) != 0:
                    raise InvariantError("ggml could not compute the graph")

            yield compute
        finally:
            self.backend_buffer_free(buffer)
            self.free(context)

    def supports(self, operation: int, weights: int, buffer_kind: int) -> bool:
        """Whether the CPU computes this with the weights in a buffer of that kind."""
        buffer = self.backend_buft_alloc_buffer(buffer_kind, 0)
        place = ctypes.c_void_p.from_address(weights + _BUFFER_OFFSET)
        place.value = buffer
        try:
            device = self.backend_reg_dev_get(self.backend_cpu_reg(), 0)
            return bool(self.backend_dev_supports_op(device, operation))
        finally:
            place.value = None
            self.backend_buffer_free(buffer)

    def quantized(self, kind: int, values: np.ndarray[Any, Any]) -> bytes:
        """Rows of float32 as rows of a type."""
        rows, length = values.shape
        room = ctypes.create_string_buffer(self.row_size(kind, length) * rows)
        source = np.ascontiguousarray(values, np.float32)
        self.quantize_chunk(kind, source.ctypes.data, room, 0, rows, length, None)
        return room.raw

    def source(self, node: int) -> int | None:
        """The first tensor that an operation takes."""
        return ctypes.c_void_p.from_address(node + _SOURCES_OFFSET).value

    def fill(self, tensor: int, values: bytes) -> None:
        self.backend_tensor_set(tensor, values, 0, self.nbytes(tensor))
