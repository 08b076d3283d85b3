"""Choices at load: measured once, recalled in no time, shown, and never believed from a damaged file."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from stretto.backends.llamacpp import ContextOptions, LlamaCppBackend, ModelOptions
from stretto.backends.llamacpp.attention import Machine, candidates
from stretto.backends.llamacpp.choices import chosen, measuring, rounds
from stretto.backends.llamacpp.choices import questions as ask
from stretto.backends.llamacpp.choices.chosen import CACHED, EXPECTED, MEASURED, ModelChooser
from stretto.backends.llamacpp.choices.decision import Decision, Samples
from stretto.backends.llamacpp.choices.store import CACHE_FILE
from stretto.testing import tiny_models
from tests.unit.backends.llamacpp.rig import options, tiny

DECIDED = [
    Decision(question=ask.ATTENTION, chosen="plain", times={"rows": {"p": 2.0}, "plain": {"p": 1.0}}),
    Decision(question=ask.LONG_PROMPTS, chosen=ask.IN_SLOTS, times={}, only=True),
    Decision(question=ask.THREADS_DECODE, chosen="1", times={}, only=True),
    Decision(question=ask.THREADS_PREFILL, chosen="2", times={}, only=True),
    Decision(question=ask.PAD_TO_FOUR, chosen=ask.YES, times={"no": {"p": 2.0}, "yes": {"p": 1.0}}),
]
SIZES = {"n_seq_max": 4, "context_window": 512, "n_batch": 256, "n_ubatch": 128, "n_threads": 1}


def open_backend(folder: Path, **more) -> LlamaCppBackend:
    return LlamaCppBackend.open(
        tiny_models.make("dense"),
        cache_dir=folder,
        trial=False,
        model_options=ModelOptions(n_gpu_layers=0),
        context_options=ContextOptions(**SIZES | more),
    )


@pytest.fixture
def decided(monkeypatch):
    """A machine on which plain attention, one thread for decode and padding won; counts measurements."""
    asked: list[str] = []
    monkeypatch.setattr(chosen, "measured", lambda *_: (asked.append("measured"), list(DECIDED))[1])
    return asked


def test_what_was_decided_runs_and_is_recalled(tmp_path, decided):
    first = open_backend(tmp_path, n_threads=0)
    again = open_backend(tmp_path, n_threads=0)
    for backend, origin in ((first, MEASURED), (again, CACHED)):
        assert backend.choices.origin == origin
        assert not backend.context.flash_attention
        assert backend.quirks.pad_to_four
        assert backend.threads == 1
        backend.close()
    assert decided == ["measured"]
    assert again.choices.decisions == first.choices.decisions
    assert again.choices.figures == first.choices.figures
    assert again.choices.took_s < 0.05


def test_fewer_threads_are_used_when_two_loads_find_them_faster(tmp_path, monkeypatch):
    """Once may be a neighbour on the other processor."""
    measured = []

    def found(*_):
        answer = measured[-1]
        times = {"2": {"p": 1.0}, "1": {"p": 0.9 if answer == "1" else 2.0}}
        return [Decision(question=ask.THREADS_DECODE, chosen=answer, times=times)]

    def load(answer: str) -> tuple[str, int]:
        measured.append(answer)
        monkeypatch.setattr(chosen, "measured", found)
        backend = open_backend(tmp_path, n_threads=0)
        backend.close()
        return backend.choices.origin, backend.choices.threads_decode

    assert load("1") == (MEASURED, 2)
    assert load("2") == (MEASURED, 2)
    assert load("1") == (CACHED, 2), "two were found faster: that needs no second load"
    (tmp_path / CACHE_FILE).unlink()
    assert load("1") == (MEASURED, 2)
    assert load("1") == (MEASURED, 1)
    assert load("2") == (CACHED, 1)


def test_other_options_are_measured_on_their_own(tmp_path, decided):
    for more in ({}, {"n_seq_max": 2}, {"context_window": 256}, {"n_ubatch": 64}):
        open_backend(tmp_path, **more).close()
    assert decided == ["measured"] * 4
    open_backend(tmp_path, n_seq_max=2).close()
    assert len(decided) == 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry.pop("decisions"),
        lambda entry: entry.update(decisions=[{"question": 1}]),
        lambda entry: entry["decisions"][0].update(chosen="tiles"),
        lambda entry: entry["decisions"][2].update(chosen="many"),
        lambda entry: entry.update(figures=None),
        lambda entry: entry["decisions"][0].update(times="soon"),
        lambda entry: entry["decisions"][0].pop("unconfirmed"),
    ],
)
def test_a_damaged_entry_is_ignored_with_one_line_and_measured_again(tmp_path, decided, caplog, damage):
    open_backend(tmp_path).close()
    stored = json.loads((tmp_path / CACHE_FILE).read_text())
    (entry,) = stored["entries"].values()
    damage(entry)
    (tmp_path / CACHE_FILE).write_text(json.dumps(stored))
    with caplog.at_level(logging.WARNING, "stretto.choices"):
        open_backend(tmp_path).close()
    assert decided == ["measured"] * 2
    assert [record.name for record in caplog.records] == ["stretto.choices"]
    open_backend(tmp_path).close()
    assert decided == ["measured"] * 2, "the damaged entry was replaced"


def test_what_was_not_believed_is_not_remembered(tmp_path, monkeypatch):
    doubtful = [Decision(question=ask.ATTENTION, chosen="rows", times={})]
    monkeypatch.setattr(chosen, "measured", lambda *_: doubtful)
    backend = open_backend(tmp_path)
    assert backend.choices.origin == EXPECTED
    assert not (tmp_path / CACHE_FILE).exists()
    backend.close()


def test_stale_choices_are_dropped(tmp_path, decided):
    backend = open_backend(tmp_path)
    assert backend.drift is not None
    backend.drift._on_stale()
    backend.close()
    open_backend(tmp_path).close()
    assert decided == ["measured"] * 2


# --- real passes -------------------------------------------------------------------------------------


def test_every_question_is_answered_by_real_passes(monkeypatch):
    """However busy this machine is: here every round is believed, and the limit is far away."""
    monkeypatch.setattr(Samples, "_spread", lambda *_: 1.0)
    monkeypatch.setattr(measuring, "LIMIT_S", 60.0)
    monkeypatch.setattr(rounds, "ROUNDS_MAX", 4)
    model = tiny("dense")
    window = {"n_threads": 0, "context_window": 2048, "n_ubatch": 512, "n_batch": 512}
    found = {one.question: one for one in measuring.Measuring(model, options(**window), None).run()}
    assert {ask.ATTENTION, ask.LONG_PROMPTS, ask.THREADS_DECODE, ask.PAD_TO_FOUR} <= set(found)
    times = found[ask.ATTENTION].times
    assert set(times) == {"plain", "rows"}
    assert all(seconds > 0 for probes in times.values() for seconds in probes.values())
    assert set(times["rows"]) == {ask.DECODE_SHORT, ask.DECODE_LONG, ask.CHUNK_SHORT, ask.CHUNK_LONG}
    assert set(found[ask.LONG_PROMPTS].times) == {ask.SIDE_CONTEXT, ask.IN_SLOTS}


def test_kernels_are_compared_with_a_context_where_attention_is_settled(monkeypatch):
    """They differ in how they attend, and llama.cpp's compute prompts row by row in smaller passes."""
    monkeypatch.setattr(measuring, "LIMIT_S", 60.0)
    monkeypatch.setattr(rounds, "ROUNDS_MAX", 1)
    monkeypatch.setattr(measuring.interpose, "may_choose", lambda: True)
    lengths, passes = set[int](), set[int]()

    class Watched(measuring.Trial):
        def decode_s(self, rows: int, layers: int) -> float:
            lengths.add(self.length)
            return super().decode_s(rows, layers)

        def chunk_s(self, rows: int, layers: int, *, rows_max: int = 0) -> float:
            passes.add(rows_max)
            return super().chunk_s(rows, layers, rows_max=rows_max)

    monkeypatch.setattr(measuring, "Trial", Watched)
    asked = options(context_window=512, n_ubatch=512, n_batch=512, drafts_max=4)
    found = measuring.Measuring(tiny("dense"), asked, None).run()
    assert ask.KERNELS in {one.question for one in found}
    assert next(one for one in found if one.question == ask.ATTENTION).only
    assert lengths == {measuring.SHORT}
    assert max(passes) < 64


@pytest.mark.parametrize("kind", ["moe", "swa", "hybrid-lfm2", "recurrent"])
def test_every_kind_of_model_is_measured_or_left_alone(kind):
    choices = ModelChooser(tiny(kind), options(n_seq_max=2, context_window=512), None).choose()
    assert choices.chosen(ask.ATTENTION) in ("", "plain", "rows", "tiles")


def test_tiles_are_no_candidate():
    """Their sums follow the chunks: only batch-invariant attention may be chosen."""
    model = tiny("dense")
    for machine in (Machine(), Machine(half_precision=True, own_attention_heads=(16,))):
        for window in (512, 8192):
            found = candidates(model.shape, options(n_ubatch=512, n_batch=512), window, machine)
            assert {one.slots for one in found} == {"plain", "rows"}


@pytest.mark.parametrize("heads", [(), (16,)])
def test_in_deterministic_mode_attention_is_no_question(heads):
    """Chosen by time, text could differ from one start to the next."""
    machine = Machine(half_precision=True, own_attention_heads=heads)
    asked = options(n_ubatch=512, n_batch=512, deterministic=True)
    (only,) = candidates(tiny("dense").shape, asked, 4096, machine)
    assert (only.slots, only.side_context) == ("rows" if heads else "plain", False)
