"""A program that embeds the SDK keeps its own llama.cpp and its own thread switching."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys

import pytest

from stretto.backends.llamacpp.kernels import support
from stretto.testing import tiny_models

OURS = support.supports(platform.system(), platform.machine(), support.cpu_features()) and shutil.which("cc")
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
