"""Drafts over HTTP: usage with and without `prediction`, and metrics by drafter.

On SmolLM2: a tiny model's rows cost as much as its passes, so that drafts would never be verified.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from stretto.model_files.store import Store
from stretto.settings.places import cache_home
from tests.server.process import served

SAME = 40  # characters; later ones may differ where two tokens of random weights are nearly as likely


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    model = str(Store(cache_home()).ensure_default())
    options = ("--speculation", "ngram", "--n-threads", "1", "--context-window", "1024")
    with served(model, *options) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client


def asked(http: httpx2.Client, **more) -> dict:
    body = {
        "model": http.get("/v1/models").json()["data"][0]["id"],
        "messages": [{"role": "user", "content": "Count to a hundred"}],
        "max_tokens": 200,
        "temperature": 0,
        **more,
    }
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def details(reply: dict) -> dict[str, int]:
    return reply["usage"]["completion_tokens_details"]


def test_usage_counts_drafts_with_and_without_a_prediction(http):
    plain = asked(http)
    answer = plain["choices"][0]["message"]["content"]
    predicted = asked(http, prediction={"type": "content", "content": answer})
    assert predicted["choices"][0]["message"]["content"][:SAME] == answer[:SAME]
    for reply in (plain, predicted):
        assert details(reply)["accepted_prediction_tokens"] >= 0
        assert details(reply)["rejected_prediction_tokens"] >= 0
    counted = [details(reply) for reply in (plain, predicted)]
    drafted = sum(each["accepted_prediction_tokens"] + each["rejected_prediction_tokens"] for each in counted)
    assert drafted > 0
    lines = [
        line
        for line in http.get("/metrics").text.splitlines()
        if line.startswith("stretto_draft_tokens_total{")
    ]
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == drafted
    assert all('drafter="' in line for line in lines)
    accepted = sum(each["accepted_prediction_tokens"] for each in counted)
    lines = [
        line
        for line in http.get("/metrics").text.splitlines()
        if line.startswith("stretto_accepted_draft_tokens_total{")
    ]
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == accepted


def test_a_request_may_go_without_drafts(http):
    """And have the same text; more than the settings allow is no error."""
    texts = []
    for count in (0, 64):
        reply = asked(http, draft_tokens=count, max_tokens=40)
        texts.append(reply["choices"][0]["message"]["content"])
        if not count:
            drafted = details(reply)
            assert drafted["accepted_prediction_tokens"] == drafted["rejected_prediction_tokens"] == 0
    assert texts[0][:SAME] == texts[1][:SAME]


def test_a_stream_reports_them_too(http):
    reply = http.post(
        "/v1/completions",
        json={
            "model": http.get("/v1/models").json()["data"][0]["id"],
            "prompt": "One two three",
            "max_tokens": 8,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    assert '"accepted_prediction_tokens":' in reply.text
