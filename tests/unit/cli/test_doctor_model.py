"""doctor MODEL: how a model runs on this machine, each quirk by its name; what does not load is said."""

from __future__ import annotations

import json
from dataclasses import fields

from stretto.backends.llamacpp.quirks import Quirks


def test_quirks_are_shown(call, dense):
    found = json.loads(call("doctor", dense, "--measure-s", "0", "--json").out)["model"]
    assert list(found["quirks"]) == [field.name for field in fields(Quirks)]
    assert found["kind"] == "dense"
    text = call("doctor", dense, "--measure-s", "0").out
    assert all(name in text for name in found["quirks"])
    assert "quirks_off" in text


def test_settings_apply(call, dense, tmp_path):
    (tmp_path / "stretto.yaml").write_text(
        "defaults: {flash_attention: off, quirks_off: [pad_gaps], kernels: llamacpp}\n"
    )
    found = json.loads(call("doctor", dense, "--measure-s", "0", "--json").out)["model"]["quirks"]
    assert not found["pad_gaps"]
    assert found["batch_invariant_ubatches"]
    assert found["own_kernels"] == "switched off by kernels: llamacpp"


def test_a_model_that_does_not_load(call, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    ended = call("doctor", bad, "--measure-s", "0", "--json")
    assert ended.code == 1
    assert "ends inside its header" in json.loads(ended.out)["model"]["problem"]
