"""A program that embeds the SDK keeps its own llama.cpp, its log callback and its own thread switching."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys

import pytest

from stretto.backends.llamacpp.kernels import support
from stretto.testing import tiny_models

OURS = support.family() is not None and shutil.which("cc") is not None
SCRIPT = """
import sys
first, kernels, cache, path = sys.argv[1:]
if first == "llama_cpp":
    import llama_cpp
interval = sys.getswitchinterval()
from stretto import LLM
options = {"kernels": kernels} if kernels else {}
with LLM(path, n_seq_max=1, context_window=256, cache_dir=cache, **options) as llm:
    llm.generate("a", max_tokens=2)
    quirk = llm.description["quirks"]["own_kernels"]
    warnings = llm.description["warnings"]
import llama_cpp
mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print(sys.getswitchinterval() == interval)
print(any("/kernels/" in name for name in mapped))
print(quirk)
print([text for text in warnings if "kernels" in text])
"""


LOGGING = """
import ctypes, os, sys
import llama_cpp
lines = {"before": 0, "after": 0}

def counts(name):
    @llama_cpp.llama_log_callback
    def take(level, text, user_data):
        lines[name] += 1
    return take

before, after = counts("before"), counts("after")
llama_cpp.llama_log_set(before, ctypes.c_void_p())
from stretto import LLM
options = {"n_seq_max": 1, "context_window": 256, "cache_dir": sys.argv[2]}
with LLM(sys.argv[1], **options) as llm:
    llm.generate("a", max_tokens=2)
first = dict(lines)
llama_cpp.llama_log_set(after, ctypes.c_void_p())
with LLM(sys.argv[1], **options) as llm:
    llm.generate("a", max_tokens=2)
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
print(first["before"] > 10, first["after"], lines["before"] == first["before"], lines["after"] > 10)
print(libc.getenv(b"GGML_NO_BACKTRACE"))
"""


def embedded(tmp_path, *, first: str = "", kernels: str = "") -> list[str]:
    path = str(tiny_models.make("dense"))
    command = [sys.executable, "-c", SCRIPT, first, kernels, str(tmp_path), path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize("first", ["llama_cpp", "stretto"])
@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_nothing_of_the_process_is_changed(tmp_path, first):
    unchanged, ours, reason, warnings = embedded(tmp_path, first=first)
    assert unchanged == "True"
    assert ours == "False"
    assert "kernels: own" in reason
    assert warnings == "[]"


def test_the_programs_log_callback_gets_every_line(tmp_path):
    """Whether it was set before the SDK loaded a model or after; and nothing is printed."""
    command = [sys.executable, "-c", LOGGING, str(tiny_models.make("dense")), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["True 0 True True", "None"]
    assert done.stderr == ""


@pytest.mark.skipif(not OURS, reason="our kernels are for ARM, and need a C compiler")
def test_own_kernels_by_request(tmp_path):
    unchanged, ours, reason, warnings = embedded(tmp_path, kernels="own")
    assert (unchanged, ours, reason, warnings) == ("True", "True", "", "[]")


@pytest.mark.skipif(not OURS, reason="our kernels are for ARM, and need a C compiler")
def test_own_kernels_that_come_too_late_are_a_warning(tmp_path):
    _, ours, reason, warnings = embedded(tmp_path, first="llama_cpp", kernels="own")
    assert ours == "False"
    assert reason == "llama.cpp was loaded before them"
    assert "kernels: own is not possible here" in warnings


def test_the_worker_process_claims_itself():
    script = (
        "import sys\nfrom stretto.backends.llamacpp.kernels import support\n"
        "from stretto.worker.own_process import claim_process\n"
        "before = support.is_wanted('auto')\nclaim_process()\nprint(before)\n"
        "print(support.is_wanted('auto'), support.is_wanted('llamacpp'), sys.getswitchinterval() < 1e-3)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False", "True"]
