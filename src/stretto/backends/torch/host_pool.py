"""Pages in host memory: copies out of the KV pool and back, beside the passes.

On a GPU the host's memory is pinned and copied on a stream of its own. A page to be saved is first copied
within the GPU, because the pass that follows overwrites it; a page to be loaded travels while the pass before
runs, and the next pass waits for it. On a CPU both are plain copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from stretto.backends.torch.pool import KvPool

STAGED_PAGES = 32  # copied within the GPU at a time


class HostPool:
    """`places` pages, [place, layer, K or V, token, head, dim]: one page is contiguous."""

    def __init__(self, pool: KvPool, places: int) -> None:
        self._memory = pool.memory.view(torch.uint8) if pool.is_fp8 else pool.memory  # no indexing of FP8
        layers, both, _, *page = self._memory.shape
        on_gpu = self._memory.is_cuda
        self.places = places
        size = (places, layers, both, *page)
        self._host = torch.empty(size, dtype=self._memory.dtype, pin_memory=on_gpu)
        self._stream: torch.cuda.Stream | None = None
        if on_gpu:
            self._stream = torch.cuda.Stream(self._memory.device)  # type: ignore[no-untyped-call]

    def save(self, pages: Sequence[int], places: Sequence[int]) -> None:
        for some, targets in _parts(pages, places):
            staged = self._memory[:, :, some].movedim(2, 0).contiguous()
            if self._stream is None:
                self._host[targets] = staged
                continue
            self._stream.wait_stream(torch.cuda.current_stream(staged.device))
            with torch.cuda.stream(self._stream):
                for page, place in zip(staged, targets, strict=True):
                    self._host[place].copy_(page, non_blocking=True)
            staged.record_stream(self._stream)

    def load(self, places: Sequence[int], pages: Sequence[int]) -> None:
        for some, targets in _parts(places, pages):
            self._memory[:, :, targets] = self._brought(some).movedim(0, 2)

    def _brought(self, places: list[int]) -> torch.Tensor:
        """Pages on the pool's device. Their memory belongs to the copying stream: nothing else used it."""
        if self._stream is None:
            return self._host[places]
        with torch.cuda.stream(self._stream):
            staged = torch.empty(
                (len(places), *self._host.shape[1:]), dtype=self._host.dtype, device=self._memory.device
            )
            for page, place in zip(staged, places, strict=True):
                page.copy_(self._host[place], non_blocking=True)
        current = torch.cuda.current_stream(self._memory.device)
        current.wait_stream(self._stream)
        staged.record_stream(current)
        return staged


def _parts(sources: Sequence[int], targets: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    for begin in range(0, len(sources), STAGED_PAGES):
        end = begin + STAGED_PAGES
        yield list(sources[begin:end]), list(targets[begin:end])
