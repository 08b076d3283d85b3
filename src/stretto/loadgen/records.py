"""The client's record of one request.

Times are seconds since the run's start. TTFT starts when the request was *due*, not when it was sent: a late
client must not make the server look fast.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct, field

STOPPED = "stopped"  # stopped as planned: not an error


class LoadRecord(Struct, kw_only=True):
    """One request. `error` is a kind from `exchange`, empty for success."""

    id: str
    group: str
    tenant: str = ""
    priority: str = ""
    due_s: float = 0.0
    sent_s: float = 0.0
    ended_s: float = 0.0
    chunks_s: list[float] = field(default_factory=list)  # arrival of each chunk of text
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0  # verified, as reported by the server
    accepted_tokens: int = 0  # of these, part of the answer
    finish_reason: str = ""
    queue_s: float | None = None  # as reported by the server
    prefill_s: float | None = None
    status: int = 0
    error: str = ""
    detail: str = ""

    @property
    def ok(self) -> bool:
        return not self.error

    @property
    def ttft_s(self) -> float | None:
        return self.chunks_s[0] - self.due_s if self.chunks_s else None

    @property
    def tokens(self) -> int:
        """Tokens of the answer: the server's count, else the number of chunks."""
        return self.output_tokens or len(self.chunks_s)

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first, over the whole answer."""
        if len(self.chunks_s) < 2 or self.tokens < 2:
            return None
        return (self.chunks_s[-1] - self.chunks_s[0]) / (self.tokens - 1)

    def gaps_s(self) -> list[float]:
        """Gaps between chunks, including the last one of an aborted request."""
        ends = [*self.chunks_s, self.ended_s] if self.error == STOPPED else self.chunks_s
        return [later - sooner for sooner, later in pairwise(ends)]


class LoadRun(Struct, kw_only=True):
    """All records of one run, and the clients' own cost."""

    workload: str
    run_id: str
    url: str
    records: list[LoadRecord]
    duration_s: float
    client_cpu_s: float
    workers: int
    shape: dict[str, object] = field(default_factory=dict)
    quiet: list[str] = field(default_factory=list)
    started_s: float = 0.0  # when the run's clock was zero, as `time.monotonic` counts

    @property
    def measured(self) -> list[LoadRecord]:
        return [record for record in self.records if record.group not in self.quiet]
