"""The two consoles, tables, JSON and progress bars.

Data go to stdout, everything else to stderr; bars are shown only on terminals. Rich respects NO_COLOR.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stretto.cli.text import clean, one_line

PIPED_COLUMNS = 4_096  # a pipe has no width: do not wrap paths
Report = Callable[[int, int], None]


def stdout() -> Console:
    return _console(terminal=sys.stdout.isatty(), stderr=False)


def stderr() -> Console:
    return _console(terminal=sys.stderr.isatty(), stderr=True)


def _console(*, terminal: bool, stderr: bool) -> Console:
    width = None if terminal else PIPED_COLUMNS
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)


_json_lines = False


def messages_as_json(wanted: bool) -> None:
    """From now on every message on stderr is one JSON object per line (`log_format: json`)."""
    global _json_lines  # noqa: PLW0603 - stderr is one per process
    _json_lines = wanted


def say(text: str) -> None:
    """A message on stderr."""
    if not tell(text):
        sys.stderr.write(f"{clean(text)}\n")


def note(text: str) -> None:
    """A one-line note."""
    if not tell(one_line(text), level=logging.WARNING):
        sys.stderr.write(f"note: {one_line(text)}\n")


def tell(event: str, *, level: int = logging.INFO, **fields: str | int | float) -> bool:
    """Log the message as an event if messages are JSON; otherwise False."""
    if _json_lines:
        from stretto.telemetry.logs import notice

        notice(clean(event), level, **fields)
    return _json_lines


def print_json(data: Any) -> None:
    json.dump(data, sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()
) -> None:
    """Aligned columns without borders, identical in a pipe."""
    table = Table(box=None, pad_edge=False, show_header=any(columns), header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(str(cell))) for cell in row))
    stdout().print(table, soft_wrap=False)


def heading(text: str) -> None:
    stdout().print(Text(text, style="bold"))


def line(text: str = "") -> None:
    stdout().print(Text(clean(text)))


@contextmanager
def progress(label: str, *, is_bytes: bool = False) -> Iterator[Report]:
    """A progress bar on stderr; without a terminal, one plain line once there is progress."""
    console = stderr()
    if _json_lines or not console.is_terminal:
        yield _first_only(lambda: say(f"{label} …"))
        return
    from rich import progress as bars

    columns: list[bars.ProgressColumn] = [bars.TextColumn("{task.description}"), bars.BarColumn()]
    if is_bytes:
        columns += [bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn()]
    else:
        columns += [bars.TaskProgressColumn(), bars.TimeElapsedColumn()]
    with bars.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(label, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def _first_only(tell: Callable[[], None]) -> Report:
    told: list[bool] = []

    def report(_done: int, _total: int) -> None:
        if not told:
            told.append(True)
            tell()

    return report
