"""doctor MODEL: how a model runs on this machine, each quirk by its name; what does not load is said."""

from __future__ import annotations

import json
from dataclasses import fields

from stretto.backends.llamacpp.quirks import Quirks
from stretto.cli import model_facts


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


def test_choices_are_shown(call, dense):
    found = json.loads(call("doctor", dense, "--measure-s", "0", "--json").out)["model"]["choices"]
    assert found["origin"] in ("measured", "cached", "expected")  # a busy machine is not believed
    assert found["table"][0]["question"] == "attention of slots"
    text = call("doctor", dense, "--measure-s", "0").out
    assert "Choices of auto" in text
    assert "attention of slots" in text


TIMED = {
    "choices": {
        "origin": "cached",
        "date": "2026-11-17",
        "took_s": 0.01,
        "table": [
            {
                "question": "attention of slots",
                "chosen": "rows",
                "unconfirmed": "",
                "ms": {"plain": {"decode": 28.2}, "rows": {"decode": 17.9}},
            },
            {"question": "threads for decode", "chosen": "2", "unconfirmed": "", "ms": {}},
            {
                "question": "threads for prefill",
                "chosen": "2",
                "unconfirmed": "1",
                "ms": {"2": {"prefill": 3.1}, "1": {"prefill": 2.2}},
            },
        ],
    }
}


def test_the_table_marks_the_chosen_candidate_and_says_where_it_came_from():
    assert model_facts.choice_rows(TIMED) == [
        ("attention of slots", "  plain", "decode 28.2 ms"),
        ("", "→ rows", "decode 17.9 ms"),
        ("threads for decode", "→ 2", "not measured"),
        ("threads for prefill", "→ 2", "prefill 3.1 ms"),
        ("", "  1", "prefill 2.2 ms; chosen if the next load finds the same"),
    ]
    assert model_facts.choices_origin(TIMED).startswith("cached on 2026-11-17")
    now = {"choices": TIMED["choices"] | {"origin": "measured", "took_s": 1.77}}
    assert model_facts.choices_origin(now).startswith("measured now, in 1.8 s")
