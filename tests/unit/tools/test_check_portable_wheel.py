"""A portable wheel without CPU backends is refused."""

from __future__ import annotations

import zipfile

import pytest

from tools import check_portable_wheel


@pytest.mark.parametrize(
    ("name", "code"),
    [("llama_cpp/lib/libggml-cpu-armv8.2_2.so", 0), ("llama_cpp/lib/libggml-base.so", 1)],
)
def test_the_wheel_must_hold_a_variant(tmp_path, name, code):
    wheel = tmp_path / "llama_cpp_python-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(name, b"")
    assert check_portable_wheel.main([str(wheel)]) == code


def test_no_wheel_is_an_error():
    assert check_portable_wheel.main([]) == 1
