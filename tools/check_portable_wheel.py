"""Checks that a portable wheel of llama.cpp holds CPU backends, without which it cannot compute, and libmtmd.

    python tools/check_portable_wheel.py dist/llama_cpp_python-*.whl

Run by `make wheels`.
"""

import sys
import zipfile
from pathlib import Path

VARIANT = "llama_cpp/lib/libggml-cpu-"
MEDIA = "llama_cpp/lib/libmtmd"


def files(wheel: Path, begin: str) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if name.startswith(begin))


def main(arguments: list[str]) -> int:
    for name in arguments:
        found = files(Path(name), VARIANT)
        if not found:
            print(f"{name} holds no CPU backend ({VARIANT}…)")
            return 1
        if not files(Path(name), MEDIA):
            print(f"{name} takes no pictures and sounds ({MEDIA}…)")
            return 1
        print(f"{len(found)} CPU variants in {Path(name).name}")
    return 0 if arguments else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
