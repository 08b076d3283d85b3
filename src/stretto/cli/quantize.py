"""`stretto quantize`: converts a model file to another weight type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from stretto.cli.context import GlobalOptions
from stretto.cli.failures import UsageError
from stretto.cli.output import line, progress, say
from stretto.cli.text import size


def quantize(
    source: Annotated[str, Parameter(name="SRC")],
    target: Annotated[Path, Parameter(name="DST")],
    type_name: Annotated[str, Parameter(name="TYPE")],
    /,
    *,
    threads: Annotated[int, Parameter(metavar="N")] = 0,
    force: Annotated[bool, Parameter(negative="")] = False,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Convert a model file to another weight type. The result is written atomically.

    Parameters
    ----------
    source
        A .gguf file or a name from `stretto ls`.
    target
        The file to write.
    type_name
        Q4_0 and Q8_0 have fast kernels on most CPUs; Q4_K_M is smaller for its quality.
    threads
        CPU threads; 0 is all.
    force
        Overwrite DST.
    """
    from stretto.cli.resolving import file_of
    from stretto.model_files.quantize import quantize as convert

    origin = file_of(context, source)
    if target.exists() and (target.is_dir() or not force):
        raise UsageError(
            f"{target} exists", hint="name another file" if target.is_dir() else "--force overwrites it"
        )
    if target.exists() and target.samefile(origin):
        raise UsageError("SRC and DST are the same file", hint="name another file")
    with progress(f"converting {origin.name} to {type_name.upper()}") as shown:
        convert(origin, target, type_name, threads=threads, progress=shown)
    say(f"{size(origin.stat().st_size)} → {size(target.stat().st_size)}")
    line(str(target))
