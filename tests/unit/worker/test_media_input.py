"""What a call's media are refused for, and by which words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stretto.errors import InvalidMediaError, UnsupportedByModelError
from stretto.rpc.messages import GenerateParams, MediaItem
from stretto.worker.loaded import LoadedModel
from stretto.worker.loading import load
from stretto.worker.media_input import check_modalities, with_media
from stretto.worker.requests import prepare

PICTURE = MediaItem(kind="image", data="AAAA", at=1)


@pytest.fixture(scope="module")
def blind() -> Iterator[LoadedModel]:
    loaded = load(None, {"backend": "simulated"})
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def seeing() -> Iterator[LoadedModel]:
    loaded = load(None, {"backend": "simulated", "mmproj": "eyes"})
    yield loaded
    loaded.close()


@pytest.mark.parametrize(
    ("backend", "said", "hint"),
    [
        ("llamacpp", "without a projector", "mmproj"),
        ("torch", "torch backend takes text alone", "modalities"),
    ],
)
def test_a_model_without_eyes_is_named_with_what_would_help(blind, backend, said, hint):
    named, modalities = {"model": "tiny", "backend": backend}, blind.runtime.modalities
    with pytest.raises(UnsupportedByModelError, match=f"tiny takes no pictures.*{said}") as refusal:
        check_modalities(named, modalities, [PICTURE])
    assert hint in refusal.value.hint
    check_modalities(named, modalities, [])


@pytest.mark.parametrize("data", ["", "A", "not base64", "QUJD\n=", "ÄÄ"])
def test_bad_base64_is_the_callers_error(seeing, data):
    params = GenerateParams(
        stream_id="s", tokens=[3, 4], media=[MediaItem(kind="image", data=data, at=1)], number=1
    )
    call = prepare(seeing, params)
    assert call.prompt.files
    with pytest.raises(InvalidMediaError, match=r"base64|empty"):
        with_media(seeing.runtime, call)
