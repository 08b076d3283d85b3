"""The purity check finds impure code, and the core passes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_layers

PACKAGE = "stretto.core"
SOURCE = Path(__file__).resolve().parents[3] / "src"


def reasons(source: str, package: str = PACKAGE) -> list[str]:
    return [reason for _, reason in check_layers.violations(source, package)]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import time", "imports time"),
        ("import os.path", "imports os.path"),
        ("from random import Random", "imports random"),
        ("import numpy as np", "imports numpy"),
        ("from stretto.backends import base", "imports stretto.backends"),
        ("from stretto import backends", "imports stretto.backends"),
        ("from .. import backends", "imports stretto.backends"),
        ("from ..settings import model", "imports stretto.settings"),
        ("def f():\n    import threading", "imports threading"),
        ("print(1)", "calls print()"),
        ("x = open('f')", "calls open()"),
        ("__import__('time')", "calls __import__()"),
    ],
)
def test_impure_code_is_refused(source, reason):
    assert reasons(source) == [reason]


@pytest.mark.parametrize(
    "source",
    [
        "from __future__ import annotations",
        "import heapq, math",
        "from collections.abc import Sequence",
        "from stretto.core.slot import Slot",
        "from stretto.errors import InvariantError",
        "from stretto import errors",
        "from . import slot",
        "from .kv import ops",
        "self.print()",
    ],
)
def test_pure_code_is_allowed(source):
    assert reasons(source) == []


def test_lines_are_named():
    assert list(check_layers.violations("x = 1\n\nimport time\n", PACKAGE)) == [(3, "imports time")]


def planted(directory: Path, files: dict[str, str]) -> int:
    for name, text in files.items():
        path = directory / "stretto" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return check_layers.main([str(directory)])


def test_a_planted_import_is_found(tmp_path, capsys):
    files = {
        "core/a.py": "import math\n",
        "core/kv/b.py": "import socket\n",
        "errors/rpc.py": "import json\n",
    }
    assert planted(tmp_path, files) == 1
    out = capsys.readouterr().out
    assert "b.py:1: the core is pure, but this imports socket" in out
    assert "rpc.py:1: the core is pure, but this imports json" in out
    assert "hint:" in out


def test_other_layers_may_do_as_they_like(tmp_path):
    assert planted(tmp_path, {"core/a.py": "import math\n", "server/b.py": "import socket\n"}) == 0


def test_the_core_is_pure(capsys):
    assert check_layers.main([str(SOURCE)]) == 0
    assert "The core is pure" in capsys.readouterr().out
