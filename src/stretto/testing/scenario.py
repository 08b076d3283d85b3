"""What one seed simulates: limits, layout, policy, traffic and fault weights, all drawn from the seed.

Swarm testing: each seed switches features on and off, so that rare combinations are common somewhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from stretto.backends.simulated.model import LatencyModel
from stretto.core.capabilities import Capabilities, Rewind, Share
from stretto.core.limits import CACHE_POLICIES, Limits, Preemption
from stretto.testing.faults import FaultWeights
from stretto.testing.simulated_adapters import ALL_IN_MEMORY, AdapterMemory
from stretto.testing.simulated_media import NO_MEDIA, MediaTraffic

VOCAB = 512
STORM = 0.1  # chance per tick that a pass finds no room, and as much that it breaks at once


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    layout: str
    limits: Limits
    capabilities: Capabilities
    latency: LatencyModel
    faults: FaultWeights
    traffic: SimulatedTraffic

    @property
    def traits(self) -> dict[str, str]:
        """What kind of scenario this is, for picking seeds of one kind."""
        storm = self.faults.no_room >= STORM
        return {
            "layout": self.layout,
            "cache": self.limits.cache,
            "share": self.capabilities.share.value,
            "snapshots": str(self.capabilities.snapshots).lower(),
            "groups": "apart" if self.capabilities.one_group else "together",
            "adapters": "some" if self.traffic.adapters.places else "all",
            "media": "some" if self.traffic.media.share else "none",
            "deterministic": str(self.limits.deterministic).lower(),
            "weather": "storm" if storm else "fair" if self.faults == FaultWeights() else "mixed",
        }


@dataclass(frozen=True, slots=True)
class SimulatedTraffic:
    """How the simulated clients behave."""

    requests_per_tick: float
    burst: float  # chance that an arrival brings a whole burst
    tenants: int
    flood: float  # share of one tenant
    salts: int
    systems: int  # distinct system prompts
    system_tokens: int
    message_tokens: int
    long_prompt: float
    answer_tokens: int
    next_turn: float  # chance that a finished conversation goes on
    rewrite: float  # chance that the template rewrites history on the next turn
    regenerate: float  # chance that a conversation is asked again while it runs
    urgent: float
    background: float
    cancel: float
    stop: float
    deadline: float
    hostile: float  # invalid requests
    drafts: float
    grammar: float
    forks: float
    panic: float  # chance that a client gives up when a pass fails
    poison: float  # chance that a request breaks every pass that carries it
    drain: float  # chance per run that the operator drains half-way
    streamed: float  # share of requests that are streamed
    adapter_groups: int = 1  # of which one is the model alone
    media: MediaTraffic = NO_MEDIA
    adapters: AdapterMemory = ALL_IN_MEMORY


def draw(seed: int) -> Scenario:
    r = random.Random(f"{seed}:scenario")
    layout = r.choice(
        ("streams", "streams", "hybrid", "hybrid", "window", "unified", "unified", "pages", "pages", "ahead")
    )
    slots = r.choice((1, 2, 3, 4, 6, 8))
    window = r.choice((96, 160, 256, 400))
    slice_tokens = random.Random(f"{seed}:turns").choice((0, 1, 3, 8, 64))
    limits = replace(_limits(r, slots), slice_tokens=slice_tokens)
    mixed_batches = layout == "ahead" or random.Random(f"{seed}:mixes").random() < 0.5
    exact = (
        random.Random(f"{seed}:exact").random() < 0.3
    )  # decode rows round by themselves, and it must not show
    limits = replace(limits, deterministic=exact)
    can = replace(
        _capabilities(r, layout, slots, window, limits),
        mixed_batches=mixed_batches,
        batch_invariant=not exact,
    )
    groups = random.Random(f"{seed}:groups")
    one_group = layout != "ahead" and groups.random() < 0.5
    can = replace(can, adapters=True, one_group=one_group)
    adapter_groups = groups.choice((1, 1, 2, 3, 5))
    change_s = groups.choice((0.0, 1e-3, 0.05))
    adapters = _adapter_memory(random.Random(f"{seed}:adapter places"), adapter_groups)
    media_rows_max, media = _media(random.Random(f"{seed}:media"))
    can = replace(can, media_rows_max=media_rows_max)
    can = _with_draft_model(random.Random(f"{seed}:draft model"), can)
    return Scenario(
        seed=seed,
        layout=layout,
        limits=limits,
        capabilities=can,
        latency=replace(_latency(r, can), change_s=change_s),
        faults=_faults(r),
        traffic=replace(
            _traffic(r, slots, window), adapter_groups=adapter_groups, media=media, adapters=adapters
        ),
    )


def _limits(r: random.Random, slots: int) -> Limits:
    return Limits(
        n_seq_max=slots,
        n_batch=r.choice((slots, slots + 3, 16 + slots, 64, 256)),
        prefill_chunk=r.choice((1, 7, 16, 32, 64)),
        target_itl_s=r.choice((0.005, 0.02, None)),
        queue_depth=r.choice((1, 2, 3)),
        max_queue=r.choice((0, 2, 8, 32)),
        max_queue_wait_s=r.choice((None, 0.3, 2.0)),
        cache=r.choice((*CACHE_POLICIES, "incremental", "prefix")),
        cache_min_tokens=r.choice((1, 4, 12, 32)),
        cache_slot_timeout_s=r.choice((0.05, 0.3, 1.5, 30.0)),
        cache_ram_bytes=r.choice((0, 1500, 6000, 1 << 20)),
        preemption=r.choice((Preemption.RESUME, Preemption.RESUME, Preemption.FAIL)),
        headroom_tokens=r.choice((0, 0, 8, 64)),
        tenant_weights={"tenant1": 2.0} if r.random() < 0.3 else {},
    )


def _capabilities(r: random.Random, layout: str, slots: int, window: int, limits: Limits) -> Capabilities:
    page = r.choice((1, 4, 8, 16))
    pool = max(window // 2, int(window * slots * r.choice((0.2, 0.3, 0.4, 0.8, 1.5))))
    common = {
        "sequences_max": slots + r.choice((0, 0, 1, 3)),
        "window": window,
        "bytes_per_token": 10,
        "chunk_multiple": r.choice((1, 8, 16)),
        "chunk_least": (1, 4, 8)[slots % 3],
        "media_chunk_least": (0, 4, 1)[slots % 3],
        "efficient_chunk": (1, 8, 32)[slots % 3],
        "tile_rows": (1, 8, 16)[slots % 3],
        "rows_max": max(limits.n_batch, 1),
        "chunk_max": max(limits.n_batch // 2, 1),
        "vocab": VOCAB,
        "snapshots": r.random() < 0.8,
        "share_from_running": r.random() < 0.7,
        "snapshot_bytes_per_s": r.choice((1e5, 1e9)),
    }
    if layout == "unified":
        return Capabilities(share=Share.RANGE, pages=pool, **common)  # type: ignore[arg-type]
    if layout in ("pages", "ahead"):
        pages = max(2, -(-pool // page))
        ahead = 1 if layout == "ahead" else 0
        return Capabilities(
            share=Share.PAGES,
            pages=pages,
            page_tokens=page,
            plan_ahead=ahead,
            host_pages=pages % 2 << 20,
            **common,  # type: ignore[arg-type]
        )
    share = r.choice((Share.COPY, Share.COPY, Share.NONE))
    rewind = {"hybrid": Rewind.CHECKPOINT, "window": Rewind.WINDOW}.get(layout, Rewind.ANY)
    return Capabilities(
        rewind=rewind,
        rewind_tokens=r.choice((4, 16)),
        share=share,
        contiguous=r.random() < 0.5,
        equal_spans=r.random() < 0.5,
        state_bytes=50 if rewind is not Rewind.ANY else 0,
        **common,  # type: ignore[arg-type]
    )


def _media(r: random.Random) -> tuple[int, MediaTraffic]:
    """The most rows of a picture that is computed whole (0: the model takes none), and the traffic."""
    rows_max = r.choice((0, 0, 3, 12, 30))
    if not rows_max:
        return 0, NO_MEDIA
    return rows_max, MediaTraffic(
        share=r.choice((0.1, 0.5)),
        pictures=r.choice((2, 5, 20)),
        encode_s=r.choice((0.0, 0.05, 0.5)),
        failure=r.choice((0.0, 0.0, 0.1)),
    )


def _adapter_memory(r: random.Random, adapter_groups: int) -> AdapterMemory:
    places = r.choice((0, 2, 2, 3))
    if not places or adapter_groups < 3:
        return ALL_IN_MEMORY
    return AdapterMemory(places=places, load_s=r.choice((0.0, 0.02, 0.2)), failure=r.choice((0.0, 0.0, 0.1)))


def _with_draft_model(r: random.Random, can: Capabilities) -> Capabilities:
    if r.random() < 0.6:
        return can
    step_s = r.choice((1e-5, 1e-3))
    return replace(can, draft_passes=((1, step_s), (32, 2 * step_s)), lookup_drafts=r.random() < 0.5)


def _latency(r: random.Random, can: Capabilities) -> LatencyModel:
    scale = r.choice((0.2, 1.0, 5.0))
    cheap = not can.mixed_batches or can.draft_passes
    row_s = 2e-5 if cheap else 1e-3  # cheap rows: drafts are worth theirs
    return LatencyModel(
        a_s=2e-3 * scale,
        b_s=row_s * scale,
        c_s=2e-6 * scale,
        beta_s=4e-4 * scale,
        gamma_s=1e-6 * scale,
        cliff_rows=can.chunk_multiple,
    )


def _faults(r: random.Random) -> FaultWeights:
    def rare(chance: float) -> float:
        return chance if r.random() < 0.5 else 0.0

    weather = r.random()
    if weather < 0.3:
        return FaultWeights()
    if weather < 0.45:  # a storm: many passes break, most of them before anything ran
        burst = r.choice((1, 2, 3))
        return FaultWeights(
            op=rare(0.02), no_room=STORM, fail_before=STORM, fail_during=rare(0.05), burst=burst
        )
    return FaultWeights(
        op=rare(0.02),
        no_room=rare(0.01),
        fail_before=rare(0.01),
        fail_during=rare(0.01),
        lose=rare(0.3),
        bad_logits=rare(0.005),
        bad_token=rare(0.005),
        malformed=rare(0.005),
        slow=rare(0.005),
    )


def _traffic(r: random.Random, slots: int, window: int) -> SimulatedTraffic:
    load = r.choice((0.3, 0.8, 1.2, 2.0))
    answer = r.choice((4, 12, 30, 60))
    some = r.random

    def often(chance: float) -> float:
        return chance if some() < 0.6 else 0.0

    return SimulatedTraffic(
        requests_per_tick=load * slots / (answer + 4),
        burst=often(0.05),
        tenants=r.choice((1, 2, 4)),
        flood=r.choice((0.25, 0.7)),
        salts=r.choice((1, 1, 2)),
        systems=r.choice((0, 1, 1, 3)),
        system_tokens=r.choice((3, 10, window // 4)),
        message_tokens=r.choice((2, 8, 20)),
        long_prompt=often(0.1),
        answer_tokens=answer,
        next_turn=r.choice((0.0, 0.5, 0.9)),
        rewrite=often(0.3),
        regenerate=often(0.1),
        urgent=often(0.2),
        background=often(0.4),
        cancel=often(0.1),
        stop=often(0.05),
        deadline=often(0.1),
        hostile=often(0.03),
        drafts=often(0.3),
        grammar=often(0.2),
        forks=often(0.2),
        panic=often(0.5),
        poison=often(0.01),
        drain=often(0.3),
        streamed=r.choice((0.0, 0.5, 1.0)),
    )
