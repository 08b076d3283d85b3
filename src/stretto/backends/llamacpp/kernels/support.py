"""Where our own kernels can compute: on this processor, with the installed llama.cpp. Loads nothing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import zlib
from functools import cache
from pathlib import Path

from stretto.backends.llamacpp.kernels.families import ProcessorFamily, family_of

LLAMA_CPP = "0.3.36"  # the llama-cpp-python whose struct layouts the kernels know
COMPILERS = ("cc", "gcc", "clang")
FEATURE_LINES = ("Features", "flags")  # of /proc/cpuinfo: ARM, x86
PROCESSOR_LINES = ("model name", "flags", "CPU implementer", "CPU part", "CPU variant", "Features")


_process_is_ours = False


def allow_in_this_process() -> None:
    """The process is Stretto's own: `kernels: auto` may replace llama.cpp's kernels for all of it."""
    global _process_is_ours  # noqa: PLW0603 - a C library is one per process
    _process_is_ours = True


def is_wanted(kernels: str) -> bool:
    """`kernels: own | llamacpp | auto`: auto replaces llama.cpp's only in a process of Stretto's own."""
    return kernels == "own" or (kernels == "auto" and _process_is_ours)


@cache
def family() -> ProcessorFamily | None:
    """This machine's; None: there are no kernels for its processor."""
    return family_of(platform.system(), platform.machine(), cpu_features())


def unsupported(version: str = LLAMA_CPP) -> str:
    """Why they cannot compute on this machine with the installed llama-cpp-python; empty if they can."""
    if family() is None:
        return "not a processor they are for"
    return "" if installed_version() == version else f"llama-cpp-python is not {version}"


def installed_version() -> str:
    try:
        return importlib.metadata.version("llama_cpp_python")
    except importlib.metadata.PackageNotFoundError:
        return ""


def cpu_features() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith(FEATURE_LINES)), "").split())


def build_of_llama_cpp() -> str:
    """When the library was installed: another build of the same version may behave differently."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return ""
    return str(Path(spec.origin).stat().st_mtime_ns)


def processor() -> str:
    """Name and features of the processor, as a short digest."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    first = lines[: lines.index("")] if "" in lines else lines
    told = [line for line in first if line.startswith(PROCESSOR_LINES)]
    return str(zlib.crc32("\n".join(told).encode())) if told else platform.processor()
