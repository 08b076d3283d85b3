"""Whether llama.cpp's libraries use one libstdc++, or parts of two.

A build that was linked with `-static-libstdc++`, or by a compiler that has no shared libstdc++, contains a
copy. The dynamic loader binds most of its symbols to that copy, but those that exist once in a process, as
the ids of some locale facets, to the libstdc++ that was loaded first, which is numpy's. One facet is then
taken for another: the first regular expression, in the tokenizer of a model, ends the process.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from stretto.errors import InvariantError

_CLASSIC = "_ZNSt6locale7classicEv"  # std::locale::classic()
_UNIQUE = "_ZNSt7__cxx117collateIcE2idE"  # std::collate<char>::id, which exists once in a process
_SHARED = "libstdc++"


class _DlInfo(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def file_of(address: int) -> str:
    """The shared library that an address is in."""
    info = _DlInfo()
    if not ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info)):
        raise InvariantError("an address of llama.cpp is in no library")
    return os.fsdecode(info.file)


def is_mixed(libraries: Any) -> bool:
    """Whether these have a copy of libstdc++ and use parts of another one."""
    classic, unique = (_address(libraries, name) for name in (_CLASSIC, _UNIQUE))
    if not classic or not unique:  # another C++ library than GCC's
        return False
    copy = file_of(classic)
    return not Path(copy).name.startswith(_SHARED) and file_of(unique) != copy


def _address(libraries: Any, name: str) -> int | None:
    symbol = getattr(libraries, name, None)
    return None if symbol is None else ctypes.cast(symbol, ctypes.c_void_p).value
