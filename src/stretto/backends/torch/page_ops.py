"""Executes a tick's operations on pages: copies within the pool, and between it and host memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import groupby

from stretto.backends.torch.host_pool import HostPool
from stretto.backends.torch.parallel.followers import Followers
from stretto.backends.torch.pool import KvPool
from stretto.core.ops import KvOp, OpKind, OpResult
from stretto.errors import InvariantError

log = logging.getLogger("stretto.runtime")


class PageOps:
    def __init__(self, pool: KvPool, host: HostPool | None, followers: Followers | None) -> None:
        self._pool, self._host, self._followers = pool, host, followers

    def execute(self, ops: Iterable[KvOp]) -> tuple[OpResult, ...]:
        """In order; operations of one kind between the pool and host memory are executed together."""
        results: list[OpResult] = []
        for kind, same in groupby(ops, key=lambda op: op.kind):
            group = list(same)
            self._check(group)
            if kind is OpKind.COPY_PAGES:
                results += [self._copy(op) for op in group]
            elif kind in (OpKind.SAVE_PAGES, OpKind.LOAD_PAGES) and self._host is not None:
                results += [self._move(self._host, kind, group)] * len(group)
            else:
                results += [OpResult(ok=False, reason=f"{kind.name} is not supported here")] * len(group)
        return tuple(results)

    def _check(self, ops: list[KvOp]) -> None:
        places = self._host.places if self._host is not None else 0
        for op in ops:
            if not (-1 <= op.other < self._pool.pages and 0 <= op.sequence < self._pool.pages):
                raise InvariantError("an operation on a page that does not exist")
            if op.blob >= places:
                raise InvariantError("an operation on a place in host memory that does not exist")

    def _copy(self, op: KvOp) -> OpResult:
        self._pool.copy_page(op.other, op.sequence, op.length)
        if self._followers is not None:
            self._followers.copy(op.other, op.sequence, op.length)
        return OpResult(ok=True, bytes=op.length * self._pool.bytes_per_token)

    def _move(self, host: HostPool, kind: OpKind, ops: list[KvOp]) -> OpResult:
        """What fails is computed again: the request goes on."""
        pages, places = [op.sequence for op in ops], [op.blob for op in ops]
        try:
            if kind is OpKind.SAVE_PAGES:
                host.save(pages, places)
            else:
                host.load(places, pages)
        except RuntimeError as error:
            log.warning("%s of %d pages failed: %s", kind.name, len(ops), error)
            return OpResult(ok=False, reason=str(error))
        return OpResult(ok=True, bytes=self._pool.page_tokens * self._pool.bytes_per_token)
