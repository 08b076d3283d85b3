"""Where the files of a named model are. Names come from settings and the command line, not from requests."""

from __future__ import annotations

from pathlib import Path

from stretto.errors import ModelNotFoundError
from stretto.worker.loaded import Progress


def find(name: str, home: Path, progress: Progress | None = None) -> Path:
    """The file or directory of a named model; the default model if no name is given."""
    from stretto.model_files.store import Store

    if name and (folder := Path(name).expanduser()).is_dir():
        _check_folder(folder)
        return folder
    store = Store(home)
    if not name:
        report = (
            None
            if progress is None
            else lambda done, total: progress("preparing the default model", done / max(total, 1))
        )
        return store.ensure_default(report)
    return store.resolve(name)


def _check_folder(folder: Path) -> None:
    if (folder / "config.json").is_file():
        return
    found = next(iter(sorted(folder.glob("*.gguf"))), None)
    raise ModelNotFoundError(
        f"{folder} is not the folder of a model: it has no config.json",
        hint=f"a GGUF model is named by its file: {found}" if found else "check the path",
    )
