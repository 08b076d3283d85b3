"""chat: what is typed, what is remembered, and Ctrl-C that stops an answer but not the chat."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

from stretto.cli.chat import read_message
from tests.unit.cli.conftest import TIMEOUT_S, environment, hear_interrupts
from tests.unit.media_files.files import picture_bytes, two_halves

SIMULATED = ("--backend", "simulated")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hello"], "hello"),
        (["one \\", "two"], "one \ntwo"),
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['"""', "one", '"""'], "one"),
        (['"""all in one"""'], "all in one"),
        (["/quit"], "/quit"),
    ],
)
def test_messages_of_one_line_and_of_several(typed, message):
    lines = iter(typed)
    assert read_message(lambda _prompt: next(lines)) == message
    assert list(lines) == []


def test_a_piped_conversation(shell):
    ended = shell("chat", "-n", "5", *SIMULATED, stdin=b"hello\nagain\n/quit\nnever read\n")
    assert ended.code == 0
    assert len(ended.out.splitlines()) == 2
    assert ">>>" not in ended.out


def test_the_conversation_grows_until_reset(shell):
    lines = b"hello\nhello\n/reset\nhello\n/system be brief\nhello\n"
    ended = shell("chat", "-n", "5", "-t", "0", "--stats", *SIMULATED, stdin=lines)
    prompts = [int(count) for count in re.findall(r"(\d+) prompt tokens", ended.err)]
    assert len(prompts) == 4
    assert prompts[1] > prompts[0]
    assert prompts[2] == prompts[0]
    assert prompts[3] > prompts[0]


def test_commands_that_do_not_exist_are_answered(shell):
    ended = shell("chat", *SIMULATED, stdin=b"/frob\n/help\n")
    assert "unknown command /frob" in ended.err
    assert ended.err.count("/reset") == 2


def test_a_prompt_too_long_does_not_end_the_chat(shell):
    lines = b"x" * 5_000 + b"\nhello\n"
    ended = shell("chat", "-n", "5", "--context-window", "1024", *SIMULATED, stdin=lines)
    assert ended.code == 0
    assert "error: the prompt has" in ended.err
    assert len(ended.out.splitlines()) == 1


class Terminal:
    """A chat at a real terminal."""

    def __init__(self, shell, *arguments: str) -> None:
        self._side, other = pty.openpty()
        self.process = subprocess.Popen(
            shell.command(*arguments),
            stdin=other,
            stdout=other,
            stderr=other,
            env={**environment(shell.home), "TERM": "dumb"},
            cwd=shell.home,
            start_new_session=True,
            preexec_fn=hear_interrupts,  # noqa: PLW1509 - one call that is safe there
        )
        os.close(other)
        self.seen = ""

    def until(self, pattern: str, *, pressing: signal.Signals | None = None) -> str:
        """What is shown up to the pattern. A signal is sent again every second: between showing its prompt
        and waiting for a key, Python's readline overlooks one."""
        ends_s, press_s = time.monotonic() + TIMEOUT_S, 0.0
        while not re.search(pattern, self.seen):
            assert time.monotonic() < ends_s, self.seen[-500:]
            if pressing is not None and time.monotonic() > press_s:
                self.process.send_signal(pressing)
                press_s = time.monotonic() + 1.0
            if select.select([self._side], [], [], 1.0)[0]:
                try:
                    self.seen += os.read(self._side, 65_536).decode("utf-8", "replace")
                except OSError:  # the other side is closed
                    break
        seen, self.seen = self.seen, ""
        return seen

    def type(self, text: str) -> None:
        os.write(self._side, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._side)


def test_ctrl_c_stops_the_answer_and_not_the_chat(shell):
    terminal = Terminal(shell, "chat", *SIMULATED, "--context-window", "4M", "--ignore-eos")
    try:
        terminal.until(">>> ")
        terminal.type("hello\n")
        terminal.until(r"hello\r?\n.{20}")
        terminal.process.send_signal(signal.SIGINT)
        assert "Traceback" not in terminal.until(r"\(stopped\)[\s\S]*>>> ")
        terminal.until(r"/quit exits\)[\s\S]*>>> ", pressing=signal.SIGINT)
        terminal.type("/quit\n")
        assert terminal.process.wait(TIMEOUT_S) == 0
        assert (shell.home / "cache" / "history").read_text().split() == ["hello", "/quit"]
    finally:
        terminal.close()


def test_run_without_a_prompt_is_a_chat(shell):
    terminal = Terminal(shell, "run", *SIMULATED)
    try:
        terminal.until(r"/help for help[\s\S]*>>> ")
        terminal.type("\x04")
        assert terminal.process.wait(TIMEOUT_S) == 0
    finally:
        terminal.close()


def test_a_picture_goes_with_the_next_message(shell, tmp_path):
    (tmp_path / "red.png").write_bytes(picture_bytes(two_halves(64, 64), "PNG"))
    lines = f"/image missing.png\nhello\n/reset\n/image {tmp_path}/red.png\nhello\nhello\n".encode()
    ended = shell("chat", "-n", "5", "-t", "0", "--stats", "--mmproj", "eyes", *SIMULATED, stdin=lines)
    assert "missing.png is not a file" in ended.err
    assert "red.png goes with the next message" in ended.err
    prompts = [int(count) for count in re.findall(r"(\d+) prompt tokens", ended.err)]
    assert prompts[1] == prompts[0] + 6
    assert prompts[2] > prompts[1]
