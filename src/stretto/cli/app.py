"""The commands by name, the global options, and the error handler.

Commands live in separate modules, imported when they are called.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Group, Parameter

from stretto import __version__
from stretto.cli.commands import COMMANDS, CONFIG_COMMANDS, CONFIG_HELP, GLOBAL_OPTIONS, SUMMARY
from stretto.cli.context import GlobalOptions
from stretto.cli.failures import report
from stretto.cli.output import messages_as_json

INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + signal, as in shells
GLOBALS = Group("Global options", sort_key=100)


def build() -> App:
    """The whole command line."""
    app = App(
        name="stretto",
        help=SUMMARY,
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(show_default=False),
    )
    for name, (target, help_text) in COMMANDS.items():
        app.command(f"stretto.cli.{target}", name=name, help=help_text)
    config = App(name="config", help=CONFIG_HELP)
    for name, (target, help_text) in CONFIG_COMMANDS.items():
        config.command(f"stretto.cli.{target}", name=name, help=help_text)
    app.command(config)
    _add_globals(app)
    return app


def _global(name: str) -> Parameter:
    metavar, text = GLOBAL_OPTIONS[name]
    return Parameter(help=text, metavar=metavar or None, negative="", show_default=False, group=GLOBALS)


def _add_globals(app: App) -> None:
    @app.meta.default
    def dispatch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[Path | None, _global("--config")] = None,
        cache_dir: Annotated[Path | None, _global("--cache-dir")] = None,
        debug: Annotated[bool, _global("--debug")] = False,
    ) -> int:
        command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
        if "context" in ignored:
            bound.arguments["context"] = GlobalOptions(config=config, cache_dir_given=cache_dir, debug=debug)
        return int(command(*bound.args, **bound.kwargs) or 0)


def run_line(tokens: Sequence[str]) -> int:
    """Run one command line; every error ends here as lines on stderr and an exit code."""
    options = tokens[: tokens.index("--")] if "--" in tokens else tokens
    messages_as_json(False)
    if _wants_json(options):
        _begin_json()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # do not fail on names that this locale cannot print
    try:
        code = build().meta(
            list(tokens), exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
        return int(code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader closed the pipe: `stretto ls | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the flush at exit fails
        return BROKEN_PIPE
    except Exception as error:
        if isinstance(error.__cause__, SystemExit):  # of a signal while a class is made: 3.11 wraps it
            return int(error.__cause__.code or 0)
        return report(error, command=_command_of(tokens), debug="--debug" in options)


def _begin_json() -> None:
    from stretto.telemetry import logs

    logs.set_up(json_lines=True)
    messages_as_json(True)


def _wants_json(options: Sequence[str]) -> bool:
    """Errors in the settings are reported before they are loaded, so look for this flag directly."""
    pairs = zip(options, [*options[1:], ""], strict=True)
    return any(pair == ("--log-format", "json") or pair[0] == "--log-format=json" for pair in pairs)


def _command_of(tokens: Sequence[str]) -> str:
    found = next((token for token in tokens if token in COMMANDS or token == "config"), "")
    return "config show" if found == "config" else found
