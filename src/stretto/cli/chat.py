"""`stretto chat`: a conversation at the terminal, with history.

`/reset` forgets, `/system TEXT` begins anew under another system prompt, `/quit` leaves. Lines between two
triple quotes are one message; so are a line that ends in a backslash and the next. Ctrl-C stops the answer,
not the chat.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from stretto.cli.context import Context
from stretto.cli.flags import ModelFlags, values
from stretto.cli.output import say
from stretto.cli.sampling import Sampling
from stretto.errors import StrettoError

if TYPE_CHECKING:
    from stretto.llm import LLM

HISTORY_LINES_MAX = 2_000
BLOCK = '"""'
HELP = f"""\
/reset          forget the conversation
/system TEXT    begin anew under this system prompt
/help           this list
/quit           leave (so does Ctrl-D)
{BLOCK}             begins and ends a message of several lines; so does a backslash at a line's end
Ctrl-C          stops the answer"""


def chat(
    *,
    model: Annotated[str | None, Parameter(name=["--model", "-m"], metavar="MODEL")] = None,
    system: Annotated[str | None, Parameter(name=["--system", "-s"], metavar="TEXT")] = None,
    stats: Annotated[bool, Parameter(negative="")] = False,
    sampling: Sampling | None = None,
    flags: ModelFlags = None,
    context: Annotated[Context, Parameter(parse=False)],
) -> None:
    """Talk with a model. /help lists what can be typed besides messages.

    Parameters
    ----------
    model
        A .gguf file, a name from `stretto ls` or from the settings file. [default: SmolLM2-135M-Instruct]
    system
        A system prompt.
    stats
        Say on stderr how long each answer took.
    """
    from stretto.cli.session import opened

    options = (sampling or Sampling()).options()
    with opened(context, model, values(flags)) as llm, _history(context.cache_dir / "history"):
        if sys.stdin.isatty():
            say(f"{llm.description.get('model', 'the model')}; /help for help, /quit to leave")
        Repl(llm, options, system=system, stats=stats).loop()


class Repl:
    """Reads messages, shows answers, keeps the conversation."""

    def __init__(
        self, llm: LLM, options: Mapping[str, Any], *, system: str | None = None, stats: bool = False
    ) -> None:
        self._llm = llm
        self._options = options
        self._system = system
        self._stats = stats
        self._messages: list[dict[str, Any]] = []
        self.reset()

    def reset(self) -> None:
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def loop(self) -> None:
        while True:
            try:
                text = read_message(_ask)
            except EOFError:
                return
            except KeyboardInterrupt:
                say("\n(Ctrl-D or /quit leaves)")
                continue
            if text.startswith("/") and "\n" not in text:
                if not self._command(text):
                    return
            elif text.strip():
                self._turn(text)

    def _command(self, text: str) -> bool:
        """Obey a line that begins with a slash; False ends the chat."""
        name, _, rest = text.strip().partition(" ")
        if name in {"/quit", "/exit", "/bye"}:
            return False
        if name == "/reset":
            self.reset()
            say("the conversation is forgotten")
        elif name == "/system":
            self._system = rest.strip() or None
            self.reset()
            say("a new conversation has begun")
        else:
            say(HELP if name == "/help" else f"unknown command {name}\n{HELP}")
        return True

    def _turn(self, text: str) -> None:
        """Ask, show, remember. An answer that was stopped is kept as far as it was shown."""
        from stretto.cli.session import show_answer, show_stats

        asked = [*self._messages, {"role": "user", "content": text}]
        shown: list[str] = []
        try:
            completion = show_answer(self._llm, asked, self._options, shown)
        except KeyboardInterrupt:
            say("\n(stopped)")
            self._messages = [*asked, {"role": "assistant", "content": "".join(shown)}]
            return
        except StrettoError as error:
            say(f"error: {error.message}\nhint: {error.hint or '/reset begins anew'}")
            return
        self._messages = [*asked, {"role": "assistant", "content": completion.text}]
        if self._stats:
            show_stats(completion)


def _ask(prompt: str) -> str:
    return input(prompt if sys.stdin.isatty() else "")


def read_message(ask: Callable[[str], str]) -> str:
    """One message, of one line or several."""
    line = ask(">>> ")
    if line.startswith(BLOCK):
        return "\n".join(_until_block_ends(line[len(BLOCK) :], ask)).strip("\n")
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(ask("... "))
    return "\n".join(lines)


def _until_block_ends(line: str, ask: Callable[[str], str]) -> Iterator[str]:
    while not line.rstrip().endswith(BLOCK):
        yield line
        line = ask("... ")
    yield line.rstrip()[: -len(BLOCK)]


@contextlib.contextmanager
def _history(path: Path) -> Iterator[None]:
    """Line editing, and what was typed in earlier chats; only where somebody sits at the keyboard."""
    try:
        import readline
    except ImportError:  # a Python without it
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES_MAX)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
            path.chmod(0o600)
