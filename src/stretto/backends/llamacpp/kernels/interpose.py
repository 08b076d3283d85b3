"""Symbol interposition: replaces llama.cpp's hot kernels by our own, compiled here and verified before use.

llama.cpp's libraries call their kernels by name, and the dynamic loader looks a name up first in libraries
that were loaded globally before. So ours are loaded first, under the same names, and pass every call on to
the originals. Then both compute small products; only if ours give what they should (`verify_arm`,
`verify_x86`, `verify_x86_products`), and calls do arrive at ours, ours compute from then on.

This affects every user of llama.cpp in the process. So by default it happens only in processes of Stretto's
own (`support.allow_in_this_process`). `install` returns why ours do not compute, which is no failure.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stretto.backends.llamacpp.kernels import support, verify_arm, verify_x86, verify_x86_products
from stretto.backends.llamacpp.kernels.build import CompileError, compiled, sources_digest
from stretto.backends.llamacpp.kernels.families import ARM, X86, X86_VNNI, ProcessorFamily
from stretto.backends.llamacpp.kernels.support import LLAMA_CPP
from stretto.backends.llamacpp.native.library import compute_functions, library
from stretto.backends.llamacpp.native.temporary_thread import on_temporary_thread
from stretto.errors import InvariantError

GGML = b"0.25.3"  # the version whose struct layouts the kernels know
_DIFFERENCES = {
    ARM.name: (verify_arm.difference,),
    X86.name: (verify_x86.difference,),
    X86_VNNI.name: (verify_x86.difference, verify_x86_products.difference),
}

_lock = threading.Lock()
_reason: str | None = None  # None: not tried yet; "": ours compute
_ours: Any = None
_chosen = False  # whether it was decided which kernels compute in this process


def reason(kernels: str) -> str:
    """Why ours do not compute; empty if they do."""
    if _reason is not None:
        return _reason
    if kernels == "llamacpp":
        return "switched off by kernels: llamacpp"
    return "this process is not Stretto's own; kernels: own replaces llama.cpp's for all of it"


def install(cache_dir: Path | None) -> str:
    """Empty if our kernels compute from now on, else why not. Once per process, before `library`."""
    global _reason  # noqa: PLW0603 - a C library is one per process
    with _lock:
        if _reason is None:
            _reason = _unfit() or _try(_family(), cache_dir)
        return _reason


def digest() -> str:
    """Of the sources of our kernels; empty where they do not compute."""
    return sources_digest(_family()) if _compute() else ""


def attention_heads() -> tuple[int, ...]:
    """Head sizes for which our attention computes; empty where it does not."""
    return _family().attention_heads if _compute() else ()


def attention_rows_max() -> int:
    """Rows of a sequence in a pass up to which our attention computes; 0 where it does not."""
    return _family().attention_rows_max if _compute() else 0


def computes_all_attention(work: Callable[[], object]) -> bool:
    """Run `work`; whether our kernel computed all attention in it."""
    if _ours is None:
        work()
        return False
    attended, passed_on = (
        ctypes.c_int.in_dll(_ours, f"stretto_{name}") for name in ("attended", "passed_on")
    )
    with _lock:
        attended.value = passed_on.value = 0
        work()
        return bool(attended.value and not passed_on.value)


def may_choose() -> bool:
    """Whether ours compute and may still give way: once per process, before its first model computes."""
    return _ours is not None and not _chosen


def choose(*, own: bool) -> None:
    """Settle which kernels compute in this process; ours cannot be taken back afterwards."""
    global _chosen, _ours, _reason  # noqa: PLW0603 - a C library is one per process
    with _lock:
        if _ours is not None and not _chosen and not own:
            enabled_flag(_ours).value = 0
            _ours, _reason = None, "measured to be slower here than llama.cpp's"
        _chosen = True


@contextmanager
def disabled() -> Iterator[None]:
    """llama.cpp's kernels compute meanwhile, for comparisons. Nothing else may compute at the same time."""
    if _ours is None:
        yield
        return
    flag = enabled_flag(_ours)
    before, flag.value = flag.value, 0
    try:
        yield
    finally:
        flag.value = before


def enabled_flag(ours: Any) -> ctypes.c_int:
    """1: our kernels compute, 0: llama.cpp's. Must not change during a pass."""
    return ctypes.c_int.in_dll(ours, "stretto_own")


def _compute() -> bool:
    """Whether ours compute now: not while they are disabled."""
    return _ours is not None and enabled_flag(_ours).value == 1


def _unfit() -> str:
    unsupported = support.unsupported(LLAMA_CPP)
    if not unsupported and "llama_cpp" in sys.modules:
        return "llama.cpp was loaded before them"
    return unsupported


def _family() -> ProcessorFamily:
    found = support.family()
    if found is None:
        raise InvariantError("there are no kernels for this processor")
    return found


def _try(family: ProcessorFamily, cache_dir: Path | None) -> str:
    global _ours  # noqa: PLW0603
    try:
        ours = _loaded(family, cache_dir)
    except CompileError as error:
        return str(error)
    except OSError as error:
        return f"they cannot be loaded: {error}"[:200]
    llama_cpp = library()
    theirs = compute_functions()
    for setter, names in family.originals.items():
        getattr(ours, setter)(*[_address(theirs, name) for name in names])
    theirs.ggml_version.restype = ctypes.c_char_p
    if theirs.ggml_version() != GGML:
        return f"ggml is not {GGML.decode()}"
    if not all(feature in llama_cpp.llama_print_system_info() for feature in family.built_with):
        return "llama.cpp was built without dot products or half precision"
    try:
        difference = on_temporary_thread(lambda: _difference(family, ours, theirs))
    except (AttributeError, InvariantError) as error:
        difference = str(error)
    if not difference:
        enabled_flag(ours).value = 1
        _ours = ours
    return difference


def _difference(family: ProcessorFamily, ours: Any, theirs: Any) -> str:
    return next(filter(None, (difference(ours, theirs) for difference in _DIFFERENCES[family.name])), "")


def _loaded(family: ProcessorFamily, cache_dir: Path | None) -> Any:
    """From the cache; where that cannot be written or executed, from a temporary folder."""
    if cache_dir is not None:
        try:
            return ctypes.CDLL(str(compiled(family, cache_dir / "kernels")), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass
    with tempfile.TemporaryDirectory() as folder:
        return ctypes.CDLL(str(compiled(family, Path(folder))), mode=ctypes.RTLD_GLOBAL)


def _address(theirs: Any, name: str) -> ctypes.c_void_p:
    """NULL for a function that this build does not have, and so does not call."""
    function: Any = getattr(theirs, name, None)
    return ctypes.cast(function, ctypes.c_void_p)
