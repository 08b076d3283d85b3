"""What stands beside a figure: the processor by its name, whatever the kernel calls it."""

from __future__ import annotations

import pytest

from stretto.loadgen import conditions


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu\n", "Some CPU @ 2.0GHz"),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "Neoverse-N1"),
        ("processor\t: 0\nCPU implementer\t: 0x61\nCPU part\t: 0xd0c\n", "else"),
        ("", "else"),
    ],
    ids=["x86", "ARM's own", "another's part of that number", "nothing said"],
)
def test_the_processor_has_a_name(tmp_path, monkeypatch, said, name):
    file = tmp_path / "cpuinfo"
    file.write_text(said)
    monkeypatch.setattr(conditions, "_CPU_FILE", file)
    monkeypatch.setattr(conditions.platform, "processor", lambda: "else")
    assert conditions.cpu_name() == name


def test_without_such_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(conditions, "_CPU_FILE", tmp_path / "none")
    assert conditions.cpu_name()
