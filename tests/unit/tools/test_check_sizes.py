"""The check of sizes finds planted files and functions that are too long, and the repository passes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_sizes

ROOT = Path(__file__).resolve().parents[3]


def function(lines: int, *, kind: str = "def") -> str:
    return f"{kind} work():\n" + "    pass\n" * (lines - 1)


def planted(root: Path, name: str, text: str) -> int:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return check_sizes.main([str(root)])


@pytest.mark.parametrize("folder", ["src/stretto/core", "tools", "benchmarks/gpu"])
def test_a_file_of_401_lines_fails_and_is_named(tmp_path, capsys, folder):
    assert planted(tmp_path, f"{folder}/long.py", "x = 1\n" * 400) == 0
    assert planted(tmp_path, f"{folder}/long.py", "x = 1\n" * 401) == 1
    out = capsys.readouterr().out
    assert f"{folder}/long.py: 401 lines, at most 400" in out
    assert "hint:" in out


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_function_of_61_lines_fails_and_is_named(tmp_path, capsys, kind):
    assert planted(tmp_path, "src/a.py", "\n" + function(60, kind=kind)) == 0
    assert planted(tmp_path, "src/a.py", "\n" + function(61, kind=kind)) == 1
    assert "src/a.py:2: work has 61 lines, at most 60" in capsys.readouterr().out


def test_methods_count(tmp_path):
    inside = "".join(f"    {line}\n" for line in function(61).splitlines())
    assert planted(tmp_path, "src/a.py", f"class A:\n{inside}") == 1


def test_tests_are_checked_too(tmp_path):
    assert planted(tmp_path, "tests/test_a.py", "x = 1\n" * 500) == 1


def test_exceptions_give_a_reason_and_name_what_is_there():
    for place, reason in check_sizes.EXCEPTIONS.items():
        path, name = place.split("::")
        assert len(reason) > 20
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_nothing_in_the_repository_is_too_long(capsys):
    assert check_sizes.main([str(ROOT)]) == 0
    assert "too long" in capsys.readouterr().out
