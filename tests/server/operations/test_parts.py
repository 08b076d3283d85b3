"""Pure parts: readiness, Retry-After, nesting, histograms, callers, keys."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from stretto.client.api import Health
from stretto.errors import SettingsError
from stretto.rpc.messages import ModelStats, Stats
from stretto.server.http.caller import Caller
from stretto.server.http.json_shape import nesting
from stretto.server.http.keys import load_keys
from stretto.server.operations.health import judge
from stretto.server.operations.retry_after import MOST_S, RetryAfter
from stretto.server.run import bind, check
from stretto.settings import ServerSettings
from stretto.telemetry.histogram import Histogram

# ── readiness ────────────────────────────────────────────────────────────────────────────────────


def stats(*, busy: bool, age_s: float) -> Stats:
    model = ModelStats(model_id="m", busy=busy, last_tick_age_s=age_s)
    return Stats(uptime_s=1, memory_bytes=1, streams=0, models=[model])


@pytest.mark.parametrize(
    ("client_ready", "draining", "answers", "busy", "old"),
    list(itertools.product([True, False], repeat=5)),
)
def test_ready_means_that_a_model_can_answer_now(
    client_ready: bool, draining: bool, answers: bool, busy: bool, old: bool
) -> None:
    found = judge(
        Health(ready=client_ready, reason="" if client_ready else "loading"),
        draining=draining,
        stats=stats(busy=busy, age_s=100.0 if old else 0.1) if answers else None,
        loaded=True,
        hang_after_s=60,
    )
    hung = busy and old
    assert found.ready == (client_ready and not draining and answers and not hung)
    assert bool(found.reason) != found.ready


def test_without_a_model_nothing_is_ready() -> None:
    found = judge(
        Health(ready=True), draining=False, stats=stats(busy=False, age_s=0), loaded=False, hang_after_s=60
    )
    assert (found.ready, found.reason) == (False, "no model is loaded")


# ── Retry-After ──────────────────────────────────────────────────────────────────────────────────


def test_retry_after_is_the_queue_over_the_rate() -> None:
    pace = RetryAfter()
    for second in range(20):
        pace.ended(second * 0.5)  # two a second
    assert pace.seconds(10.0, waiting=19) == pytest.approx(10, abs=1)
    assert pace.seconds(10.0, waiting=0) == 1
    assert pace.seconds(10.0, waiting=10**6) == MOST_S


def test_retry_after_forgets_what_is_long_past() -> None:
    pace = RetryAfter()
    for _ in range(50):
        pace.ended(0.0)
    assert pace.rate(1000.0) is None
    assert pace.seconds(1000.0, waiting=0) == 2


def test_retry_after_spreads_clients() -> None:
    pace = RetryAfter()
    pace.ended(0.0)
    pace.ended(1.0)
    answers = {pace.seconds(2.0, waiting=30, chance=chance / 10) for chance in range(11)}
    assert len(answers) > 3


# ── nesting ──────────────────────────────────────────────────────────────────────────────────────


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


VALUES = st.recursive(
    st.none() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


@given(VALUES, st.integers(0, 8))
def test_nesting_is_counted_as_a_parser_would(value: object, enough: int) -> None:
    found = nesting(json.dumps(value).encode(), enough)
    assert (found > enough) == (depth_of(value) > enough)


@pytest.mark.parametrize(
    "body",
    [
        b"[]" * 2_000_000,
        b"[" * 4_000_000,
        b"[}" * 2_000_000,
        b"][" * 2_000_000,
        b'"' * 4_000_000,
        b'"["' * 1_300_000,
    ],
)
def test_nesting_of_hostile_bodies_is_quick(body: bytes) -> None:
    started = time.process_time()
    nesting(body, 64)
    assert time.process_time() - started < 2.0


# ── histogram ────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.floats(0, 100), max_size=50))
def test_histogram_counts_everything_once(values: list[float]) -> None:
    histogram = Histogram((0.1, 1.0, 10.0))
    for value in values:
        histogram.observe(value)
    buckets = dict(histogram.buckets())
    assert buckets["+Inf"] == len(values) == histogram.count
    assert buckets["1.0"] == sum(value <= 1.0 for value in values)
    assert histogram.total == pytest.approx(sum(values))


def test_tokens_that_came_together_share_their_gap() -> None:
    one, many = Histogram((1.0,)), Histogram((1.0,))
    for _ in range(3):
        one.observe(0.25)
    many.observe(0.25, 3)
    assert (one.counts, one.total) == (many.counts, many.total)


# ── callers and keys ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ceiling", "asked", "given_"),
    [
        ("urgent", "urgent", "urgent"),
        ("urgent", None, "default"),
        ("default", "urgent", "default"),
        ("default", "background", "background"),
        ("background", "urgent", "background"),
        ("background", None, "background"),
    ],
)
def test_a_key_has_a_ceiling(ceiling: str, asked: str | None, given_: str) -> None:
    assert Caller(priority_max=ceiling).priority(asked) == given_  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "ceiling", "asked", "given_"),
    [
        ("background", "urgent", None, "background"),
        ("background", "urgent", "urgent", "urgent"),
        ("urgent", "urgent", None, "urgent"),
        ("urgent", "default", None, "default"),
        ("urgent", "background", "default", "background"),
    ],
)
def test_a_key_has_a_priority_of_its_own_under_the_ceiling(own, ceiling, asked, given_):
    assert Caller(priority_default=own, priority_max=ceiling).priority(asked) == given_


def key_file(tmp_path: Path, text: str, mode: int = 0o600) -> ServerSettings:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    os.chmod(path, mode)
    return ServerSettings(api_key_file=str(path))


def test_keys_one_a_line(tmp_path: Path) -> None:
    keys = load_keys(key_file(tmp_path, "# ours\nsk-first-key\n\nsk-second-key # bob\n"))
    assert len(keys) == 2
    first, second = keys.find("sk-first-key"), keys.find("sk-second-key")
    assert first is not None
    assert second is not None
    assert first.caller.tenant != second.caller.tenant
    assert keys.find("sk-first") is None


def test_keys_as_yaml(tmp_path: Path) -> None:
    text = (
        "keys:\n  - {key: sk-alice-1, name: alice, tenant: team, priority_max: default, concurrency_max: 2}\n"
    )
    found = load_keys(key_file(tmp_path, text)).find("sk-alice-1")
    assert found is not None
    assert found.caller == Caller(name="alice", tenant="team", priority_max="default")
    assert found.concurrency_max == 2


def test_a_key_file_in_json_is_not_one_key(tmp_path: Path) -> None:
    keys = load_keys(key_file(tmp_path, '{"keys": [{"key": "sk-alice-1"}, {"key": "sk-bob-123"}]}\n'))
    assert len(keys) == 2
    assert keys.find("sk-bob-123") is not None


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SettingsError, match="is accessible to other users") as caught:
        load_keys(key_file(tmp_path, "sk-first-key\n", mode))
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "short\n",
        "keys: 3\n",
        "keys:\n  - {key: sk-12345678, colour: red}\n",
        "sk-12345678\nsk-12345678\n",
    ],
)
def test_key_files_that_make_no_sense(tmp_path: Path, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_keys(key_file(tmp_path, text))
    assert "sk-12345678" not in str(caught.value)


# ── where it listens ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org", "10.0.0.1"])
def test_others_are_let_in_only_with_a_key(host: str) -> None:
    with pytest.raises(SettingsError, match="API key"):
        check(ServerSettings(host=host))
    assert len(check(ServerSettings(host=host, api_key=SecretStr("sk-12345678")))) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8"])
def test_loopback_needs_no_key(host: str) -> None:
    assert len(check(ServerSettings(host=host))) == 0


def test_every_origin_needs_a_key() -> None:
    with pytest.raises(SettingsError, match="cors_origins"):
        check(ServerSettings(cors_origins=["*"]))


def test_a_port_that_is_taken_is_one_line() -> None:
    first = bind(ServerSettings(port=0))
    try:
        with pytest.raises(SettingsError, match="cannot listen") as caught:
            bind(ServerSettings(port=first.getsockname()[1]))
        assert "--port" in caught.value.hint
    finally:
        first.close()


def test_a_key_is_never_shown() -> None:
    settings = ServerSettings(api_key=SecretStr("sk-very-secret"))
    assert "very-secret" not in f"{settings!r} {settings.model_dump()} {settings.model_dump_json()}"
