"""One loaded GGUF: its weights, its vocabulary, and what llama.cpp reports about it.

A file reaches C code only after `model_files.gguf` has checked its bounds and `model_files.probe` has loaded
it in a child process. A model may serve several contexts; it is freed when nothing references it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from stretto.backends.llamacpp.attention import Machine
from stretto.backends.llamacpp.kernels import interpose, support
from stretto.backends.llamacpp.machine import wants_gpu
from stretto.backends.llamacpp.native.devices import device_list, gpu_names, override_list
from stretto.backends.llamacpp.native.library import (
    Weights,
    forget_log,
    half_precision,
    last_error,
    library,
)
from stretto.backends.llamacpp.native.temporary_thread import on_temporary_thread
from stretto.backends.llamacpp.native.vocabulary import Vocabulary
from stretto.backends.llamacpp.options import ModelOptions
from stretto.backends.llamacpp.placement import TensorSizes, check_split, overrides
from stretto.errors import ModelLoadError
from stretto.model_files import gguf, probe
from stretto.model_files.kind import ModelShape, shape_of

Progress = Callable[[float], None]
_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_DEVICES_MAX = 128


MROPE_TYPES = (8, 40)  # llama.cpp's numbers: positions of several dimensions
MROPE_PLANES = 4  # of these dimensions


class LoadWarning(NamedTuple):
    """Something that was changed or will be slow; shown at start, not an error."""

    code: str
    message: str


_PLAIN_BUFFERS = LoadWarning(
    "special_kernels_broken",
    "this build's AMX kernels crash on this machine: plain ones are used, several times slower "
    "(rebuild llama-cpp-python with CXXFLAGS='-mno-amx-tile' or a newer compiler)",
)


class Model:
    """A loaded model. Made by `load`; freed by `close` or when collected."""

    def __init__(
        self,
        handle: Any,
        file: gguf.GgufFile,
        options: ModelOptions,
        warnings: tuple[LoadWarning, ...] = (),
    ) -> None:
        lib = library()
        self.weights = Weights(lib, handle)
        self.file = file
        self.options = options
        self.warnings = warnings
        self.shape: ModelShape = shape_of(file)
        self.vocabulary = Vocabulary(lib, self.weights)
        self.is_hybrid = bool(lib.llama_model_is_hybrid(handle))
        self.is_recurrent = bool(lib.llama_model_is_recurrent(handle))
        self.has_mrope = lib.llama_model_rope_type(handle) in MROPE_TYPES
        self.n_swa = int(lib.llama_model_n_swa(handle))
        self.n_head = int(lib.llama_model_n_head(handle))
        self.n_layer = int(lib.llama_model_n_layer(handle))
        self.n_ctx_train = int(lib.llama_model_n_ctx_train(handle))
        self.size_bytes = int(lib.llama_model_size(handle))

    @property
    def position_planes(self) -> int:
        """Positions of a row of embeddings."""
        return MROPE_PLANES if self.has_mrope else 1

    @property
    def template(self) -> str | None:
        """The chat template in the file."""
        return self.file.template

    @property
    def on_gpu(self) -> bool:
        return wants_gpu(self.options) and bool(library().llama_supports_gpu_offload())

    @property
    def machine(self) -> Machine:
        """What the attention policy depends on, as llama.cpp reports it."""
        return Machine(
            on_gpu=self.on_gpu,
            half_precision=half_precision(),
            own_attention_heads=interpose.attention_heads(),
            own_attention_rows_max=interpose.attention_rows_max(),
        )

    @property
    def own_kernels(self) -> str:
        """Why our own kernels do not compute; empty if they do."""
        return interpose.reason(self.options.kernels)

    @property
    def closed(self) -> bool:
        return self.weights.closed

    def close(self) -> None:
        """Free the weights. No context of this model may be used afterwards."""
        self.weights.close()


def load(
    path: Path | str,
    options: ModelOptions | None = None,
    *,
    cache_dir: Path | None,
    progress: Progress | None = None,
    trial: bool = True,
) -> Model:
    """Load a checked file; raises a `ModelError` or a `ModelLoadError` with one line.

    `trial` loads it in a child process first, once per file: what kills the child would have killed this one.
    """
    options = options or ModelOptions()
    file = gguf.read(path)
    shape = shape_of(file)
    moved = overrides(options, shape.layers, TensorSizes.of(file))
    if trial:
        probe.require(path, cache_dir=cache_dir)
    from stretto.backends.llamacpp.kernels.probe import (
        special_buffers_work,  # a child runs it as its main module
    )

    special = special_buffers_work(cache_dir)
    warnings = _choose_kernels(options.kernels, cache_dir) if special else (_PLAIN_BUFFERS,)
    lib = library()
    forget_log()
    params = _native(lib, options)
    warnings += _check_split(options)
    if options.devices:  # the lists must live until the load is over
        devices = device_list(options.devices)
        params.devices = ctypes.cast(devices, ctypes.c_void_p)
    if moved:
        moves = override_list(moved)
        params.tensor_buft_overrides = ctypes.cast(moves, ctypes.c_void_p)
    params.use_extra_bufts = special
    raised: list[BaseException] = []
    callback = lib.llama_progress_callback(_reporter(progress, raised))  # referenced until the load is over
    params.progress_callback = callback
    handle = _load_weights(lib, file.path, params, raised)
    if raised:
        raise raised[0]
    if not handle:
        raise ModelLoadError(f"{file.path} does not load: {last_error()}")
    return Model(handle, file, options, warnings)


def _load_weights(lib: Any, path: Path, params: Any, raised: list[BaseException]) -> Any:
    """On a thread that ends: where the processor has AMX, weights are packed by OpenMP's threads."""

    def work() -> Any:
        handle = lib.llama_model_load_from_file(str(path).encode(), params)
        if handle and raised:
            lib.llama_model_free(handle)
        return handle

    return on_temporary_thread(work, interrupt=raised.append)


def _choose_kernels(kernels: str, cache_dir: Path | None) -> tuple[LoadWarning, ...]:
    """Before llama.cpp is loaded. What was asked for and cannot be is a warning: one library per process."""
    if support.is_wanted(kernels):
        reason = interpose.install(cache_dir)
        if kernels == "own" and reason:
            return (LoadWarning("own_kernels_unused", f"kernels: own is not possible here: {reason}"),)
    elif kernels == "llamacpp" and interpose.attention_heads():
        text = "kernels: llamacpp has no effect: another model of this process already uses our kernels"
        return (LoadWarning("own_kernels_used", text),)
    return ()


def _check_split(options: ModelOptions) -> tuple[LoadWarning, ...]:
    texts = check_split(options, len(gpu_names(options.devices)))
    return tuple(LoadWarning("split_unused", text) for text in texts)


def _native(lib: Any, options: ModelOptions) -> Any:
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    params.split_mode = _SPLIT_MODES[options.split_mode]
    params.main_gpu = options.main_gpu
    if options.tensor_split:
        shares = [*options.tensor_split, *[0.0] * _DEVICES_MAX][:_DEVICES_MAX]
        params.tensor_split = (ctypes.c_float * _DEVICES_MAX)(*shares)
    if options.use_direct_io:
        params.load_mode = lib.LLAMA_LOAD_MODE_DIRECT_IO
    else:
        params.load_mode = (options.use_mmap and lib.LLAMA_LOAD_MODE_MMAP) | (
            options.use_mlock and lib.LLAMA_LOAD_MODE_MLOCK
        )
    return params


def _reporter(progress: Progress | None, raised: list[BaseException]) -> Callable[[float, object], bool]:
    """An exception in the caller's progress callback, Ctrl-C included, ends the load and is raised again."""

    def report(fraction: float, _: object) -> bool:
        try:
            if progress is not None and not raised:
                progress(fraction)
        except BaseException as error:
            raised.append(error)
        return not raised

    return report
