"""What `make setup` prints while pip works: progress, and errors with the place of the whole log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from tools import compile_progress
from tools.compile_progress import Progress, follow

PIP = [
    "Collecting llama-cpp-python==0.3.36\n",
    "  Building wheel for llama-cpp-python (pyproject.toml): started\n",
    "  [1/83] /usr/bin/c++ -o a.o\n",
    "  [42/83] /usr/bin/c++ -o b.o\n",
    "  [83/83] linking\n",
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_each_step_on_one_line(tmp_path: Path) -> None:
    out = Terminal()
    assert follow(PIP, tmp_path / "log", out, io.StringIO()) == 0
    shown = [text.strip() for text in out.getvalue().split("\r") if text.strip()]
    assert [text.rpartition(",")[0] for text in shown[:-1]] == [
        "resolving llama-cpp-python",
        "building llama-cpp-python",
        "compiling llama.cpp: 1 of 83 steps (1 %)",
        "compiling llama.cpp: 42 of 83 steps (50 %)",
        "compiling llama.cpp: 83 of 83 steps (100 %)",
    ]
    assert shown[-1].startswith("done in")
    assert (tmp_path / "log").read_text() == "".join(PIP)


def test_a_file_gets_a_line_every_few_seconds() -> None:
    out = io.StringIO()
    progress = Progress(out, started_s=100.0)
    every_s = compile_progress.LINE_EVERY_S
    for step in range(1, 41):
        progress.line(f"  [{step}/40] c++", now_s=100.0 + step * every_s / 10)
    assert out.getvalue().splitlines() == [
        f"      compiling llama.cpp: {step} of 40 steps ({step * 100 // 40} %), {step * every_s / 10:.0f} s"
        for step in (10, 20, 30, 40)
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_failure_shows_the_compilers_error_and_where_the_log_is(terminal: bool, tmp_path: Path) -> None:
    error = "  ops.cpp:7:1: error: unknown type name 'x'\n"
    noise = [f"  line {number}\n" for number in range(100)]
    lines = [*PIP, error, *noise, "ERROR: Failed building wheel for llama-cpp-python\n"]
    out, err = Terminal() if terminal else io.StringIO(), io.StringIO()
    assert follow(lines, tmp_path / "log", out, err) == 1
    assert error in err.getvalue()
    assert "line 99" in err.getvalue()
    assert "line 50" not in err.getvalue()
    assert f"hint: the whole output is in {tmp_path / 'log'}" in err.getvalue()
    assert "done in" not in out.getvalue()
