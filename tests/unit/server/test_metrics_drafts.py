"""Draft tokens in the metrics and in `stretto ps`, by what made them."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stretto.cli.ps import _show
from stretto.cluster.merging import merge_stats
from stretto.rpc.messages import ModelStats, Stats
from stretto.server.operations.counters import Counters
from stretto.server.operations.exposition import Scrape
from stretto.server.operations.metrics import render

MODEL = ModelStats(
    model_id="base",
    proposed_drafts={"ngram": 200, "draft_model": 1000},
    accepted_drafts={"ngram": 50, "draft_model": 800},
)


def stats(*models: ModelStats) -> Stats:
    return Stats(uptime_s=1.0, memory_bytes=0, streams=0, models=list(models))


def counted(name: str) -> dict[str, float]:
    text = render(Scrape(Counters(), stats(MODEL), {}, ready=True, draining=False))
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    return {sample.labels["drafter"]: sample.value for sample in families[name].samples}


def test_drafted_and_accepted_tokens_have_their_drafter_as_label() -> None:
    assert counted("stretto_draft_tokens") == {"ngram": 200, "draft_model": 1000}
    assert counted("stretto_accepted_draft_tokens") == {"ngram": 50, "draft_model": 800}


def test_drafts_of_replicas_add_up() -> None:
    other = ModelStats(
        model_id="base", proposed_drafts={"suffix": 9, "ngram": 1}, accepted_drafts={"suffix": 8}
    )
    (merged,) = merge_stats([(0, stats(MODEL)), (1, stats(other))]).models
    assert merged.proposed_drafts == {"ngram": 201, "draft_model": 1000, "suffix": 9}
    assert merged.accepted_drafts == {"ngram": 50, "draft_model": 800, "suffix": 8}


def test_ps_shows_the_acceptance_of_each_drafter(capsys: pytest.CaptureFixture[str]) -> None:
    import msgspec

    model = {"queued": {}, "active_slots": 0, "slots": 4, "kv_used": 0.0, "tokens": 0, "preemptions": {}}
    health = {"status": "ready", "runtime": {"models": [model | msgspec.to_builtins(MODEL)]}}
    _show("http://here", health, [], None, [])
    shown = capsys.readouterr().out
    assert "drafts by draft_model: 800 of 1,000 accepted (80%)" in shown
    assert "drafts by ngram: 50 of 200 accepted (25%)" in shown
