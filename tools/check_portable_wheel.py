"""Checks that a portable wheel of llama.cpp holds CPU backends: without one it loads and cannot compute.

    python tools/check_portable_wheel.py dist/llama_cpp_python-*.whl

Run by `make wheels`.
"""

import sys
import zipfile
from pathlib import Path

VARIANT = "llama_cpp/lib/libggml-cpu-"


def variants(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if name.startswith(VARIANT))


def main(arguments: list[str]) -> int:
    for name in arguments:
        found = variants(Path(name))
        if not found:
            print(f"{name} holds no CPU backend ({VARIANT}…)")
            return 1
        print(f"{len(found)} CPU variants in {Path(name).name}")
    return 0 if arguments else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
