"""Pictures and sounds for tests of llama.cpp: encoded by a tiny projector, in requests and in a plain loop.

The plain loop places rows as libmtmd says, row by row, and counts positions itself: it shares no code with
the backend.
"""

from __future__ import annotations

import ctypes
import random
from array import array
from collections.abc import Sequence

from stretto.backends.llamacpp.media import Media
from stretto.backends.llamacpp.model import Model
from stretto.backends.llamacpp.native.mtmd import mtmd
from stretto.backends.llamacpp.projector import Projector
from stretto.backends.media import EncodedRows, MediaPart, Medium, Picture, RowStore, Sound
from stretto.core.media import MEDIA_ROW, MediaRows
from stretto.core.request import Need, Request, SamplingParams
from stretto.core.tick import End
from tests.unit.backends.llamacpp.rig import Loop, Reference, limits, make_backend


def picture(seed: int, width: int = 80, height: int = 60) -> Picture:
    return Picture(width, height, random.Random(seed).randbytes(3 * width * height))


class Seen:
    """Encoded media by number, for requests and for the reference. `made`: what a number stands for."""

    def __init__(self, projector: Projector, made: dict[int, Medium] | None = None) -> None:
        self.projector = projector
        self.store = RowStore(1 << 20)
        self._made = made or {}
        self._held: dict[int, object] = {}
        self.parts: dict[int, MediaPart] = {}

    def rows(self, number: int) -> EncodedRows:
        digest = f"picture {number}".encode()
        if digest not in self.store:
            medium = self._made.get(number) or picture(number)
            (part,) = (p for p in self.projector.expand(medium) if isinstance(p, MediaPart))
            self.parts[number] = part
            encoding = self._held[number] = self.store.add(digest, part)
            self.store.finish(encoding, self.projector.encode([part])[0])
        return self.store.rows(digest)

    def ask(self, name: str, *parts: Sequence[int] | int, whole: bool | None = None, **more) -> Request:
        """A prompt of texts and, as numbers, media."""
        tokens, media = array("i"), []
        for part in parts:
            if isinstance(part, int):
                rows, made = self.rows(part).count, self.parts[part]
                digest = f"picture {part}".encode()
                together = made.whole if whole is None else whole
                media.append(MediaRows(len(tokens), rows, digest, together, made.grid_width))
                tokens.extend([MEDIA_ROW] * rows)
            else:
                tokens.extend(part)
        params = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True} | more.pop("params", {})
        return Request(name, tokens, SamplingParams(**params), media=tuple(media), **more)


class SeeingReference(Reference):
    """The plain loop, with rows of media written by the test itself."""

    def __init__(self, model: Model, **more) -> None:
        super().__init__(model, **more)
        self._planes = 4 if model.has_mrope else 1
        self._next = 0  # position

    def _clear(self) -> None:
        super()._clear()
        self._next = 0

    def _decode(self, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        batch = self._lib.llama_batch_init(len(tokens), 0, 1)
        for row, token in enumerate(tokens):
            batch.token[row] = token
            self._place(batch, row, (self._next + row,), last=row == len(tokens) - 1)
        self._run(batch, len(tokens))
        self._next += len(tokens)

    def _decode_rows(self, data: bytes, part: MediaPart, *, whole: bool) -> None:
        rows = part.rows
        batch = self._lib.llama_batch_init(rows * self._planes, len(data) // 4 // rows, 1)
        ctypes.memmove(batch.embd, data, len(data))
        for row in range(rows):
            self._place(batch, row, self._positions(part, row), rows=rows)
        self._lib.llama_set_causal_attn(self._context, not whole)
        self._run(batch, rows)
        self._lib.llama_set_causal_attn(self._context, True)
        self._next += int(mtmd().mtmd_input_chunk_get_n_pos(part.native.handle))

    def _positions(self, part: MediaPart, row: int) -> tuple[int, ...]:
        """As llama.cpp's own helper has them (mtmd_helper_eval_chunks)."""
        picture = mtmd().mtmd_input_chunk_get_tokens_image(part.native.handle)
        if not picture or self._planes == 1:
            return (self._next + row,) * self._planes
        found = mtmd().mtmd_image_tokens_get_decoder_pos(picture, self._next, row)
        return (found.text, found.row, found.column, found.unused)

    @staticmethod
    def _place(batch, row: int, positions: Sequence[int], *, rows: int = 0, last: bool = False) -> None:
        for plane, position in enumerate(positions):
            batch.pos[plane * rows + row] = position
        batch.n_seq_id[row], batch.logits[row] = 1, last
        batch.seq_id[row][0] = 0

    def _run(self, batch, rows: int) -> None:
        batch.n_tokens = rows
        assert self._lib.llama_decode(self._context, batch) == 0
        self._lib.llama_batch_free(batch)

    def seen_gap(self, seen: Seen, request: Request, output: Sequence[int]) -> float:
        self._clear()
        at = 0
        for item in request.media:
            self._decode(request.tokens[at : item.start])
            number = int(item.digest.split()[1])
            data = bytes(seen.rows(number).data)
            self._decode_rows(data, seen.parts[number], whole=item.whole)
            at = item.end
        self._decode(request.tokens[at:])
        return self._gap(output)


def loop(
    seen: Seen, cache: str = "prefix", *, kind: Model | str = "swa", chunk: int = 512, slots: int = 4, **more
) -> Loop:
    media = Media(seen.projector, seen.store)
    backend = make_backend(kind, media=media, n_seq_max=slots, **more)
    return Loop(backend, limits(cache, slots=slots, chunk=chunk, shared_min=4))


def serve(made: Loop, *requests: Request) -> list[list[int]]:
    made.submit(*requests)
    for request in requests:
        if request.media:
            made.scheduler.ready(request.id, Need.MEDIA, made.now)
    made.run()
    assert all(made.ends[request.id].end is End.FINISHED for request in requests)
    return [made.outputs[request.id] for request in requests]


def tone(seconds: float, rate: int = 16_000) -> Sound:
    return Sound(rate, array("f", (random.Random(7).uniform(-1, 1) for _ in range(int(seconds * rate)))))
