"""A portable wheel without CPU backends is refused."""

from __future__ import annotations

import zipfile

import pytest

from tools import check_portable_wheel


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (("libggml-cpu-armv8.2_2.so", "libmtmd.so"), 0),
        (("libggml-cpu-armv8.2_2.so",), 1),
        (("libggml-base.so", "libmtmd.so"), 1),
    ],
)
def test_the_wheel_must_hold_a_variant_and_the_encoders(tmp_path, names, code):
    wheel = tmp_path / "llama_cpp_python-0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(f"llama_cpp/lib/{name}", b"")
    assert check_portable_wheel.main([str(wheel)]) == code


def test_no_wheel_is_an_error():
    assert check_portable_wheel.main([]) == 1
