"""Checks that the core and the cluster's policies are pure: their imports and the built-ins they call.

Has the allow-list of standard modules for `stretto.core`, `stretto.errors` and `stretto.cluster.policy`.
Import-linter checks the order of the layers but can only forbid modules by name; here everything not listed
is refused, including third-party packages. Run by `make check`; prints one line per violation.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

# fmt: off
STANDARD_ALLOWED = frozenset({
    "__future__", "abc", "array", "bisect", "collections", "contextlib", "copy", "dataclasses", "enum",
    "functools", "hashlib", "heapq", "itertools", "math", "operator", "string", "struct", "types", "typing",
})
# fmt: on
STRETTO_ALLOWED = ("stretto.core", "stretto.errors", "stretto.cluster.policy")  # import-linter has the order
# I/O, and code loaded at run time.
BUILTINS_REFUSED = frozenset(
    {"__import__", "breakpoint", "compile", "eval", "exec", "input", "open", "print"}
)


def imported_modules(node: ast.AST, package: str) -> Iterator[str]:
    """The absolute names that an import statement may bind; empty for any other node."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = node.module or ""
        if node.level:
            parents = package.split(".")
            module = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [module])])
        if module == "stretto":
            yield from (f"stretto.{alias.name}" for alias in node.names)
        else:
            yield module


def is_allowed(module: str) -> bool:
    if module.partition(".")[0] in STANDARD_ALLOWED:
        return True
    return any(module == allowed or module.startswith(f"{allowed}.") for allowed in STRETTO_ALLOWED)


def refusals(node: ast.AST, package: str) -> Iterator[str]:
    for module in imported_modules(node, package):
        if not is_allowed(module):
            yield f"imports {module}"
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in BUILTINS_REFUSED:
            yield f"calls {name}()"


def violations(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and reason of every violation in `source`, a module of `package`."""
    for node in ast.walk(ast.parse(source)):
        for reason in refusals(node, package):
            yield getattr(node, "lineno", 0), reason


def pure_files(source_root: Path) -> list[Path]:
    package = source_root / "stretto"
    folders = ("core", "errors", "cluster/policy")
    return sorted(path for folder in folders for path in package.glob(f"{folder}/**/*.py"))


def main(arguments: list[str]) -> int:
    source_root = Path(arguments[0] if arguments else "src")
    files = pure_files(source_root)
    found = 0
    for path in files:
        package = ".".join(path.relative_to(source_root).parent.parts)
        for line, reason in violations(path.read_text(encoding="utf-8"), package):
            print(f"{path}:{line}: the core is pure, but this {reason}")
            found += 1
    if found:
        print("hint: pass time, randomness and ids in as arguments (allow-list: tools/check_layers.py)")
    else:
        print(f"The core is pure: {len(files)} files checked.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
