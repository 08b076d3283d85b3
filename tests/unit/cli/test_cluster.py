"""`stretto cluster serve` without Ray: one command to install it."""

from __future__ import annotations

import sys

import pytest

from stretto.cli import main


@pytest.mark.parametrize("name", ["ray", "ray.serve"])
def test_without_ray_the_error_names_the_one_command(monkeypatch, capsys, name):
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["cluster", "serve", "--backend", "simulated", "--replicas", "2"]) == 2
    told = capsys.readouterr().err
    assert "Ray Serve is not installed" in told
    assert "pip install 'stretto[ray]'" in told


def test_a_wrong_number_of_replicas_is_refused_at_once(capsys):
    assert main(["cluster", "serve", "--backend", "simulated", "--replicas", "0"]) == 2
    assert "replicas: 0" in capsys.readouterr().err
