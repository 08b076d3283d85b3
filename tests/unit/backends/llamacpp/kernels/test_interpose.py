"""Our own kernels: for which processors, how compiled, and when llama.cpp's compute instead.

They stand in once for each process and before llama.cpp is loaded, so most of it happens in children.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.backends.llamacpp.kernels import build, support
from stretto.backends.llamacpp.kernels.families import ARM, X86, X86_VNNI, family_of
from tests.unit.backends.llamacpp.kernels.rig import child, for_this_processor, with_kernels

N1 = frozenset({"fp", "asimd", "atomics", "fphp", "asimdhp", "asimdrdm", "asimddp"})
XEON = frozenset({"fpu", "avx2", "fma", "f16c", "bmi1", "avx512f", "avx512bw", "avx512vl"})
SMALL = replace(support.family() or X86, sources=("small.c",), headers=())


@pytest.fixture
def small_source(tmp_path_factory, monkeypatch):
    """What is compiled does not matter to tests of how it is compiled and kept."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "small.c").write_text("int stretto_own = 0;\n" + "/* nothing */\n" * 100)
    monkeypatch.setattr(build, "FOLDER", folder)


@pytest.mark.parametrize(
    ("system", "machine", "features", "family"),
    [
        ("Linux", "aarch64", N1, ARM),
        ("Linux", "aarch64", N1 | {"i8mm", "sve"}, None),
        ("Linux", "aarch64", N1 - {"asimddp"}, None),
        ("Darwin", "arm64", N1, None),
        ("Linux", "x86_64", XEON, X86),
        ("Linux", "x86_64", XEON | {"avx512_vnni"}, X86_VNNI),
        ("Linux", "x86_64", XEON - {"avx512bw"}, None),
        ("Linux", "aarch64", XEON, None),
        ("Windows", "AMD64", XEON, None),
    ],
)
def test_which_processors_they_are_for(system, machine, features, family):
    assert family_of(system, machine, features) is family


def test_features_of_this_processor():
    assert support.cpu_features() & {"fpu", "fp"}


@for_this_processor
@pytest.mark.usefixtures("small_source")
def test_compiled_once(tmp_path):
    first = build.compiled(SMALL, tmp_path)
    written = first.stat().st_mtime_ns
    assert build.compiled(SMALL, tmp_path) == first
    assert first.stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


@for_this_processor
@pytest.mark.usefixtures("small_source")
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "others may write it", "a link"])
def test_what_may_be_damaged_or_planted_is_compiled_anew(tmp_path, damage):
    library = build.compiled(SMALL, tmp_path)
    content = library.read_bytes()
    library.chmod(0o700)
    if damage == "others may write it":
        library.chmod(0o720)
    elif damage == "a link":
        library.rename(tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
    else:
        library.write_bytes({"cut": content[:2_000], "changed": content[:-1] + b"x", "empty": b""}[damage])
    again = build.compiled(SMALL, tmp_path)
    assert again.read_bytes() == content
    assert again.lstat().st_mode & 0o777 == 0o500
    assert not again.is_symlink()


@for_this_processor
@pytest.mark.usefixtures("small_source")
def test_a_folder_that_others_may_write(tmp_path):
    tmp_path.chmod(0o770)
    with pytest.raises(PermissionError, match="others can write"):
        build.compiled(SMALL, tmp_path)


@for_this_processor
@pytest.mark.usefixtures("small_source")
def test_compiled_once_no_compiler_is_needed(tmp_path, monkeypatch):
    library = build.compiled(SMALL, tmp_path)
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    assert build.compiled(SMALL, tmp_path) == library


@pytest.mark.usefixtures("small_source")
def test_no_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(build.CompileError, match="no C compiler"):
        build.compiled(SMALL, tmp_path)


@for_this_processor
def test_without_a_compiler_llama_cpp_computes(tmp_path):
    script = """
build.COMPILERS = ("no-such-compiler",)
print(interpose.install(cache))
"""
    assert child(script, tmp_path) == ["no C compiler (no-such-compiler)"]


@for_this_processor
def test_a_compiler_that_fails(tmp_path):
    script = """
from dataclasses import replace
other = replace(support.family(), flags=(*support.family().flags, "-no-such-flag"))
support.family = lambda: other
print(interpose.install(cache))
"""
    (said,) = child(script, tmp_path)
    assert said.startswith("they do not compile: ")
    assert "no-such-flag" in said


@for_this_processor
def test_a_cache_that_cannot_be_written_is_not_needed(tmp_path):
    (tmp_path / "kernels").write_text("a file where a folder should be")
    assert child("print(repr(interpose.install(cache)))", tmp_path) == ["''"]


@for_this_processor
def test_an_interruption_leaves_llama_cpp_computing(tmp_path):
    script = """
from stretto.backends.llamacpp.kernels import verify_arm, verify_x86
def interrupted(*args):
    raise KeyboardInterrupt
verify_arm.attention = verify_x86.attention = interrupted
try:
    interpose.install(cache)
except KeyboardInterrupt:
    print(interpose.install(cache))
print(interpose.enabled_flag(ctypes.CDLL(str(build.compiled(support.family(), cache / "kernels")))).value)
"""
    assert child(script, with_kernels(tmp_path)) == ["llama.cpp was loaded before them", "0"]


@for_this_processor
def test_llama_cpp_was_there_first(tmp_path):
    script = "import llama_cpp\nprint(interpose.install(cache))"
    assert child(script, with_kernels(tmp_path))[-1] == "llama.cpp was loaded before them"


@for_this_processor
def test_another_llama_cpp(tmp_path):
    script = 'interpose.LLAMA_CPP = "0.0.1"\nprint(interpose.install(cache))'
    assert child(script, with_kernels(tmp_path)) == ["llama-cpp-python is not 0.0.1"]


@for_this_processor
def test_ours_give_way_once_where_they_were_measured_to_be_slower(tmp_path):
    script = """
print(interpose.may_choose(), interpose.install(cache) == "", interpose.may_choose())
interpose.choose(own=False)
print(interpose.may_choose(), interpose.attention_heads(), interpose.reason("auto"))
interpose.choose(own=True)
print(interpose.attention_heads())
"""
    assert child(script, with_kernels(tmp_path)) == [
        "False True True",
        "False () measured to be slower here than llama.cpp's",
        "()",
    ]


@for_this_processor
def test_the_first_model_decides_for_the_process(tmp_path):
    script = """
interpose.install(cache)
interpose.choose(own=True)
interpose.choose(own=False)
with interpose.disabled(), interpose.disabled():
    pass
print(interpose.attention_heads() != (), interpose.enabled_flag(interpose._ours).value)
"""
    assert child(script, with_kernels(tmp_path)) == ["True 1"]


@for_this_processor
def test_comparing_them_leaves_no_thread_behind(tmp_path):
    """OpenMP's barriers sleep while more threads are in teams than there are processors."""
    script = """
import os, time
import numpy as np
np.ones((600, 600)) @ np.ones((600, 600))
before = len(os.listdir("/proc/self/task"))
print(repr(interpose.install(cache)))
until_s = time.monotonic() + 10
while len(os.listdir("/proc/self/task")) > before and time.monotonic() < until_s:
    time.sleep(0.01)
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert child(script, with_kernels(tmp_path)) == ["''", "0"]
