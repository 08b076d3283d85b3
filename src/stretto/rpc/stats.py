"""Telemetry messages of a worker: counters and histograms on request, ticks for the dashboard."""

from __future__ import annotations

from msgspec import field

from stretto.rpc.base import Message


class SlotInfo(Message):
    """One slot; states: idle | prefilling | generating."""

    index: int
    state: str
    stream_id: str = ""
    prompt_tokens: int = 0
    computed: int = 0
    cached_tokens: int = 0
    generated: int = 0
    priority: str = ""
    tenant: str = ""


class HistogramStats(Message):
    """Observations per bucket, by upper edge; the last count is for values above all edges."""

    edges: list[float]
    counts: list[int]
    total: float = 0.0


class AdapterStats(Message):
    """One adapter of a model: whether it is in memory, how many requests use it, and which of them wait."""

    name: str
    loaded: bool = False
    requests: int = 0
    waiting: int = 0
    bytes: int = 0


class ModelStats(Message):
    """Statistics of one model's loop, at most one tick old."""

    model_id: str
    ticks: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    proposed_drafts: dict[str, int] = field(default_factory=dict)  # verified draft tokens, by drafter
    accepted_drafts: dict[str, int] = field(default_factory=dict)
    preemptions: dict[str, int] = field(default_factory=dict)  # slots taken away, by reason
    active_slots: int = 0
    slots: int = 0
    queued: dict[str, int] = field(default_factory=dict)  # by priority
    parked: int = 0
    kv_used: float = 0.0  # 0 to 1
    backlog_s: float = 0.0  # predicted wait of a request that came now
    kv_block_tokens: int = 0
    kv_blocks: int = 0
    cache_bytes: int = 0  # host memory of cached prefixes
    last_tick_age_s: float = 0.0
    pass_s: float = 0.0
    threads: int = 0  # that compute a pass now; 0 where the backend has none
    late_compiles: int = 0  # kernels compiled and graphs captured since the model was ready
    late_captures: int = 0
    busy: bool = False
    adapters: list[AdapterStats] = field(default_factory=list)
    adapter_loads: int = 0  # from files, since the model was loaded
    media_encoded: int = 0  # pictures and sounds, since the model was loaded
    media_reused: int = 0  # of requests, that were encoded already
    media_failed: int = 0
    media_encode_s: float = 0.0  # of the encoder's thread
    media_waiting: int = 0  # requests whose pictures and sounds are being encoded
    media_cache_bytes: int = 0
    slot_table: list[SlotInfo] = field(default_factory=list)
    events: dict[str, int] = field(default_factory=dict)  # count per event of core.event_names
    histograms: dict[str, HistogramStats] = field(default_factory=dict)  # of ticks and rates


class BatchTelemetry(Message):
    """`batch_generate` calls since the worker's start. Groups: models (and drafts) per call."""

    calls: int = 0
    requests: int = 0
    groups: int = 0
    refused: int = 0  # requests, for any reason
    unreadable: int = 0  # of these, invalid entries
    size_last: int = 0
    size_max: int = 0
    seconds: float = 0.0  # from reading a call to its answer, summed
    seconds_last: float = 0.0


class Stats(Message):
    uptime_s: float
    memory_bytes: int
    streams: int
    models: list[ModelStats]
    batches: BatchTelemetry = field(default_factory=BatchTelemetry)


class TickSpan(Message):
    """One request's share of a tick."""

    slot: int
    stream_id: str
    rows: int
    decode: bool
    accepted: int = 0  # of its rows, draft tokens that were accepted


class TickEvent(Message):
    """One tick, for the dashboard."""

    model_id: str
    tick: int
    at_s: float  # the worker's monotonic clock
    eval_s: float
    spans: list[TickSpan] = field(default_factory=list)
    active_slots: int = 0
    queued: dict[str, int] = field(default_factory=dict)
    parked: int = 0
    kv_used: float = 0.0
    notes: list[tuple[str, str, int, float]] = field(default_factory=list)  # name, stream, slot, value
    ends: list[str] = field(default_factory=list)
    ttfts: dict[str, float] = field(default_factory=dict)  # seconds from arrival, of those that ended


class EncodeEvent(Message):
    """One batch of a model's encoder of pictures and sounds, for the dashboard."""

    model_id: str
    at_s: float  # its end, on the worker's monotonic clock
    encode_s: float
    media: int  # pictures and sounds, or parts of them
    rows: int
    streams: list[str] = field(default_factory=list)  # that waited for it


class EngineEvents(Message):
    """Notification `engine.events`: several ticks at a time, at most 20 times a second."""

    ticks: list[TickEvent]
    encodings: list[EncodeEvent] = field(default_factory=list)
