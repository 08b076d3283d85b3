"""Children that compute with our kernels, which stand in for llama.cpp's once for each process."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.backends.llamacpp.kernels import build, support
from stretto.backends.llamacpp.kernels.families import ARM, X86, X86_VNNI
from stretto.settings.places import cache_home

FAMILY = support.family() if shutil.which("cc") is not None else None
for_this_processor = pytest.mark.skipif(
    FAMILY is None, reason="there are no kernels for this processor, or no C compiler"
)
on_arm = pytest.mark.skipif(
    FAMILY is not ARM, reason="for ARM with dot products and without matrix instructions; needs a C compiler"
)
on_x86 = pytest.mark.skipif(FAMILY not in (X86, X86_VNNI), reason="for x86 with AVX-512; needs a C compiler")
on_vnni = pytest.mark.skipif(
    FAMILY is not X86_VNNI, reason="for x86 with AVX-512 and VNNI; needs a C compiler"
)

BEGIN = """
import ctypes, sys
from pathlib import Path
from stretto.backends.llamacpp.kernels import build, interpose, support
support.allow_in_this_process()
cache = Path(sys.argv[1])
"""

PRODUCTS = """
import numpy as np
from stretto.backends.llamacpp.kernels import verify_arm as verify
from stretto.backends.llamacpp.kernels.trial import AttentionInputs, attention
from stretto.backends.llamacpp.native.ggml import Ggml, F16, F32, Q4_0, Q8_0
print(repr(interpose.install(cache)))
ours = ctypes.CDLL(str(build.compiled(support.family(), cache / "kernels")))
own, used = interpose.enabled_flag(ours), ctypes.c_int.in_dll(ours, "stretto_attended")
ggml = Ggml(threads=2)
rng = np.random.default_rng(2)
"""


def compute(script: str, cache: Path) -> list[str]:
    """A child with `PRODUCTS`."""
    return child(PRODUCTS + script, with_kernels(cache))


def with_kernels(cache: Path) -> Path:
    """This folder with kernels, which are compiled once for all tests."""
    assert FAMILY is not None
    library = build.compiled(FAMILY, cache_home() / "kernels")
    (cache / "kernels").mkdir(mode=0o700)
    shutil.copy(library, cache / "kernels")
    return cache


def child(script: str, cache: Path, *more: str) -> list[str]:
    command = [sys.executable, "-c", BEGIN + script, str(cache), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
