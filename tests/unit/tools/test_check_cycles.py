"""The check for import cycles finds planted ones, of modules and of folders, and the source passes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_cycles

SOURCE = Path(__file__).resolve().parents[3] / "src"


def planted(directory: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        path = directory / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(check_cycles.cycles(directory))


@pytest.mark.parametrize(
    "back",
    [
        "from house.a import A",
        "import house.a",
        "from house import a",
        "from . import a",
        "from .a import A",
        "def late():\n    from house.a import A",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.a import A",
    ],
)
def test_two_modules_that_import_each_other_are_found(tmp_path, back):
    found = planted(tmp_path, {"a.py": "from house.b import B", "b.py": back})
    assert any(
        "modules import each other" in line and "house.a" in line and "house.b" in line for line in found
    )


def test_a_longer_cycle_is_named_in_the_order_of_its_imports(tmp_path):
    files = {"a.py": "import house.b", "b.py": "import house.c", "c.py": "import house.a"}
    (line, *_) = planted(tmp_path, files)
    route = line.partition(": ")[2].split(" → ")
    assert route[0] == route[-1]
    assert "house.a → house.b" in line or "house.b → house.c" in line


def test_folders_that_import_each_other_are_found_although_no_modules_do(tmp_path):
    files = {
        "x/one.py": "import house.y.two",
        "y/two.py": "",
        "y/three.py": "import house.x.four",
        "x/four.py": "",
    }
    assert planted(tmp_path, files) == ["parts of house import each other: house.x → house.y → house.x"]


def test_a_module_beside_a_folder_counts_as_well(tmp_path):
    files = {"x/one.py": "import house.tick", "tick.py": "import house.x.two", "x/two.py": ""}
    (line,) = planted(tmp_path, files)
    assert line.startswith("parts of house import each other:")


def test_deeper_folders_are_checked_too(tmp_path):
    files = {
        "deep/x/one.py": "import house.deep.y.two",
        "deep/y/two.py": "",
        "deep/y/three.py": "from house.deep.x import four",
        "deep/x/four.py": "",
    }
    (line,) = planted(tmp_path, files)
    assert line.startswith("parts of house.deep import each other:")


def test_a_package_may_re_export_its_modules(tmp_path):
    files = {
        "x/__init__.py": "from house.x.one import One",
        "x/one.py": "from house.x.two import Two",
        "x/two.py": "",
    }
    assert planted(tmp_path, files) == []


def test_a_cycle_through_a_package_s_init_is_found(tmp_path):
    files = {"x/__init__.py": "from house.x.one import One", "x/one.py": "from house.x import One"}
    (line,) = planted(tmp_path, files)
    assert "house.x.one" in line


def test_a_cycle_fails_the_check_with_a_hint(tmp_path, capsys):
    planted(tmp_path, {"a.py": "import house.b", "b.py": "import house.a"})
    assert check_cycles.main([str(tmp_path)]) == 1
    assert "hint:" in capsys.readouterr().out


def test_the_source_has_no_cycles(capsys):
    assert check_cycles.main([str(SOURCE)]) == 0
    assert "No import cycles" in capsys.readouterr().out
