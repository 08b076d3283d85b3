"""Paged attention on torch behind the Backend protocol: ticks in, up to two in flight, outcomes out.

`launch` sends a tick's changes and starts its pass; `collect` waits for the token read-back, the only
synchronization with the GPU. Rows planned ahead use the token that the device sampled last for their slot.
Rows have fixed places in their pages, so a failed pass leaves nothing to roll back.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from stretto.backends.adapters import AdapterSource
from stretto.backends.torch.adapters import TorchAdapters
from stretto.backends.torch.bound_requests import DeviceRequest, DeviceRequests, MakeGrammars, accepted
from stretto.backends.torch.compile_count import COMPILES
from stretto.backends.torch.draft_model import PagedDraftModel, with_prices
from stretto.backends.torch.drafting import TorchDrafts
from stretto.backends.torch.flight import Flight, Readings
from stretto.backends.torch.graphs import Recorded, choose_graphs, draft_rows
from stretto.backends.torch.host_pool import HostPool
from stretto.backends.torch.measuring import MeasuredShare, columns, logprobs_of, scores
from stretto.backends.torch.models import CausalModel
from stretto.backends.torch.ops import KvScales, SampledTokens, SamplingTable
from stretto.backends.torch.page_ops import PageOps
from stretto.backends.torch.parallel.followers import Followers
from stretto.backends.torch.pool import KvPool
from stretto.backends.torch.ragged import Ragged
from stretto.backends.torch.runner import Runner
from stretto.backends.torch.staging import Staging
from stretto.backends.torch.tables import Tables
from stretto.backends.torch.warm_up import LateWork, Progress, warm_up
from stretto.core.capabilities import Capabilities, Share
from stretto.core.tick import Outcome, PassFailure, Tick
from stretto.errors import BadOutputError, InvariantError, TorchError

log = logging.getLogger("stretto.runtime")

CHUNK_MULTIPLE_CUDA = 64  # prompt rows are computed in tiles
CHUNK_MULTIPLE_CPU = 16  # this many rows cost as much as one: the weights are read once
OUTPUTS_PER_SLOT = 8
STAGING_INTS = 1 << 18
HOST_BYTES_PER_S = 20e9  # between a GPU and pinned memory, with room for a slower bus
POLL_S_MAX = 2e-3  # shorter passes are waited for by polling, which takes a core but answers at once


def _with_index(device: torch.device) -> torch.device:
    """`cuda` is the current device, by its number."""
    unnumbered = device.type == "cuda" and device.index is None
    return torch.device("cuda", torch.cuda.current_device()) if unnumbered else device


class TorchBackend:
    adapters: TorchAdapters | None = None
    last_error: Exception | None = None  # cause of the last failed pass
    _broken = False
    _pass_s = 0.0  # of the latest pass

    def __init__(
        self,
        model: CausalModel,
        *,
        slots: int,
        window: int,
        pages: int,
        page_tokens: int,
        rows_max: int = 2048,
        plan_ahead: int = 1,
        kv_scales: Sequence[KvScales] | None = None,
        graphs: bool | Recorded | None = None,
        eos: frozenset[int] = frozenset(),
        suppressed: frozenset[int] = frozenset(),
        make_grammars: MakeGrammars | None = None,
        on_close: Callable[[], None] | None = None,
        followers: Followers | None = None,
        drafts_max: int = 0,
    ) -> None:
        shape, device = model.shape, _with_index(model.place.device)
        self.model, self._device, self._on_close, self.followers = model, device, on_close, followers
        with torch.inference_mode():
            self.pool = KvPool(shape, model.place, pages=pages, page_tokens=page_tokens, scales=kv_scales)
            self._page_ops = PageOps(self.pool, None, followers)
            staging = Staging(device, STAGING_INTS)
            sizes = {"slots": slots, "window": window, "page_tokens": page_tokens, "pages": pages}
            self._tables = Tables(**sizes, device=device, staging=staging)
            table = SamplingTable.allocate(
                slots + 1, vocab=shape.vocab, context_max=window + 1, device=device
            )
            verified_max = min(rows_max, draft_rows(slots, drafts_max))
            self.runner = Runner(
                *(model, self.pool, self._tables, table, staging),
                graphs=choose_graphs(graphs, device, parallel=followers is not None),
                followers=followers,
                draft_rows_max=verified_max,
                rows_max=rows_max,
            )
        self.drafting = TorchDrafts(drafts_max)
        self._requests = DeviceRequests(
            table, vocab=shape.vocab, eos=eos, suppressed=suppressed, make_grammars=make_grammars
        )
        self._flights: deque[Flight] = deque()
        self._readings = Readings(device, rows=slots, ring=plan_ahead + 2)
        self.capabilities = Capabilities(
            share=Share.PAGES,
            snapshots=False,
            sequences_max=slots,
            window=window,
            page_tokens=page_tokens,
            pages=pages,
            bytes_per_token=self.pool.bytes_per_token,
            rows_max=rows_max,
            outputs_max=verified_max or min(rows_max, OUTPUTS_PER_SLOT * slots),
            chunk_multiple=CHUNK_MULTIPLE_CUDA if device.type == "cuda" else CHUNK_MULTIPLE_CPU,
            plan_ahead=plan_ahead,
            history_drafts=False,  # masks and counts are those of a slot's first row
            vocab=shape.vocab,
        )
        self._when_ready = LateWork(COMPILES.late, 0)

    # --- before the first tick -------------------------------------------------------------------

    @torch.inference_mode()
    def add_adapters(self, sources: Mapping[str, AdapterSource], *, loaded_max: int) -> None:
        """Tables for adapters that requests may name."""
        can = self.capabilities = replace(self.capabilities, adapters=True)
        self.adapters = TorchAdapters(self.model, sources, loaded_max=loaded_max, slots=can.sequences_max)
        self.runner.adapter_scales = self.adapters.scales

    @torch.inference_mode()
    def add_host_pages(self, host_bytes: int) -> None:
        """Host memory for evicted pages. Several ranks have none."""
        can = self.capabilities
        places = host_bytes // (can.page_tokens * can.bytes_per_token)
        if places and self.followers is None:
            self._page_ops = PageOps(self.pool, HostPool(self.pool, places), None)
            self.capabilities = replace(can, host_pages=places, snapshot_bytes_per_s=HOST_BYTES_PER_S)

    def add_draft_model(self, model: PagedDraftModel, *, lookup: bool) -> None:
        """After the warm-up: passes of both models are timed. `lookup`: beside it."""
        self.drafting.model = model
        self.capabilities = replace(with_prices(self.capabilities, self.runner, model), lookup_drafts=lookup)

    def warm_up(self, progress: Progress | None = None) -> None:
        """Compiles and captures everything that ticks can need. Without it, each on first use."""
        can = self.capabilities
        warm_up(self.runner, rows_max=can.rows_max, window=can.window, progress=progress)
        self._when_ready = LateWork(COMPILES.late, self.runner.captures)

    @property
    def late_work(self) -> LateWork:
        if not hasattr(self, "runner"):
            return LateWork()
        before = self._when_ready
        return LateWork(COMPILES.late - before.compiles, self.runner.captures - before.captures)

    # --- the protocol ----------------------------------------------------------------------------

    @torch.inference_mode()
    def launch(self, tick: Tick) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # the current device is per thread
        for slot in tick.unbind:
            self._requests.unbind(slot)
        for binding in tick.bind:
            self._requests.bind(binding)
        self._tables.update(tick.tables, tick.bind)
        if self.followers:
            self.followers.tables(tick.tables)
        if self.adapters:
            self.adapters.update(tick.unbind, tick.bind)
        self.drafting.update(tick.unbind, tick.bind)
        flight = Flight(tick, Outcome(tick.id, ran=False), drafted=self.drafting.of(tick))
        self._flights.append(flight)
        if self._broken:
            flight.outcome.failure = PassFailure.VOID
            return
        began_s = time.perf_counter()
        flight.outcome.op_results = self._page_ops.execute(tick.ops)
        flight.outcome.ops_s = time.perf_counter() - began_s
        if tick.slots:
            self._run(flight)

    @torch.inference_mode()
    def collect(self) -> Outcome:
        flight = self._flights.popleft()
        outcome = flight.outcome
        if outcome.failure is not None:
            return outcome
        if flight.watch is None:
            outcome.counts = array("i", bytes(4 * len(flight.tick.slots)))
            return outcome
        try:
            outcome.pass_s = self._pass_s = self._readings.watches.wait(flight.watch)
        except RuntimeError as error:
            raise TorchError(f"the GPU failed: {error}") from error
        self._read(flight)
        if flight.drafted:
            self.drafting.take(flight.drafted, flight.tick, outcome)
        if flight.measured is not None:
            outcome.scores = scores(flight.shares, flight.measured)
        return outcome

    def recover(self, lengths: Mapping[int, int]) -> frozenset[int]:
        """What a failed pass wrote lies beyond these lengths and will be overwritten."""
        self._broken = False
        if self._device.type == "cuda":
            try:
                torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                raise TorchError(f"the GPU no longer responds: {error}") from error
        return frozenset()

    def rest(self) -> None:
        """It holds nothing that others could use."""

    def close(self) -> None:
        self._flights.clear()
        self.adapters = self.drafting.model = None
        if self.followers:
            self.followers.close()
        if not hasattr(self, "runner"):
            return
        del (
            self.runner,
            self.pool,
            self._page_ops,
            self.model,
            self._tables,
            self._requests,
        )  # references to a closed backend hold no GPU memory
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
        if self._on_close is not None:
            self._on_close()

    # --- rows ------------------------------------------------------------------------------------

    def _run(self, flight: Flight) -> None:
        tick = flight.tick
        batch = Ragged(*(_ints(c) for c in (tick.slots, tick.starts, tick.counts, tick.outputs, tick.tokens)))
        self._tables.check(batch.slots, batch.starts + batch.counts)
        if unbound := self._requests.missing(tick.slots):
            raise InvariantError(f"slots {sorted(unbound)} have rows and no request")
        if self._requests.special:
            self._send_masks(flight)
        watch = self._readings.watches.take(blocking=self._pass_s > POLL_S_MAX)
        try:
            watch.start()
            self._pass(flight, batch)
            watch.stop()
        except InvariantError:
            raise
        except torch.OutOfMemoryError as error:
            self._fail(flight, PassFailure.NO_ROOM, error)
        except Exception as error:
            self._fail(flight, PassFailure.FAILED, error)
        else:
            flight.watch = watch
            flight.outcome.ran = True

    def _fail(self, flight: Flight, failure: PassFailure, error: Exception) -> None:
        if self.followers:
            raise self.followers.failed(error) from error
        self._broken, self.last_error = True, error
        log.warning("a pass of %d rows failed: %s", flight.tick.rows, failure.value, exc_info=error)
        flight.outcome.failure = failure

    def _pass(self, flight: Flight, batch: Ragged) -> None:
        mode = self._requests.mode
        flight.logprobs = mode.logprobs >= 0
        on_host = any(bound.sampler is not None for bound in flight.special.values())
        logits: torch.Tensor | None = None
        adapted = self.adapters is not None and self.adapters.active(flight.tick.slots)
        if (batch.is_decode or self.runner.verifies(batch)) and not on_host:
            sampled: SampledTokens | None = self.runner.decode(batch, mode, adapted=adapted)
        else:
            self._measure(flight, batch)
            sampled, logits, measured = self.runner.ragged(batch, mode, adapted=adapted, keep_logits=on_host)
            flight.measured = None if measured is None else measured.on_host()
        if logits is not None and on_host:
            self._sample_on_host(flight, logits)
        if sampled is not None:
            flight.sampled = self._readings.copy(sampled)

    def _measure(self, flight: Flight, batch: Ragged) -> None:
        """Selects the prompt rows to be scored in this pass."""
        tick, at = flight.tick, 0
        begins: dict[int, int] = {}
        for slot, start, count in zip(tick.slots, tick.starts, tick.counts, strict=True):
            request = self._requests[slot].request
            if rows := request.measured_rows(start, count):
                flight.shares.append(MeasuredShare(slot, request, start, rows))
                begins[slot] = at
            at += count
        if flight.shares:
            batch.measured, batch.followers = columns(flight.shares, begins)

    # --- requests with work on the host ----------------------------------------------------------

    def _send_masks(self, flight: Flight) -> None:
        """Sends masks before the pass and notes which requests sample on the host."""
        tick, special = flight.tick, self._requests.special
        for slot, start, count, outputs in zip(
            tick.slots, tick.starts, tick.counts, tick.outputs, strict=True
        ):
            bound = special.get(slot)
            if bound is None or not outputs:
                continue
            flight.special[slot] = bound
            if bound.matcher is not None and not bound.error:
                self._requests.send_mask(slot, bound, start + count - outputs + 1 - bound.prompt)

    def _sample_on_host(self, flight: Flight, logits: torch.Tensor) -> None:
        """Waits for the pass: the next tick cannot be launched before these tokens are known."""
        tick, at, row = flight.tick, 0, 0
        for slot, start, count, outputs in zip(
            tick.slots, tick.starts, tick.counts, tick.outputs, strict=True
        ):
            at, row = at + count, row + outputs
            bound = flight.special.get(slot)
            if bound is None or bound.sampler is None or bound.error:
                continue
            own = logits[row - outputs : row].float().cpu().numpy()
            try:
                position = start + count - outputs
                got = bound.sampler.sample(own, tick.tokens[at - outputs : at], position)
            except InvariantError:
                raise
            except Exception as error:
                bound.error = getattr(error, "code", BadOutputError.code)
                continue
            flight.on_host[slot] = got.tokens
            self.runner.set_last(slot, got.tokens[-1])
            if any(extra is not None for extra in got.extras):
                flight.outcome.extras[slot] = got.extras

    # --- outcomes --------------------------------------------------------------------------------

    def _read(self, flight: Flight) -> None:
        """Tokens of the spans, in order. Usually each span has one, and all are valid."""
        outcome, tick, sampled = flight.outcome, flight.tick, flight.sampled
        outcome.counts = array("i", tick.outputs)
        if sampled is None:
            return
        outputs = _ints(tick.outputs)
        ids = sampled.ids.numpy()[: int(outputs.sum())].astype(np.int32)
        plain = not flight.special and not flight.logprobs and int(outputs.max()) == 1
        if plain and (not len(ids) or ids.min() >= 0):
            outcome.tokens = array("i", ids.tobytes())
        else:
            self._read_each(flight, ids.tolist())

    def _read_each(self, flight: Flight, ids: list[int]) -> None:
        outcome, tick, at, row = flight.outcome, flight.tick, 0, 0
        for span, (slot, count, outputs) in enumerate(
            zip(tick.slots, tick.counts, tick.outputs, strict=True)
        ):
            at, row = at + count, row + outputs
            if not outputs:
                continue
            bound = flight.special.get(slot)
            tokens = accepted(ids[row - outputs : row], tick.tokens[at - outputs : at])
            if bound is not None:
                tokens = self._host_checked(flight, span, bound, tokens)
            if not tokens or min(tokens) < 0:
                code = bound.error if bound is not None and bound.error else BadOutputError.code
                outcome.failed[slot] = code
                outcome.counts[span] = 0
                continue
            outcome.counts[span] = len(tokens)
            outcome.tokens.extend(tokens)
            if flight.logprobs and slot in self._requests and slot not in flight.on_host:
                wanted = self._requests[slot].params.logprobs
                if found := logprobs_of(flight.sampled, wanted, row - outputs, len(tokens)):
                    outcome.extras[slot] = found

    def _host_checked(self, flight: Flight, span: int, bound: DeviceRequest, tokens: list[int]) -> list[int]:
        tick = flight.tick
        if bound.error:
            return []
        if bound.sampler is not None:
            return flight.on_host.get(tick.slots[span], [])
        tokens = tokens[:1]  # the mask was for the first row
        index = tick.starts[span] + tick.counts[span] - tick.outputs[span] + 1 - bound.prompt
        bound.take(index, tokens)
        return tokens


def _ints(column: array[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(column, dtype=np.int32) if column else np.zeros(0, dtype=np.int32)
