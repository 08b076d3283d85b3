"""Error output: `error: …` in one line, then `hint: …`, both on stderr."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable

from cyclopts import CycloptsError
from cyclopts.exceptions import UnknownCommandError, UnknownOptionError

from stretto.cli.output import tell
from stretto.cli.text import one_line
from stretto.errors import InvariantError, StrettoError

OURS, USERS = 1, 2  # exit codes: internal error, user error


class UsageError(StrettoError):
    """Invalid command line, independent of models and settings."""

    code = "usage"


def report(error: Exception, *, command: str, debug: bool) -> int:
    """Print the error and return the exit code."""
    if debug and not tell("traceback", level=logging.ERROR, exception=_trace(error)):
        traceback.print_exception(error)
    if isinstance(error, CycloptsError):
        return _say(*_usage(error, command), USERS)
    if isinstance(error, StrettoError) and not isinstance(error, InvariantError):
        return _say(error.message, error.hint or _see(command), USERS)
    if isinstance(error, OSError) and error.strerror:
        named = f"{error.filename}: " if error.filename else ""
        return _say(f"{named}{error.strerror}", "check the path, its permissions and the free space", USERS)
    again = "please report it with the traceback above" if debug else "--debug shows the traceback"
    return _say(f"unexpected {type(error).__name__}: {error}", f"this is a bug in Stretto; {again}", OURS)


def _say(message: str, hint: str, code: int) -> int:
    if not tell(one_line(message), level=logging.ERROR, hint=one_line(hint), exit_code=code):
        sys.stderr.write(f"error: {one_line(message)}\nhint: {one_line(hint)}\n")
    return code


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))


def _see(command: str) -> str:
    return f"see `stretto {command} --help`" if command else "see `stretto --help`"


def _usage(error: CycloptsError, command: str) -> tuple[str, str]:
    """Cyclopts' error as a message and a hint."""
    if isinstance(error, UnknownOptionError):
        flag = (error.token.keyword or error.token.value).split("=", 1)[0]
        known = [name for argument in error.argument_collection if argument.parse for name in argument.names]
        return f"unknown option {flag}", _hint_for_flag(flag, known, command)
    error.verbose = False
    if isinstance(error, UnknownCommandError):
        name = (error.unused_tokens or ["?"])[0]
        return f"unknown command {name}", _nearest(name, _commands(error)) or _see("")
    return str(error).rstrip("."), _see(command)


def _commands(error: CycloptsError) -> list[str]:
    return [name for name in error.app or () if not name.startswith("-")]


def _hint_for_flag(flag: str, known: Iterable[str], command: str) -> str:
    """The nearest flag, or our name of another program's flag."""
    from stretto.settings.names import FOREIGN, NO_COUNTERPART

    names = [name for name in known if name.startswith("-")]
    plain = flag.lstrip("-").replace("-", "_").lower()
    if plain in NO_COUNTERPART:
        return NO_COUNTERPART[plain]
    ours = f"--{FOREIGN[plain].replace('_', '-')}" if plain in FOREIGN else ""
    if ours in names:
        return f"here it is called {ours}"
    return _nearest(flag, names) or _see(command)


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else ""
