"""The commands by name, the global options, and the one place where errors end.

Commands live in modules of their own and are imported when they are called; their one-line helps are repeated
here so that `stretto --help` imports none of them.
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
from stretto.cli.context import Context
from stretto.cli.failures import report

INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + the signal, as shells say it
COMMANDS = {
    "run": ("run:run", "Ask a model once and stream its answer."),
    "chat": ("chat:chat", "Talk with a model."),
    "ls": ("listing:ls", "List the models that are here."),
    "show": ("showing:show", "Show a model's kind, numbers, tensor types, metadata and template."),
    "pull": ("pull:pull", "Download a model: user/repo[:quant], or demo."),
    "rm": ("listing:rm", "Remove a model."),
    "estimate": ("estimate:estimate", "Estimate the memory of a model and its slots, step by step."),
    "quantize": ("quantize:quantize", "Convert a model file to another weight type."),
    "doctor": ("doctor:doctor", "Look at this machine and say what is missing or slow."),
    "version": ("about:version", "Print the version."),
}
CONFIG_COMMANDS = {"show": ("config:show", "Print every setting; --origin says where its value came from.")}
GLOBALS = Group("Global options", sort_key=100)


def build() -> App:
    """The whole command line."""
    app = App(
        name="stretto",
        help="Serves language models to many users at once.",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, (target, help_text) in COMMANDS.items():
        app.command(f"stretto.cli.{target}", name=name, help=help_text)
    config = App(name="config", help="Look at the settings.")
    for name, (target, help_text) in CONFIG_COMMANDS.items():
        config.command(f"stretto.cli.{target}", name=name, help=help_text)
    app.command(config)
    _add_globals(app)
    return app


def _add_globals(app: App) -> None:
    app.meta.group_parameters = GLOBALS

    @app.meta.default
    def dispatch(
        *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        config: Annotated[Path | None, Parameter(metavar="FILE")] = None,
        cache_dir: Annotated[Path | None, Parameter(metavar="DIR")] = None,
        debug: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    ) -> int:
        """Run a command.

        Parameters
        ----------
        config
            Settings file. Default: STRETTO_CONFIG, ./stretto.yaml, then the user's configuration directory.
        cache_dir
            Where models live. Default: STRETTO_CACHE_DIR, then the user's cache directory.
        debug
            Show tracebacks.
        """
        command, bound, ignored = app.parse_args(tokens, exit_on_error=False, print_error=False)
        if "context" in ignored:
            bound.arguments["context"] = Context(config=config, cache_dir_given=cache_dir, debug=debug)
        return int(command(*bound.args, **bound.kwargs) or 0)


def run_line(tokens: Sequence[str]) -> int:
    """Run one command line; every error ends here as lines on stderr and an exit code."""
    options = tokens[: tokens.index("--")] if "--" in tokens else tokens
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that this locale cannot print is no reason to fail
    try:
        code = build().meta(
            list(tokens), exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
        return int(code or 0)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read us has gone: `stretto ls | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit flushes and complains
        return BROKEN_PIPE
    except Exception as error:
        return report(error, command=_command_of(tokens), debug="--debug" in options)


def _command_of(tokens: Sequence[str]) -> str:
    found = next((token for token in tokens if token in COMMANDS or token == "config"), "")
    return "config show" if found == "config" else found
