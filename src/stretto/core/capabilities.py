"""What a backend can do with KV memory. Nothing in core knows an architecture's name; it asks here.

Filled in by the backend when a model is loaded, by probing rather than by assuming.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rewind(Enum):
    """How a sequence may be shortened."""

    ANY = "any"  # dense and MoE: any suffix can be cut
    WINDOW = "window"  # sliding window: at most `rewind_tokens` may be cut, or a checkpoint is needed
    CHECKPOINT = "checkpoint"  # hybrid and recurrent: only to a saved state


class Share(Enum):
    """What it takes for a second holder to use a prefix."""

    NONE = "none"
    COPY = "copy"  # a whole sequence is copied, and only when the next pass runs (llama.cpp streams)
    RANGE = "range"  # any prefix, by reference, at once (llama.cpp unified)
    PAGES = "pages"  # block tables with reference counts (torch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    rewind: Rewind = Rewind.ANY
    rewind_tokens: int = 0
    share: Share = Share.COPY
    share_from_running: bool = True
    snapshots: bool = True
    sequences_max: int
    window: int
    page_tokens: int = 1
    host_pages: int = 0  # places in host memory that pages can be saved to and loaded from
    pages: int = 0  # 0: a fixed window for each sequence, no shared pool
    bytes_per_token: int = 1
    state_bytes: int = 0
    copy_bytes_per_s: float = 10e9
    snapshot_bytes_per_s: float = 10e9
    rows_max: int = 2048
    chunk_max: int = 1 << 30  # rows of one prompt in a tick
    outputs_max: int = 2048
    measured_max: int = 64  # rows of one prompt in a tick whose logprobs are wanted
    chunk_multiple: int = 1
    chunk_least: int = 1  # rows of a chunk, at most a multiple: fewer take as long
    media_chunk_least: int = 0  # likewise of a picture or sound; 0: as of tokens
    efficient_chunk: int = 1  # rows of a tick from which on more of them save little
    tile_rows: int = 1  # of attention, for prompts: a partial tile takes as long as a whole one
    contiguous: bool = False
    equal_spans: bool = False
    mixed_batches: bool = True  # one pass holds decode and prefill rows; else their ticks alternate
    plan_ahead: int = 0
    decode_passes: tuple[tuple[int, float], ...] = ()  # rows and seconds, where they were measured at load
    draft_passes: tuple[tuple[int, float], ...] = ()  # likewise of a draft model; empty: there is none
    lookup_drafts: bool = True  # drafts are looked up in known text; else only a draft model makes some
    history_drafts: bool = True  # drafts also for requests with penalties or a grammar
    adapters: bool = False  # requests may name adapters
    one_group: bool = False  # the rows of a tick have the same adapters: groups take turns
    batch_invariant: bool = True  # a token's KV has the same bits from a decode row and from a prompt's row
    media_rows_max: int = 0  # rows of a picture that is computed whole; 0: the model takes no media
    vocab: int = 0  # 0: not known, outputs are not checked

    def __post_init__(self) -> None:
        if self.plan_ahead not in (0, 1):
            raise ValueError("plan_ahead is 0 or 1")
        if self.plan_ahead and self.share is not Share.PAGES:
            raise ValueError("planning ahead needs pages: sequence operations are not fenced by tick")
        if self.plan_ahead and not self.mixed_batches:
            raise ValueError("planning ahead already hides what alternating ticks would win")
        if self.plan_ahead and self.one_group:
            raise ValueError("planning ahead needs passes with several adapter groups")
        if self.share in (Share.PAGES, Share.RANGE) and self.pages < 1:
            raise ValueError("a shared pool needs its size in pages")
        if self.host_pages and self.share is not Share.PAGES:
            raise ValueError("host_pages needs pages")
        if self.share is Share.PAGES and self.rewind is not Rewind.ANY:
            raise ValueError("pages need a model that rewinds anywhere")

    @property
    def pool_tokens(self) -> int:
        """The most tokens one request can hold when everything else is gone."""
        return min(self.window, self.pages * self.page_tokens) if self.pages else self.window

    @property
    def token_ids(self) -> int:
        """Ids are below this; the size of the vocabulary, where it is known."""
        return self.vocab or 1 << 31

    def snapshot_bytes(self, length: int) -> int:
        return length * self.bytes_per_token + self.state_bytes
