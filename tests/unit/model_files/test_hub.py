"""Pulling from a local hub: choice of file, resume, digests, faults."""

from __future__ import annotations

import pytest

from stretto.errors import (
    DigestMismatchError,
    DownloadError,
    InvalidModelNameError,
    ModelError,
    ModelNotFoundError,
    NotGgufError,
)
from stretto.model_files import gguf
from stretto.model_files.hub import RemoteFile, choose
from stretto.model_files.store import Store

NAME = "tiny-Q4_K_M.gguf"


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture
def body(tiny):
    return tiny("embedding").read_bytes()


def files_below(store):
    return sorted(path.name for path in store.cache_dir.rglob("*") if path.is_file())


def test_pull_and_pull_again(hub, store, body):
    hub.files = {"README.md": b"read me", NAME: body, "tiny-Q8_0.gguf": body + b"\0"}
    seen = []
    path = store.pull(hub.repository, endpoint=hub.endpoint, progress=lambda *at: seen.append(at))
    assert path.read_bytes() == body
    assert seen[-1] == (len(body), len(body))
    assert files_below(store) == [NAME, NAME + ".json"]
    assert [model.name for model in store.ls()] == [f"{hub.repository}:Q4_K_M"]
    assert gguf.read(store.resolve(hub.repository)).architecture == "bert"
    asked = len(hub.requests)
    store.pull(hub.repository, endpoint=hub.endpoint)
    assert not any("/resolve/" in address for address, _ in hub.requests[asked:])


def test_the_requested_type_is_pulled(hub, store, body):
    hub.files = {NAME: body, "sub/tiny-Q8_0.gguf": body}
    assert store.pull(f"{hub.repository}:q8_0", endpoint=hub.endpoint).name == "tiny-Q8_0.gguf"
    with pytest.raises(ModelNotFoundError) as caught:
        store.pull(f"{hub.repository}:Q2_K", endpoint=hub.endpoint)
    assert caught.value.hint == "it has Q4_K_M, Q8_0"


def test_an_interrupted_download_is_resumed(hub, store, body):
    hub.files, hub.cut_after = {NAME: body}, 100_000
    with pytest.raises(DownloadError) as caught:
        store.pull(hub.repository, endpoint=hub.endpoint)
    assert caught.value.retryable
    assert store.ls() == ()
    hub.cut_after = None
    assert store.pull(hub.repository, endpoint=hub.endpoint).read_bytes() == body
    ranges = [headers.get("Range") for address, headers in hub.requests if "/resolve/" in address]
    assert ranges == [None, "bytes=100000-"]
    assert files_below(store) == [NAME, NAME + ".json"]


def test_a_hub_without_ranges_starts_over(hub, store, body):
    hub.files, hub.cut_after = {NAME: body}, 100_000
    with pytest.raises(DownloadError):
        store.pull(hub.repository, endpoint=hub.endpoint)
    hub.cut_after, hub.ignore_range = None, True
    assert store.pull(hub.repository, endpoint=hub.endpoint).read_bytes() == body


def test_a_download_with_the_wrong_digest_is_deleted(hub, store, body):
    hub.files, hub.digests = {NAME: body}, {NAME: "0" * 64}
    with pytest.raises(DigestMismatchError):
        store.pull(hub.repository, endpoint=hub.endpoint)
    assert files_below(store) == []


def test_a_downloaded_file_that_is_not_a_model_is_deleted(hub, store):
    hub.files = {NAME: b"<html>not a model</html>"}
    with pytest.raises(NotGgufError):
        store.pull(hub.repository, endpoint=hub.endpoint)
    assert files_below(store) == []


def test_the_token_does_not_follow_a_redirect(hub, store, body):
    hub.files = {NAME: body}
    other = type(hub)()
    other.files, hub.redirect_to = hub.files, other.endpoint
    try:
        store.pull(hub.repository, endpoint=hub.endpoint, token="secret")
    finally:
        other.close()
    assert hub.requests
    assert all(headers["Authorization"] == "Bearer secret" for _, headers in hub.requests)
    assert len(other.requests) == 1
    assert "Authorization" not in other.requests[0][1]


@pytest.mark.parametrize("address", ["file:///etc", "ftp://127.0.0.1:1"])
def test_redirects_to_other_schemes_are_refused(hub, store, body, address):
    hub.files, hub.redirect_to = {NAME: body}, address
    with pytest.raises(ModelError):
        store.pull(hub.repository, endpoint=hub.endpoint)


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, InvalidModelNameError), (404, ModelNotFoundError), (500, DownloadError), (429, DownloadError)],
)
def test_refusals(hub, store, status, error):
    hub.status = status
    with pytest.raises(error) as caught:
        store.pull(hub.repository, endpoint=hub.endpoint)
    assert caught.value.hint


def test_an_unreachable_or_invalid_hub_is_an_error(store):
    with pytest.raises(DownloadError, match="does not answer"):
        store.pull("a/b", endpoint="http://127.0.0.1:9")
    for endpoint in ("file:///etc/passwd", "", "hub.invalid"):
        with pytest.raises(DownloadError, match="not the address"):
            store.pull("a/b", endpoint=endpoint)


@pytest.mark.parametrize(
    "name", ["../../evil.gguf", "/evil.gguf", "a/../evil.gguf", ".evil.gguf", "e\\vil.gguf"]
)
def test_hostile_file_names_are_not_offered(hub, store, body, name):
    hub.files = {name: body}
    with pytest.raises(ModelNotFoundError):
        store.pull(hub.repository, endpoint=hub.endpoint)
    assert files_below(store) == []


def test_a_split_model_is_pulled_only_with_all_parts(hub, store, body):
    first, second = (f"tiny-Q8_0-0000{number}-of-00002.gguf" for number in (1, 2))
    hub.files = {first: body}
    with pytest.raises(DownloadError, match="1 of 2 parts"):
        store.pull(hub.repository, endpoint=hub.endpoint)
    hub.files[second] = body
    seen = []
    path = store.pull(hub.repository, endpoint=hub.endpoint, progress=lambda *at: seen.append(at))
    assert path.name == first
    assert seen[-1] == (2 * len(body), 2 * len(body))
    assert seen == sorted(seen)


def test_choice():
    def names(*paths):
        return [RemoteFile(path, 10 + len(path), None) for path in paths]

    assert choose(names("a-F16.gguf", "a-Q4_0.gguf", "mmproj-a-Q4_K_M.gguf"), None)[0].path == "a-Q4_0.gguf"
    assert choose(names("a-Q4_K_M.gguf", "a-Q4_K_S.gguf"), "Q4_K_S")[0].path == "a-Q4_K_S.gguf"
    assert choose(names("only.gguf"), None)[0].path == "only.gguf"
    with pytest.raises(ModelNotFoundError):
        choose(names("mmproj-a.gguf"), None)
