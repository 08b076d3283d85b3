"""The check for repeated class names finds planted ones, and the source passes it."""

from __future__ import annotations

from pathlib import Path

from tools import check_names

SOURCE = Path(__file__).resolve().parents[3] / "src"


def test_a_class_name_defined_in_two_modules_is_found(tmp_path, capsys):
    (tmp_path / "a.py").write_text("class Plan: ...\n")
    (tmp_path / "b.py").write_text("x = 1\n\n\nclass Plan: ...\n")
    assert check_names.main([str(tmp_path)]) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert "Plan is defined 2 times" in line
    assert "a.py:1" in line
    assert "b.py:4" in line


def test_nested_classes_and_imports_do_not_count(tmp_path):
    (tmp_path / "a.py").write_text("class Plan: ...\n")
    (tmp_path / "b.py").write_text("from a import Plan\n\n\nclass Other:\n    class Plan: ...\n")
    assert check_names.main([str(tmp_path)]) == 0


def test_the_source_has_no_repeated_class_name():
    assert check_names.main([str(SOURCE)]) == 0
