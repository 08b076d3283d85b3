"""The protocol between the scheduler and whatever computes: one contract, one test suite for all backends.

The contract of a backend:

1. `launch(tick)` takes binds and unbinds, then executes `tick.ops` in their order, then the rows. Each
   operation answers with an OpResult, in the same order. When an operation on a sequence fails, later ones
   that write it or copy from it fail as well, its rows are not run and its span gives 0 tokens; everything
   else goes on.
2. Rows may run in any order and in as many passes as is fast. A span's last `outputs` rows give one token
   each; with k drafts the accepted prefix is given: 1 to k + 1 tokens.
3. The token for output index i of a request is a function of (its tokens, its parameters, its seed, i) only:
   not of the batch, the chunks, the slot, the sequence, or of what was computed before it was bound.
4. A copy between sequences may take effect as late as the next pass that runs rows (`Outcome.ran`); an
   operation that fails does not spoil copies that were made before it.
5. A slot-level fault (no finite logits, no allowed token) goes into `Outcome.failed` for that slot alone.
6. When a pass fails, `collect` says so in `Outcome.failure`. NO_ROOM means that nothing ran and nothing
   changed. The caller then asks `recover` to bring each sequence back to its length before the tick;
   what cannot be brought back is named and considered empty. A tick launched after a failed one and before
   `recover` is VOID: its binds and block tables are taken, its operations and rows are not, and it has no
   operation results.
7. Where `plan_ahead` is 1, a second tick may be launched before the first is collected; a token of -1 then
   means "what the tick before samples for this slot".
8. Where `Request.measured_rows` says so, the first rows of a span are measured: `Outcome.scores` holds the
   logprob of the prompt token after each, of the model's own logits (a function of the prompt alone).
9. The rows of a span are all tokens, or all rows of one picture or sound that was encoded (`Tick.media`):
   then they are what the encoder gave, `tick.tokens` holds only an id, and none of them has an output. Where
   `MediaRows.whole` says so they attend to each other, and the span has all of them. Rows of media and tokens
   run in different calls; `Capabilities.rows_max` is for tokens. A backend with `media_rows_max` 0 gets none.
10. Times are measured where the work happens. No method blocks for longer than a pass.
11. `rest` changes nothing that a later tick can see.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from stretto.core.capabilities import Capabilities, Rewind, Share
from stretto.core.ops import OpResult
from stretto.core.tick import Outcome, PassFailure, Tick

__all__ = ["Backend", "Capabilities", "Rewind", "Share", "complete", "is_well_formed"]


class Backend(Protocol):
    capabilities: Capabilities

    def launch(self, tick: Tick) -> None:
        """Start a tick. A backend that computes synchronously may do all its work here."""

    def collect(self) -> Outcome:
        """The outcome of the oldest tick that was launched and not collected."""

    def recover(self, lengths: Mapping[int, int]) -> frozenset[int]:
        """After a failed pass: cut sequences back to these lengths. Answers those that are lost."""

    def rest(self) -> None:
        """Nothing was launched for a while: give up what only a busy backend needs, until the next launch.

        Called by the thread that launches, with nothing in flight.
        """

    def close(self) -> None:
        """Free everything. The backend is not used afterwards."""


def complete(backend: Backend, tick: Tick) -> Outcome:
    """Collect a tick and, when its pass failed, recover: the one way in which loops finish a tick."""
    outcome = backend.collect()
    if outcome.failure is None and not is_well_formed(tick, outcome):
        failed = OpResult(ok=False, reason="the outcome was malformed")
        answered = len(outcome.op_results) == len(tick.ops)
        results = outcome.op_results if answered else (failed,) * len(tick.ops)
        outcome = Outcome(tick.id, op_results=results, ran=False, failure=PassFailure.FAILED)
    if outcome.failure in (PassFailure.FAILED, PassFailure.NO_ROOM):
        outcome.lost = backend.recover(dict(zip(tick.sequences, tick.starts, strict=True)))
    return outcome


def is_well_formed(tick: Tick, outcome: Outcome) -> bool:
    """Does the outcome answer every span, with no more tokens than it has outputs?"""
    if outcome.tick_id != tick.id or len(outcome.counts) != len(tick.slots):
        return False
    if sum(outcome.counts) != len(outcome.tokens) or len(outcome.op_results) != len(tick.ops):
        return False
    return all(0 <= got <= asked for got, asked in zip(outcome.counts, tick.outputs, strict=True))
