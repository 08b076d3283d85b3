"""libmtmd through ctypes: llama.cpp's encoders of pictures and sounds. The few functions that are used.

The library lies beside llama.cpp's own and is optional: `tools/build_mtmd.py` builds it, and the portable
wheel has it. llama-cpp-python's own binding wants functions that decode files, which ours leaves out.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_void_p
from pathlib import Path
from typing import Any

from stretto.backends.llamacpp.native.library import library, log_callback
from stretto.errors import LlamaCppMissingError

TEXT = 0  # the type of a chunk that holds tokens
TOO_LARGE, NOT_ALIKE = 2, 3  # what mtmd_batch_add_chunk answers where a chunk needs another batch
NAME = "libmtmd.so"


class ContextParams(ctypes.Structure):
    _fields_ = (
        ("use_gpu", c_bool),
        ("device", c_void_p),
        ("print_timings", c_bool),
        ("n_threads", c_int),
        ("image_marker", c_char_p),
        ("media_marker", c_char_p),
        ("flash_attn_type", c_int),
        ("warmup", c_bool),
        ("image_min_tokens", c_int),
        ("image_max_tokens", c_int),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("batch_max_tokens", c_int32),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
    )


class InputText(ctypes.Structure):
    _fields_ = (
        ("text", c_char_p),
        ("text_len", c_size_t),
        ("add_special", c_bool),
        ("parse_special", c_bool),
    )


class DecoderPosition(ctypes.Structure):
    _fields_ = (("text", c_uint32), ("column", c_uint32), ("row", c_uint32), ("unused", c_uint32))


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mtmd_context_params_default": (ContextParams, ()),
    "mtmd_default_marker": (c_char_p, ()),
    "mtmd_init_from_file": (c_void_p, (c_char_p, c_void_p, ContextParams)),
    "mtmd_free": (None, (c_void_p,)),
    "mtmd_decode_use_non_causal": (c_bool, (c_void_p, c_void_p)),
    "mtmd_decode_use_mrope": (c_bool, (c_void_p,)),
    "mtmd_support_vision": (c_bool, (c_void_p,)),
    "mtmd_support_audio": (c_bool, (c_void_p,)),
    "mtmd_get_audio_sample_rate": (c_int, (c_void_p,)),
    "mtmd_bitmap_init": (c_void_p, (c_uint32, c_uint32, c_char_p)),
    "mtmd_bitmap_init_from_audio": (c_void_p, (c_size_t, c_void_p)),
    "mtmd_bitmap_free": (None, (c_void_p,)),
    "mtmd_input_chunks_init": (c_void_p, ()),
    "mtmd_input_chunks_size": (c_size_t, (c_void_p,)),
    "mtmd_input_chunks_get": (c_void_p, (c_void_p, c_size_t)),
    "mtmd_input_chunks_free": (None, (c_void_p,)),
    "mtmd_input_chunk_get_type": (c_int, (c_void_p,)),
    "mtmd_input_chunk_get_tokens_text": (POINTER(c_int32), (c_void_p, POINTER(c_size_t))),
    "mtmd_input_chunk_get_n_tokens": (c_size_t, (c_void_p,)),
    "mtmd_input_chunk_get_n_pos": (c_int32, (c_void_p,)),
    "mtmd_input_chunk_get_tokens_image": (c_void_p, (c_void_p,)),
    "mtmd_image_tokens_get_decoder_pos": (DecoderPosition, (c_void_p, c_int32, c_size_t)),
    "mtmd_tokenize": (
        c_int32,
        (c_void_p, c_void_p, POINTER(InputText), POINTER(c_void_p), c_size_t),
    ),
    "mtmd_encode_chunk": (c_int32, (c_void_p, c_void_p)),
    "mtmd_get_output_embd": (POINTER(c_float), (c_void_p,)),
    "mtmd_batch_init": (c_void_p, (c_void_p,)),
    "mtmd_batch_free": (None, (c_void_p,)),
    "mtmd_batch_add_chunk": (c_int32, (c_void_p, c_void_p)),
    "mtmd_batch_encode": (c_int32, (c_void_p,)),
    "mtmd_batch_get_output_embd": (POINTER(c_float), (c_void_p, c_void_p)),
    "mtmd_log_set": (None, (c_void_p, c_void_p)),
}


def file() -> Path:
    """Where the library is, if it is there."""
    return Path(library().__file__).parent / "lib" / NAME


def is_there() -> bool:
    """Whether it was installed with this version of llama.cpp, or built for it."""
    record = file().with_suffix(".version")  # `tools/build_mtmd.py` writes it
    return file().exists() and (
        not record.exists() or record.read_text().split()[:1] == [library().__version__]
    )


def set_packed(packed: bool) -> None:
    """Whether projectors loaded from now on have packed matrices and our kernels (`tools/mtmd`)."""
    with contextlib.suppress(ValueError):  # a library that was built without it packs nothing
        ctypes.c_int.in_dll(mtmd(), "stretto_packs").value = packed


@functools.cache
def mtmd() -> Any:
    """The library. Raises LlamaCppMissingError where it was not built, or does not load."""
    path = file()
    if not is_there():
        raise LlamaCppMissingError(
            "llama.cpp is installed without libmtmd, its encoders of pictures and sounds",
            hint="make setup builds it, in a checkout; the portable wheel of `make wheels` has it",
        )
    try:
        functions = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LlamaCppMissingError(
            f"libmtmd does not load: {str(error)[:200]}", hint=f"delete {path} and build it again"
        ) from error
    functions.mtmd_log_set(ctypes.cast(log_callback(), c_void_p), None)
    return functions
