"""Opens the vocabulary of a GGUF file without its weights, for processes that only make text."""

from __future__ import annotations

import ctypes
from pathlib import Path

from stretto.backends.llamacpp.native.library import Weights, forget_log, last_error, library
from stretto.backends.llamacpp.native.vocabulary import Vocabulary
from stretto.errors import ModelLoadError
from stretto.model_files import gguf


def open_vocabulary(path: Path) -> Vocabulary:
    """`path`: a file that a worker has loaded, so its trial load is over."""
    gguf.read(path)
    lib = library()
    forget_log()
    params = lib.llama_model_default_params()
    no_devices = (ctypes.c_void_p * 1)()
    params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
    params.n_gpu_layers = 0
    params.use_extra_bufts = False
    params.vocab_only = True
    handle = lib.llama_model_load_from_file(str(path).encode(), params)
    if not handle:
        raise ModelLoadError(f"the vocabulary of {path} does not load: {last_error()}")
    return Vocabulary(lib, Weights(lib, handle))
