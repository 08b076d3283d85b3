"""Checks that imports in `src` have no cycles, neither between modules nor between folders.

Builds the import graph from the syntax tree, so imports inside functions and under `TYPE_CHECKING` count like
those at the top. A folder's graph joins its children: each sub-folder is one node, whatever its files import.
Not seen: names imported at run time (`importlib.import_module`, a module's `__getattr__`), and the import of
the packages above a module, which Python does by itself. Run by `make check`; prints one line per cycle.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

Graph = dict[str, set[str]]


def modules(source_root: Path) -> dict[str, Path]:
    """Dotted name to file; a package is the name of its folder."""
    found = {}
    for path in sorted(source_root.rglob("*.py")):
        parts = path.relative_to(source_root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_graph(source_root: Path) -> Graph:
    known = modules(source_root)
    graph: Graph = {}
    for name, path in known.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        tree = ast.parse(path.read_text(encoding="utf-8"))
        wanted = {module for node in ast.walk(tree) for module in imported(node, package, known)}
        graph[name] = wanted - {name}
    return graph


def imported(node: ast.AST, package: str, known: Mapping[str, Path]) -> Iterator[str]:
    """The modules among `known` that a statement imports; `from a import b` is `a.b` if that is a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
    elif isinstance(node, ast.ImportFrom):
        origin = absolute(node, package)
        for alias in node.names:
            if (submodule := f"{origin}.{alias.name}") in known:
                yield submodule
            elif origin in known:
                yield origin


def absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    above = package.split(".")
    return ".".join([*above[: len(above) - node.level + 1], *filter(None, [node.module])])


def folders(graph: Graph) -> list[str]:
    parts = [name.split(".") for name in graph]
    return sorted({".".join(above[:depth]) for above in parts for depth in range(1, len(above))})


def folder_graph(graph: Graph, folder: str) -> Graph:
    """The children of one folder, joined by the imports of everything inside them."""
    prefix = f"{folder}."
    children: Graph = {}
    for importer in graph:
        child = _child(importer, prefix)
        if child:
            others = {_child(module, prefix) for module in graph[importer]}
            children.setdefault(child, set()).update(others - {child, ""})
    return children


def _child(module: str, prefix: str) -> str:
    """The part of `prefix` that a module belongs to; "" outside of it and for the folder's `__init__`."""
    if not module.startswith(prefix):
        return ""
    return prefix + module.removeprefix(prefix).partition(".")[0]


def cycle(graph: Graph) -> list[str]:
    """One cycle, each importing the next, the first one repeated at the end; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def cycles(source_root: Path) -> Iterator[str]:
    """One line per cycle: at most one of the modules, and one for each folder."""
    graph = import_graph(source_root)
    if found := cycle(graph):
        yield f"modules import each other: {' → '.join(found)}"
    for folder in folders(graph):
        if found := cycle(folder_graph(graph, folder)):
            yield f"parts of {folder} import each other: {' → '.join(found)}"


def main(arguments: list[str]) -> int:
    source_root = Path(arguments[0] if arguments else "src")
    found = list(cycles(source_root))
    for line in found:
        print(line)
    if found:
        print("hint: move what both need into a module below them")
    else:
        print(f"No import cycles: {len(modules(source_root))} modules checked.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
