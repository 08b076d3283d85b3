"""A small model on the target's device that continues the text of every slot, greedily: drafts to verify.

Its KV lies in pages of its own (`draft_pages`), a cache of known tokens that may always be computed again
(`backends.drafting.texts`). All slots share a pass for each draft position, and its tokens stay on the
device: the host reads them when the last pass is launched. It runs on one device and without adapters,
whatever its target does. Called between the passes of the target, by the thread that launches them.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from stretto.backends.drafting.prices import DRAFTED, VERIFIED, Passes, timed
from stretto.backends.drafting.texts import NEVER, DraftTexts, Wanted
from stretto.backends.torch.draft_pages import DraftPages
from stretto.backends.torch.graphs import Recorded, choose_graphs
from stretto.backends.torch.models import CausalModel
from stretto.backends.torch.ops import SamplingMode, SamplingTable
from stretto.backends.torch.pool import DraftMemory, KvPool, pass_bytes
from stretto.backends.torch.ragged import Ragged
from stretto.backends.torch.runner import Runner
from stretto.backends.torch.staging import Ints, Staging, Stopwatch, to_host
from stretto.backends.torch.tables import Tables
from stretto.backends.torch.warm_up import Progress, warm_up
from stretto.core.capabilities import Capabilities
from stretto.core.tick import PENDING_TOKEN
from stretto.errors import TorchError

CATCH_UP_ROWS_CPU, CATCH_UP_ROWS_CUDA = 128, 512  # of all slots, that a tick computes at most
FIRST_ROWS = 2  # of a slot whose drafts were all accepted: the last draft, and the token after it
STAGING_INTS = 1 << 14
TRANSFERS = 8  # of a tick, beside one for each draft
GREEDY = SamplingMode()


class DraftPassError(TorchError):
    """The draft model computed nothing usable: it is given up, and its target goes on alone."""


class PagedDraftModel:
    """Drafts for a target with `slots` slots and `vocab` token ids; its own may be more or fewer."""

    def __init__(
        self,
        model: CausalModel,
        *,
        slots: int,
        window: int,
        pages: int,
        page_tokens: int,
        drafts_max: int,
        vocab: int,
        graphs: bool | Recorded | None = None,
    ) -> None:
        device = model.place.device
        self.model, self._device = model, device
        self._vocab, self._target_vocab = model.shape.vocab, vocab
        self._window = window
        self.catch_up_rows = CATCH_UP_ROWS_CUDA if device.type == "cuda" else CATCH_UP_ROWS_CPU
        self._texts = DraftTexts(slots, window=window)
        self._pages = DraftPages(pages=pages, page_tokens=page_tokens, evicted=self._texts.forget)
        self._unable: set[int] = set()  # slots whose requests go without drafts
        self._passes: list[tuple[int, float]] = []  # rows and seconds, since they were last taken
        with torch.inference_mode():
            self._staging = Staging(device, STAGING_INTS, ring=drafts_max + TRANSFERS)
            self._tables = Tables(
                slots=slots, window=window, page_tokens=page_tokens, pages=pages,
                device=device, staging=self._staging,
            )  # fmt: skip
            self.runner = Runner(
                model,
                KvPool(model.shape, model.place, pages=pages, page_tokens=page_tokens),
                self._tables,
                SamplingTable.allocate(
                    slots + 1, vocab=model.shape.vocab, context_max=1, device=device,
                    biases_max=1, penalties=False,
                ),
                self._staging,
                graphs=choose_graphs(graphs, device, parallel=False),
                draft_rows_max=FIRST_ROWS * slots, rows_max=self.catch_up_rows, mixed_graphs=False,
            )  # fmt: skip

    def warm_up(self, progress: Progress | None = None) -> None:
        warm_up(
            self.runner,
            rows_max=self.catch_up_rows,
            window=self._window,
            progress=progress,
            modes=(GREEDY,),
        )

    @torch.inference_mode()
    def prices(self) -> Passes:
        """Timed passes of an empty text. Before the first request."""
        return timed(lambda rows: pass_s(self.runner, rows, outputs=1), DRAFTED, rows_max=self._window)

    # --- proposals -------------------------------------------------------------------------------

    @torch.inference_mode()
    def propose(self, wanted: Mapping[int, Wanted]) -> dict[int, array[int]]:
        began_s = time.perf_counter()
        able = {slot: each for slot, each in wanted.items() if each.most > 0 and self._has_room(slot, each)}
        rows, parts = self._texts.next_rows(able, self.catch_up_rows)
        self._tables.update(self._pages.take_updates(), ())
        timer = _PassTimer(self._device)
        for computed in (rows, parts):
            for slot in [slot for slot, tokens in computed.items() if max(tokens) >= self._vocab]:
                self._unable.add(slot)
                del computed[slot]
        if parts:
            self._compute(parts, timer)
        found = self._draft(rows, able, timer) if rows else {}
        self._passes += timer.passes(began_s)
        return found

    def behind(self, slot: int, wanted: Wanted) -> int:
        return NEVER if slot in self._unable else self._texts.behind(slot, wanted)

    def release(self, slot: int) -> None:
        """The request in this slot has ended or was preempted."""
        self._unable.discard(slot)
        self._pages.release(slot)

    def take_passes(self) -> list[tuple[int, float]]:
        taken, self._passes = self._passes, []
        return taken

    # --- inside ----------------------------------------------------------------------------------

    def _has_room(self, slot: int, wanted: Wanted) -> bool:
        if slot in self._unable or not self._texts.fits(wanted):
            return False
        if not self._pages.reserve(slot, len(wanted.tokens) + wanted.most):
            self._unable.add(slot)
            return False
        return True

    def _compute(self, rows: Mapping[int, array[int]], timer: _PassTimer) -> None:
        """Chunks of texts, without drafts."""
        with timer(sum(map(len, rows.values()))):
            self.runner.ragged(self._batch(rows, outputs=0), GREEDY)
        for slot, tokens in rows.items():
            self._texts.add(slot, tokens)

    def _draft(
        self, rows: Mapping[int, array[int]], wanted: Mapping[int, Wanted], timer: _PassTimer
    ) -> dict[int, array[int]]:
        """The rest of each text, then a pass for each further draft. `rows` and its order stay the same."""
        with timer(sum(map(len, rows.values()))):
            columns = [self._first(rows)]
        slots = [list(rows)]
        while left := [slot for slot in slots[-1] if wanted[slot].most > len(slots)]:
            ends = _ints([len(wanted[slot].tokens) + len(slots) - 1 for slot in left])
            with timer(len(left)):
                columns.append(self._step(_ints(left), ends))
            slots.append(left)
        found = self._read(columns, slots)
        for slot, drafts in found.items():
            self._texts.add(slot, rows[slot] + drafts[:-1])
        return {slot: self._known_to_target(drafts) for slot, drafts in found.items()}

    def _first(self, rows: Mapping[int, array[int]]) -> torch.Tensor:
        """The token after the last row of each slot."""
        batch = self._batch(rows, outputs=1)
        if batch.is_decode:
            return self.runner.decode(batch, GREEDY).ids[: len(rows)].clone()
        judged = Ragged(batch.slots, batch.starts, batch.counts, batch.counts, batch.tokens)
        if not self.runner.verifies(judged):
            sampled, _, _ = self.runner.ragged(batch, GREEDY)
            assert sampled is not None
            return sampled.ids.clone()
        ids = self.runner.decode(judged, GREEDY).ids
        last, slots = self._staging.send(np.cumsum(batch.counts, dtype=np.int32) - 1, batch.slots)
        chosen = ids.index_select(0, last)
        self._tables.last_tokens.index_copy_(0, slots.long(), chosen.clamp(min=0).int())
        return chosen

    def _step(self, slots: Ints, positions: Ints) -> torch.Tensor:
        """The token after the one that the pass before gave each slot."""
        ones, pending = np.ones_like(slots), np.full_like(slots, PENDING_TOKEN)
        batch = Ragged(slots, positions, ones, ones, pending)
        return self.runner.decode(batch, GREEDY).ids[: len(slots)].clone()

    def _read(self, columns: list[torch.Tensor], slots: list[list[int]]) -> dict[int, array[int]]:
        """The drafts by slot, on the host: one transfer."""
        sent = to_host(torch.cat(columns))
        assert sent is not None
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        ids: list[int] = sent.tolist()
        if min(ids) < 0:
            raise DraftPassError("the draft model computed NaN")
        found = {slot: array("i") for slot in slots[0]}
        at = 0
        for step in slots:
            for slot in step:
                found[slot].append(ids[at])
                at += 1
        return found

    def _known_to_target(self, drafts: array[int]) -> array[int]:
        """Up to the first id that only this model has."""
        beyond = (at for at, token in enumerate(drafts) if token >= self._target_vocab)
        return drafts[: next(beyond, len(drafts))]

    def _batch(self, rows: Mapping[int, array[int]], *, outputs: int) -> Ragged:
        tokens = array("i")
        for each in rows.values():
            tokens.extend(each)
        return Ragged(
            slots=_ints(list(rows)),
            starts=_ints([self._texts.length(slot) for slot in rows]),
            counts=_ints([len(each) for each in rows.values()]),
            outputs=np.full(len(rows), outputs, dtype=np.int32),
            tokens=np.frombuffer(tokens, dtype=np.int32),
        )


class _PassTimer:
    """Rows and seconds of passes that run one after the other without waiting: `with timer(rows): …`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._watches: list[tuple[int, Stopwatch]] = []

    def __call__(self, rows: int) -> _PassTimer:
        self._watches.append((rows, Stopwatch(self._device)))
        return self

    def __enter__(self) -> None:
        self._watches[-1][1].start()

    def __exit__(self, *_: object) -> None:
        self._watches[-1][1].stop()

    def passes(self, began_s: float) -> list[tuple[int, float]]:
        """Waits for them. Their sum is all the time since `began_s`, launches and the read-back included."""
        measured = [(rows, watch.wait()) for rows, watch in self._watches]
        total_s = sum(seconds for _, seconds in measured)
        share = (time.perf_counter() - began_s) / total_s if total_s > 0.0 else 1.0
        return [(rows, share * seconds) for rows, seconds in measured]


def draft_memory(model: CausalModel, *, slots: int, window: int, page_tokens: int) -> DraftMemory:
    """Upper estimates for a target of so many slots and tokens."""
    shape, place = model.shape, model.place
    window = min(window, shape.context_max)
    rows = max(CATCH_UP_ROWS_CUDA, FIRST_ROWS * slots)
    return DraftMemory(
        page_bytes=shape.kv_bytes_per_token(place.dtype.itemsize) * page_tokens,
        pages_max=slots * -(-window // page_tokens),
        pass_bytes=pass_bytes(shape, place, outputs_max=FIRST_ROWS * slots, rows_max=rows),
    )


@torch.inference_mode()
def with_prices(can: Capabilities, runner: Runner, model: PagedDraftModel) -> Capabilities:
    """These capabilities, with timed passes of the model and of its draft model. Before the first request."""
    most = min(can.outputs_max, can.rows_max, can.window)
    with torch.cuda.device(runner.device if runner.device.type == "cuda" else -1):  # -1: none
        return replace(
            can,
            decode_passes=timed(lambda rows: pass_s(runner, rows, outputs=rows), VERIFIED, rows_max=most),
            draft_passes=model.prices(),
        )


def pass_s(runner: Runner, rows: int, *, outputs: int) -> float:
    """Seconds of a pass of the padding slot, whose pages no request has yet, with so many outputs."""
    ones = np.ones(1, dtype=np.int32)
    slot, tokens = ones * runner.padding_slot, np.zeros(rows, dtype=np.int32)
    batch = Ragged(slot, 0 * ones, rows * ones, outputs * ones, tokens)
    watch = Stopwatch(runner.device)
    watch.start()
    if batch.is_decode or runner.verifies(batch):
        runner.decode(batch, GREEDY)
    else:
        runner.ragged(batch, GREEDY)
    watch.stop()
    return watch.wait()


def _ints(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int32)
