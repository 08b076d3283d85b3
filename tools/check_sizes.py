"""Checks that no file is longer than 400 lines and no function longer than 60.

Counts all lines, blank ones and docstrings included, of Python files in `src`, `tools`, `benchmarks` and
`tests`; a function from its `def` to its last line. Run by `make check`; prints one line per violation.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("src", "tools", "benchmarks", "tests")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
# Functions for which a split would be artificial: "path::name" to the reason.
KERNELS = "src/stretto/backends/torch/kernels"
KERNEL = "one Triton program: a third of it are its parameters, which every part of it would take again"
EXCEPTIONS = {
    f"{KERNELS}/decode.py::_decode": KERNEL,
    f"{KERNELS}/prefill.py::_prefill": KERNEL,
    f"{KERNELS}/rotary.py::_rotary_write": KERNEL,
    f"{KERNELS}/topk_topp/exact.py::_find_bounds": KERNEL,
    f"{KERNELS}/topk_topp/search.py::narrow": KERNEL,
}


def too_long(path: Path, name: str) -> Iterator[str]:
    """What is too long in one file, which the reader knows as `name`."""
    source = path.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    if lines > FILE_LINES_MAX:
        yield f"{name}: {lines} lines, at most {FILE_LINES_MAX}"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > FUNCTION_LINES_MAX and f"{name}::{node.name}" not in EXCEPTIONS:
            yield f"{name}:{node.lineno}: {node.name} has {length} lines, at most {FUNCTION_LINES_MAX}"


def main(arguments: list[str]) -> int:
    root = Path(arguments[0] if arguments else ".")
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    found = [line for path in files for line in too_long(path, path.relative_to(root).as_posix())]
    for line in found:
        print(line)
    if found:
        print("hint: split by meaning; an exception needs its reason in tools/check_sizes.py")
    else:
        print(f"No file or function is too long: {len(files)} files checked.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
