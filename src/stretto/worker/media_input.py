"""The media of a call: refused where the model has no eyes or ears, else decoded and placed in its prompt.

`with_media` runs on a thread of its own kind, because decoding a picture takes up to seconds: texts of other
requests do not wait for it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stretto.backends.media import Kind, Medium
from stretto.core.request import Scope
from stretto.errors import InvalidMediaError, UnsupportedByModelError
from stretto.media_files.decoder_process import DecoderProcess
from stretto.rpc.messages import MediaItem
from stretto.text.model_text import Prompt
from stretto.worker.media import MediaFile
from stretto.worker.model import ModelRuntime, PreparedRequest

_WHAT: dict[Kind, str] = {"image": "pictures", "audio": "sounds"}
_HINT = "name a model that takes them (/v1/models lists modalities)"


def check_modalities(
    about: Mapping[str, Any], modalities: Collection[str], media: Sequence[MediaItem]
) -> None:
    """Raises where there are media that the model with this description cannot take."""
    if not media:
        return
    name = str(about.get("model", "")) or "the model"
    for kind in sorted({item.kind for item in media} - set(modalities)):
        if len(modalities) > 1:
            raise UnsupportedByModelError(f"{name} takes no {_WHAT[kind]}", hint=_HINT)
        if about.get("backend") == "torch":
            raise UnsupportedByModelError(
                f"{name} takes no {_WHAT[kind]}: the torch backend takes text alone", hint=_HINT
            )
        raise UnsupportedByModelError(
            f"{name} takes no {_WHAT[kind]}: it is loaded without a projector",
            hint=f"{_HINT}, or give this one its projector: mmproj",
        )


def with_media(runtime: ModelRuntime, call: PreparedRequest) -> PreparedRequest:
    """The call with its media decoded and in their places. Raises the error of the first bad file."""
    scope = Scope(f"tenant:{call.tenant}", call.cache_salt, call.adapters)
    return replace(call, prompt=placed(runtime, call.prompt, scope))


def placed(runtime: ModelRuntime, prompt: Prompt, scope: Scope) -> Prompt:
    assert runtime.media is not None
    assert runtime.decoder is not None
    rate = runtime.media.encoder.sample_rate
    files = [_file(item, runtime.decoder, rate) for item in prompt.files]
    return runtime.media.place(prompt, files, scope)


def _file(item: MediaItem, decoder: DecoderProcess, rate: int) -> MediaFile:
    data = _bytes(item)
    return MediaFile(item.at, item.kind, data, _decoding(item.kind, data, decoder, rate))


def _decoding(kind: Kind, data: bytes, decoder: DecoderProcess, rate: int) -> Callable[[], Medium]:
    return lambda: decoder.decode(kind, data, sound_rate=rate)


def _bytes(item: MediaItem) -> bytes:
    try:
        data = base64.b64decode(item.data, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidMediaError("a picture or a sound is not valid base64") from None
    if not data:
        raise InvalidMediaError("a picture or a sound is empty")
    return data
