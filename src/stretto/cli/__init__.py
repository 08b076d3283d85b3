"""The command line: run, chat, ls, show, pull, rm, estimate, quantize, doctor, config, version.

Data go to stdout, everything else to stderr; errors are one line and a `hint:`. Exit codes: 0 success, 1
internal error, 2 user error, 130 interrupted. Imports are lazy, so that short commands such as `version`
start fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; user errors never raise."""
    tokens = list(sys.argv[1:] if argv is None else argv)
    if tokens in (["version"], ["--version"]):
        from stretto import __version__

        sys.stdout.write(f"stretto {__version__}\n")
        return 0
    if tokens in ([], ["--help"], ["-h"]):
        from stretto.cli.commands import help_page

        sys.stdout.write(help_page())
        return 0
    if "serve" in tokens:
        from stretto.cli.stopping import signals_end_with_0

        with signals_end_with_0(restore=argv is not None):
            return _run(tokens)
    return _run(tokens)


def _run(tokens: Sequence[str]) -> int:
    from stretto.cli.app import run_line

    return run_line(tokens)
