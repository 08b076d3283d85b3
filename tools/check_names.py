"""Checks that no class name in `src` is used twice: one name, one meaning.

A name that needs its module to be understood is half a name, and a search for it finds the wrong class. Only
classes at the top of a module count. Run by `make check`; prints one line per repeated name.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


def classes(source_root: Path) -> dict[str, list[str]]:
    """Class names to the places that define them, as file:line."""
    found: dict[str, list[str]] = {}
    for path in sorted(source_root.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return found


def repeated(found: dict[str, list[str]]) -> Iterator[str]:
    for name, places in sorted(found.items()):
        if len(places) > 1:
            yield f"{name} is defined {len(places)} times: {', '.join(places)}"


def main(arguments: list[str]) -> int:
    found = classes(Path(arguments[0] if arguments else "src"))
    lines = list(repeated(found))
    for line in lines:
        print(line)
    if lines:
        print("hint: name each class for what it is, so that it is understood without its module")
    else:
        print(f"No class name is used twice: {len(found)} classes checked.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
