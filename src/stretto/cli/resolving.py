"""Resolves a model argument: a path, a name in the store or the settings file, or the default."""

from __future__ import annotations

from pathlib import Path

from stretto.cli.context import GlobalOptions
from stretto.cli.output import progress


def file_of(context: GlobalOptions, model: str) -> Path:
    """The model's file; the default model is converted first if needed."""
    from stretto.model_files.store import DEFAULT_NAMES

    named = context.settings().settings.models.get(model)
    wanted = named.path if named is not None and named.path is not None else model
    if wanted in DEFAULT_NAMES:
        return default_file(context)
    return context.store().resolve(wanted)


def default_file(context: GlobalOptions) -> Path:
    from stretto.cli.listing import default_files

    if default_files(context.cache_dir):
        return context.store().ensure_default()
    with progress("converting the default model for this machine") as shown:
        return context.store().ensure_default(shown)
