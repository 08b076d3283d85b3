"""`stretto.core` and `stretto.core.kv` name what others may use; the limits load no scheduler."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import stretto.core
import stretto.core.kv

SOURCE = Path(stretto.core.__file__).parents[2]
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in (SOURCE / "stretto" / "core").rglob("*.py")
    if path.name != "__init__.py"
)


@pytest.mark.parametrize("package", [stretto.core, stretto.core.kv])
def test_every_public_name_is_the_one_of_its_module(package):
    for name in package.__all__:
        found = getattr(package, name)
        assert getattr(importlib.import_module(found.__module__), name) is found


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'Where'"):
        stretto.core.Where  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("stretto.core.Scheduler")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_any_module_can_be_the_first():
    """Each in an interpreter without the others: a circle shows only from some of its doors."""
    code = f"""
import importlib, sys
for first in {MODULES!r}:
    for name in [name for name in sys.modules if name.startswith("stretto")]:
        del sys.modules[name]
    importlib.import_module(first)
"""
    run(code)


def test_settings_do_not_load_the_scheduler():
    assert run("import sys, stretto.core.limits; print('stretto.core.scheduler' in sys.modules)") == "False\n"
