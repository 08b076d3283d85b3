"""`stretto chat`: a conversation at the terminal, with history.

`/reset` clears the conversation, `/system TEXT` starts a new one with another system prompt, `/image PATH`
and `/audio PATH` go with the next message, `/quit` exits. Lines between triple quotes form one message, as do
lines that end in a backslash. Ctrl-C stops the answer, not the chat.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from stretto.cli.attachments import with_parts
from stretto.cli.context import GlobalOptions
from stretto.cli.flags import ModelFlags, values
from stretto.cli.output import say
from stretto.cli.sampling import SamplingOptions
from stretto.errors import StrettoError

if TYPE_CHECKING:
    from stretto.llm import LLM

HISTORY_LINES_MAX = 2_000
BLOCK = '"""'
HELP = f"""\
/reset          clear the conversation
/system TEXT    start a new conversation with this system prompt
/image PATH     show a picture with the next message
/audio PATH     play a sound with the next message
/help           this list
/quit           exit (also Ctrl-D)
{BLOCK}             starts and ends a multi-line message; a trailing backslash continues a line
Ctrl-C          stops the answer"""


def chat(
    *,
    model: Annotated[str | None, Parameter(name=["--model", "-m"], metavar="MODEL")] = None,
    system: Annotated[str | None, Parameter(name=["--system", "-s"], metavar="TEXT")] = None,
    stats: Annotated[bool, Parameter(negative="")] = False,
    sampling: SamplingOptions | None = None,
    flags: ModelFlags = None,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Talk with a model. /help lists what can be typed besides messages.

    Parameters
    ----------
    model
        A .gguf file, a name from `stretto ls` or from the settings file. [default: SmolLM2-135M-Instruct]
    system
        A system prompt.
    stats
        Print the timing of each answer to stderr.
    """
    from stretto.cli.session import opened

    options = (sampling or SamplingOptions()).options()
    with opened(context, model, values(flags)) as llm, _history(context.cache_dir / "history"):
        if sys.stdin.isatty():
            say(f"{llm.description.get('model', 'the model')}; /help for help, /quit to exit")
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
        self._media: list[tuple[str, Path]] = []  # for the next message
        self.reset()

    def reset(self) -> None:
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._media = []

    def loop(self) -> None:
        while True:
            try:
                text = read_message(_ask)
            except EOFError:
                return
            except KeyboardInterrupt:
                say("\n(Ctrl-D or /quit exits)")
                continue
            if text.startswith("/") and "\n" not in text:
                if not self._command(text):
                    return
            elif text.strip():
                self._turn(text)

    def _command(self, text: str) -> bool:
        """Execute a slash command; False ends the chat."""
        name, _, rest = text.strip().partition(" ")
        if name in {"/quit", "/exit", "/bye"}:
            return False
        if name == "/reset":
            self.reset()
            say("conversation cleared")
        elif name == "/system":
            self._system = rest.strip() or None
            self.reset()
            say("new conversation")
        elif name in {"/image", "/audio"}:
            self._attach(name[1:], rest.strip())
        else:
            say(HELP if name == "/help" else f"unknown command {name}\n{HELP}")
        return True

    def _attach(self, kind: str, name: str) -> None:
        path = Path(name).expanduser()
        if not path.is_file():
            say(f"error: {name or 'nothing'} is not a file\nhint: /{kind} PATH")
            return
        self._media.append((kind, path))
        say(f"{path.name} goes with the next message")

    def _turn(self, text: str) -> None:
        """Ask, stream the answer, keep the history. An interrupted answer is kept as far as it was shown."""
        from stretto.cli.session import show_answer, show_stats

        asked = [*self._messages, {"role": "user", "content": with_parts(text, self._media)}]
        self._media = []
        shown: list[str] = []
        try:
            completion = show_answer(self._llm, asked, self._options, shown)
        except KeyboardInterrupt:
            say("\n(stopped)")
            self._messages = [*asked, {"role": "assistant", "content": "".join(shown)}]
            return
        except StrettoError as error:
            say(f"error: {error.message}\nhint: {error.hint or '/reset starts a new conversation'}")
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
    """Line editing and history, only for an interactive terminal."""
    try:
        import readline
    except ImportError:  # a Python without readline
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
