"""The simulated model: the next token is a hash of the scope, the whole prefix and the seed.

Any leak between requests or tenants, any gap, any stale cell changes the output. A cell stands for a row of a
real KV cache: here it is the token, or the row of a picture, and the scope that computed it. `LatencyModel`
gives ticks a duration, optionally with the cost cliff of CPU kernels.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stretto.core.media import MediaRows
from stretto.core.request import Request, Scope

POISON = -(1 << 40)
DECODED = 1 << 20  # in a cell: written by a decode row, if that makes a difference
DRAFTED = 1 << 21  # several rows of a sequence in one decode span
MEDIA = 1 << 22  # a row of a picture or a sound
GRID = 1 << 23  # with others that share its position; the first of them has none


class SimulatedAdapter(NamedTuple):
    """Needs no file: its name changes every token."""

    size_bytes: int = 0


def cell_scope(request: Request) -> Scope:
    """What a request's cells depend on beside tokens: its adapters do, whatever caches take for equal."""
    return request.scope._replace(adapters=request.adapters)


class TokenScores(NamedTuple):
    """The scores of one prompt token, as every backend returns them."""

    logprob: float
    top_tokens: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    vocab: int = 512
    eos: int = 0
    eos_every: int = 97  # about one token in this many ends the text
    batch_invariant: bool = True  # decode rows write the same cells as prompt rows

    def cell(self, scope: Scope, token: int) -> int:
        return self.scope_bits(scope) | token

    def generated(self, scope: Scope, token: int) -> int:
        """The cell of a generated token, written by a single decode row."""
        return self.cell(scope, token) | (0 if self.batch_invariant else DECODED)

    def decoded(self, scope: Scope, tokens: Sequence[int]) -> array[int]:
        """Cells of a decode span: one row, or several if drafts are verified."""
        mark = 0 if self.batch_invariant else DECODED if len(tokens) == 1 else DECODED | DRAFTED
        return array("q", [self.cell(scope, token) | mark for token in tokens])

    def scope_bits(self, scope: Scope) -> int:
        return zlib.crc32(repr(tuple(scope)).encode()) << 24

    def cells(self, scope: Scope, tokens: Sequence[int]) -> array[int]:
        bits = self.scope_bits(scope)
        return array("q", [bits | token for token in tokens])

    def media_cells(self, scope: Scope, item: MediaRows, offset: int, count: int) -> array[int]:
        """Rows of a picture: each depends on the picture and on which row of it this is."""
        bits = self.scope_bits(scope) ^ zlib.crc32(item.digest) << 24
        bits |= MEDIA
        later = bits | GRID if item.grid_width else bits
        return array("q", [(later if row else bits) | row for row in range(offset, offset + count)])

    def prompt_cells(self, request: Request) -> array[int]:
        scope = cell_scope(request)
        cells, at = array("q"), 0
        for item in request.media:
            cells += self.cells(scope, request.tokens[at : item.start])
            cells += self.media_cells(scope, item, 0, item.rows)
            at = item.end
        return cells + self.cells(scope, request.tokens[at:])

    def next_token(self, cells: bytes, seed: int) -> int:
        value = zlib.crc32(cells, seed & 0xFFFFFFFF) ^ (len(cells) * 2654435761 & 0xFFFFFFFF)
        if value % self.eos_every == 0:
            return self.eos
        return 1 + (value >> 7) % (self.vocab - 1)

    def measured(self, cells: bytes, token: int) -> TokenScores:
        """A logprob that depends on the whole prefix and on the token."""
        likeliest = self.next_token(cells, 0)
        best = -((zlib.crc32(cells) % 1000 + 1) / 1000)
        return TokenScores(
            best if token == likeliest else best - 1.0 - token / self.vocab, (likeliest,), (best,)
        )

    def continuation(self, request: Request, *, count: int) -> array[int]:
        """The expected output of a request, computed in isolation: the oracle of simulator and tests."""
        scope = cell_scope(request)
        cells = self.prompt_cells(request)
        stops = frozenset() if request.params.ignore_eos else request.params.stop_token_ids
        output: array[int] = array("i")
        while len(output) < count:
            token = self.next_token(cells.tobytes(), request.params.seed)
            output.append(token)
            cells.append(self.generated(scope, token))
            if token in stops and len(output) >= request.params.min_tokens:
                break
        return output


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """Seconds of a pass: decode = a + b rows + c contexts; a chunk costs beta + gamma context per token.

    `change_s`: more for other adapters than those of the pass before. `cliff_rows`: the remainder of a chunk
    over a multiple of this many rows costs double, as with flash attention on CPUs.
    """

    a_s: float = 2e-3
    b_s: float = 1e-3
    c_s: float = 1e-6
    beta_s: float = 2e-4
    gamma_s: float = 1e-7
    cliff_rows: int = 1
    change_s: float = 0.0

    def pass_s(self, rows: int, contexts: int, chunks: Sequence[tuple[int, int]]) -> float:
        seconds = self.a_s + self.b_s * rows + self.c_s * contexts
        return seconds + sum(self.chunk_s(count, context) for count, context in chunks)

    def chunk_s(self, count: int, context: int) -> float:
        per_row = self.beta_s + self.gamma_s * (context + count / 2)
        return (count + count % self.cliff_rows) * per_row
