"""Compiles the kernels once, into a library whose name contains the digests of its sources and of itself.

It is code that runs in the server, so a library is used only if it is complete (by its digest) and if no
other user can write it or its folder.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stretto.backends.llamacpp.kernels.families import ProcessorFamily
from stretto.backends.llamacpp.kernels.support import COMPILERS

FOLDER = Path(__file__).parent
COMPILE_S = 120.0  # of each file, on a machine with other things to do


class CompileError(Exception):
    """No compiler, or it fails."""


def compiled(family: ProcessorFamily, folder: Path) -> Path:
    """The library, from `folder` or compiled into it now. Raises CompileError or OSError."""
    begin = f"{family.name}-{sources_digest(family)}-"
    for found in folder.glob(f"{begin}*.so"):
        if _is_ours_alone(folder) and _is_ours_alone(found) and found.name == _name(begin, found):
            return found
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_ours_alone(folder):
        raise PermissionError(f"others can write {folder}")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        part = Path(scratch) / "part.so"
        _compile(family, part)
        part.chmod(0o500)
        return part.replace(folder / _name(begin, part))


def sources_digest(family: ProcessorFamily) -> str:
    made_of = hashlib.sha256(" ".join(family.flags).encode())
    for name in (*family.sources, *family.headers):
        made_of.update((FOLDER / name).read_bytes())
    return made_of.hexdigest()[:16]


def _compile(family: ProcessorFamily, target: Path) -> None:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise CompileError(f"no C compiler ({', '.join(COMPILERS)})")
    run = functools.partial(
        subprocess.run, check=True, capture_output=True, timeout=COMPILE_S, stdin=subprocess.DEVNULL
    )
    objects = [target.with_name(f"{name}.o") for name in family.sources]
    commands = [
        [compiler, *family.flags, "-c", "-o", str(made), str(FOLDER / name)]
        for name, made in zip(family.sources, objects, strict=True)
    ]
    try:
        with ThreadPoolExecutor(os.cpu_count()) as at_once:
            list(at_once.map(run, commands))
        run([compiler, "-shared", "-o", str(target), *map(str, objects), "-lm"])
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").splitlines()
        line = next((line for line in said if "error" in line), f"{compiler} answers {error.returncode}")
        raise CompileError(f"they do not compile: {line[:200]}") from error
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"they do not compile within {COMPILE_S:.0f} s") from error


def _name(begin: str, library: Path) -> str:
    return f"{begin}{hashlib.sha256(library.read_bytes()).hexdigest()[:16]}.so"


def _is_ours_alone(path: Path) -> bool:
    found = path.lstat()
    others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid() and not others
