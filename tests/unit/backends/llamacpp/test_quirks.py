"""Quirks: one value that says what is done and why, and each answer can be switched off."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from stretto.backends.llamacpp.attention import Machine
from stretto.backends.llamacpp.plan import resolve
from stretto.backends.llamacpp.quirks import Quirks
from stretto.core.limits import Limits
from stretto.errors import DeterminismError
from stretto.settings import ModelSettings
from stretto.settings.model import Quirk
from tests.unit.backends.llamacpp.rig import (
    TOLERANCE,
    Loop,
    Reference,
    ask,
    make_backend,
    options,
    text,
    tiny,
)

ARM = Machine(half_precision=True)
FACTS = {"batch_invariant_rows_min", "tiled_attention", "own_kernels"}
SIZES = {"n_seq_max": 3, "context_window": 2048, "n_batch": 512, "n_ubatch": 512, "n_threads": 1}
DOCS = Path(__file__).parents[4] / "docs" / "design" / "quirks.md"


def off(*names: str) -> dict[str, object]:
    return {"quirks_off": frozenset(names)}


def test_every_answer_has_a_switch():
    names = {field.name for field in fields(Quirks)}
    assert set(get_args(Quirk)) == names - FACTS


def test_every_field_is_explained():
    explained = set(re.findall(r"^\| `(\w+)`", DOCS.read_text(encoding="utf-8"), re.M))
    assert {field.name for field in fields(Quirks)} <= explained


def test_an_unknown_switch_names_the_nearest():
    with pytest.raises(ValidationError, match="did you mean pad_gaps"):
        ModelSettings(quirks_off=["pad_gap"])


@pytest.mark.parametrize("given", [["pad_gaps", "tile_fill"], "pad_gaps, tile_fill"])
def test_switches_are_a_list_or_names_with_commas(given):
    assert ModelSettings(quirks_off=given).quirks_off == ["pad_gaps", "tile_fill"]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("row_attention", {"machine": ARM}),
        ("side_context", {}),
        ("separate_calls", {"flash_attention": "off"}),
        ("batch_invariant_ubatches", {"flash_attention": "off"}),
        ("tile_fill", {"flash_attention": "on", "machine": Machine()}),
        ("pad_gaps", {"flash_attention": "off"}),
    ],
)
def test_a_switch_does_what_it_says_and_texts_stay_right(name, more):
    """On, the quirk is answered; off, it is not, and tokens are still the model's."""
    with_it = make_backend("dense", **SIZES | more)
    without = make_backend("dense", **SIZES | more, **off(name))
    try:
        assert getattr(with_it.quirks, name) is True
        assert getattr(without.quirks, name) is False
        requests = [ask(f"r{n}", text(size, n), max_tokens=4) for n, size in enumerate((1100, 30, 70))]
        outputs = Loop(without, Limits(n_seq_max=3, n_batch=512, cache="none")).run(*requests)
        reference = Reference(tiny("dense"), window=2048)
        assert max(reference.gap(r.tokens, outputs[r.id]) for r in requests) <= TOLERANCE
        reference.close()
    finally:
        with_it.close()
        without.close()


def test_separate_calls_off_runs_decode_rows_and_chunks_together():
    backend = make_backend("dense", **SIZES, flash_attention="off", **off("separate_calls"))
    seen, decode = [], backend.context.decode
    backend.context.decode = lambda rows: (seen.append(len(rows)), decode(rows))[1]
    loop = Loop(backend, Limits(n_seq_max=3, n_batch=512, cache="none"))
    loop.submit(ask("a", 30, max_tokens=20))
    loop.step()
    loop.step()
    loop.submit(ask("b", 40, max_tokens=4))
    seen.clear()
    loop.step()
    backend.close()
    assert len(seen) == 1
    assert seen[0] > 16, "a decode row and a chunk in one call"
    assert backend.capabilities.mixed_batches


@pytest.mark.parametrize("name", ["pad_to_four", "pad_lone_row"])
def test_padding_that_depends_on_a_measurement(name):
    """Whether the machine wants it is measured; the switch forbids it either way."""
    from dataclasses import replace

    from stretto.backends.llamacpp.quirks import resolve as resolve_quirks
    from stretto.core.capabilities import Rewind

    for forbidden in (False, True):
        backend = make_backend("dense", machine=ARM, **SIZES, **(off(name) if forbidden else {}))
        wanted = replace(backend.measures, four_rows_faster=True, lone_row_invariant=False)
        found = resolve_quirks(backend.context, wanted, Rewind.ANY, side_context=False)
        backend.close()
        assert getattr(found, name) is not forbidden


def test_determinism_needs_some_of_them():
    with pytest.raises(DeterminismError, match="quirks_off: separate_calls"):
        resolve(tiny("dense"), options(deterministic=True, n_seq_max=1, **off("separate_calls")))


@pytest.mark.parametrize("kind", ["hybrid-lfm2", "recurrent", "swa"])
def test_models_that_cannot_recompute_rows_have_no_padding(kind):
    backend = make_backend(kind, swa_full=False)
    assert not backend.quirks.pads
    assert not backend.quirks.batch_invariant_ubatches
    backend.close()
