"""What became of one request, as the client saw it.

Times are seconds since the run's start. TTFT counts from when the request was *due*, not from when it was
sent: a client that runs late must not make the server look fast.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct, field

STOPPED = "stopped"  # given up by us, as planned: no error


class Record(Struct, kw_only=True):
    """One request. `error` is a kind from `exchange`, empty when it went well."""

    id: str
    group: str
    tenant: str = ""
    priority: str = ""
    due_s: float = 0.0
    sent_s: float = 0.0
    ended_s: float = 0.0
    chunks_s: list[float] = field(default_factory=list)  # when each piece of text arrived
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reason: str = ""
    queue_s: float | None = None  # as the server says it, where it does
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
        """Tokens of the answer: the server's count, else the pieces that came."""
        return self.output_tokens or len(self.chunks_s)

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first, over the whole answer."""
        if len(self.chunks_s) < 2 or self.tokens < 2:
            return None
        return (self.chunks_s[-1] - self.chunks_s[0]) / (self.tokens - 1)

    def gaps_s(self) -> list[float]:
        """Between pieces of text. The gap that we gave up in counts as far as it went."""
        ends = [*self.chunks_s, self.ended_s] if self.error == STOPPED else self.chunks_s
        return [later - sooner for sooner, later in pairwise(ends)]


class Run(Struct, kw_only=True):
    """All records of one run, with what the clients themselves cost."""

    workload: str
    run_id: str
    url: str
    records: list[Record]
    duration_s: float
    client_cpu_s: float
    workers: int
    shape: dict[str, object] = field(default_factory=dict)
    quiet: list[str] = field(default_factory=list)

    @property
    def measured(self) -> list[Record]:
        return [record for record in self.records if record.group not in self.quiet]
