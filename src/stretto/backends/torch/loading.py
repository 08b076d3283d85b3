"""Builds a backend from a folder, a GGUF file or a shape: device, type, weights, KV pool, tokenizer.

Records the seconds of each step, to explain a slow start-up. `load_format: dummy` creates random weights of
the shape in `config.json`, for benchmarks without a download.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from stretto.backends.adapters import AdapterSource
from stretto.backends.torch.backend import TorchBackend
from stretto.backends.torch.compile_count import COMPILES, use_kernel_cache
from stretto.backends.torch.config import TransformerShape
from stretto.backends.torch.draft_loading import load_draft
from stretto.backends.torch.draft_model import PagedDraftModel, draft_memory
from stretto.backends.torch.gguf_source import GgufSource
from stretto.backends.torch.graphs import Recorded, draft_rows
from stretto.backends.torch.kv_scales import measure_scales
from stretto.backends.torch.model_source import DTYPES, ModelSource, check_all_read, text_of, weights_of
from stretto.backends.torch.models import CausalModel, Placement, build
from stretto.backends.torch.parallel import messages
from stretto.backends.torch.parallel.checks import check_supported, rank_devices
from stretto.backends.torch.parallel.followers import Followers, OnLost
from stretto.backends.torch.parallel.group import RankGroup
from stretto.backends.torch.parallel.shard import PartSource, ShardedSource, shard_shape
from stretto.backends.torch.pool import PAGE_TOKENS, DraftMemory, pages_that_fit
from stretto.backends.torch.tokenizer import HfTokenizer
from stretto.errors import InvalidRequestError

if TYPE_CHECKING:
    from stretto.text.grammar_factory import GrammarFactory

WINDOW_AUTO = 8192
LOAD_FORMATS = ("auto", "dummy")
QUANTIZATIONS = ("auto", "none", "fp8")
KV_DTYPES = ("auto", "fp8")  # auto: the type of the weights
Progress = Callable[[str, float], None]  # stage, and fraction done


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchOptions:
    """Load options. Zero and `auto`: derived from the model and the machine."""

    slots: int = 4
    window: int = 0
    rows_max: int = 2048
    page_tokens: int = PAGE_TOKENS
    pages: int = 0
    device: str = "auto"
    tensor_parallel: int = 1  # ranks, each a process
    rank_devices: tuple[str, ...] = ()  # default: the first GPUs, else the CPU
    on_lost: OnLost | None = None  # told why, when a rank has ended; default: the model fails
    dtype: str = "auto"
    kv_dtype: str = "auto"
    quantization: str = "auto"
    load_format: str = "auto"
    host_bytes: int = 0  # of host memory for pages that are evicted
    plan_ahead: int = 1
    graphs: bool | Recorded | None = None
    warm_up: bool = True  # on a GPU
    kernel_cache: Path | None = None  # parent directory; default: Triton's own
    threads: int = 0
    adapters: Mapping[str, AdapterSource] = field(default_factory=dict)
    adapters_loaded_max: int = 8
    drafts_max: int = 0  # most drafts of a slot in a tick; 0: no speculation
    draft_model: ModelSource | None = None  # makes drafts
    lookup: bool = True  # drafts are looked up in known text

    def __post_init__(self) -> None:
        if self.load_format not in LOAD_FORMATS:
            raise InvalidRequestError(f"load_format is one of {', '.join(LOAD_FORMATS)}")
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise InvalidRequestError(f"dtype is auto or one of {', '.join(DTYPES)}")
        if self.kv_dtype not in KV_DTYPES:
            raise InvalidRequestError(f"kv_dtype is one of {', '.join(KV_DTYPES)}")
        if self.quantization not in QUANTIZATIONS:
            raise InvalidRequestError(f"quantization is one of {', '.join(QUANTIZATIONS)}")

    @property
    def reading(self) -> dict[str, str]:
        """How weights are read."""
        return {"dtype": self.dtype, "quantization": self.quantization, "load_format": self.load_format}


@dataclass(slots=True)
class Opened:
    """A backend, and what the text layer needs to use it."""

    backend: TorchBackend
    shape: TransformerShape
    tokenizer: HfTokenizer | None
    template: str | None
    seconds: dict[str, float] = field(default_factory=dict)
    grammars: Callable[[], GrammarFactory] | None = None


def open_model(source: ModelSource, options: TorchOptions, progress: Progress | None = None) -> Opened:
    """A folder, a GGUF file, or just a shape (then with random weights). Ready for its first tick."""
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    devices = _devices(options)
    device = devices[0]
    if threads := _threads(options, device):
        torch.set_num_threads(threads)
    with clock("device"):
        torch.empty(1, device=device)
    use_kernel_cache(options.kernel_cache, device)
    shape, weights, place = weights_of(source, device, **options.reading)
    window = min(options.window or WINDOW_AUTO, shape.context_max)
    with clock("tokenizer"):
        tokenizer, template = text_of(source, weights, shape)
    followers = _start_followers(source, shape, place, devices, window, options)
    warming = options.warm_up and (device.type == "cuda" or bool(options.graphs))
    half = 0.5 if warming else 1.0  # of the progress bar
    grammars = LazyGrammarFactory(tokenizer) if tokenizer is not None else None
    try:
        with clock("weights"), torch.inference_mode():
            report = _stage(progress, "loading", 0.0, half)
            group = followers.group if followers is not None else None
            model = _build(weights, shape, place, group, window=window, progress=report)
            check_all_read(weights)
            weights.close()
            drafts = _draft_model(options, shape, tokenizer, device, window)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        with COMPILES.preparing():
            with clock("pool"):
                eos = tokenizer.eos if tokenizer is not None else shape.eos
                backend = _backend(
                    model, window, options, eos=eos, grammars=grammars, followers=followers, drafts=drafts
                )
            if warming:
                with clock("warm-up"):
                    backend.warm_up(_stage(progress, "compiling", half, 1.0))
            if drafts is not None:
                with clock("draft model"):
                    _add_draft_model(backend, drafts, options, warming=warming)
    except BaseException:
        if followers is not None:
            followers.close()
        raise
    return Opened(backend, shape, tokenizer, template, seconds, grammars)


# --- several ranks -------------------------------------------------------------------------------


def _devices(options: TorchOptions) -> list[torch.device]:
    if options.tensor_parallel > 1:
        return rank_devices(options.rank_devices, options.tensor_parallel)
    return [choose_device(options.device)]


def _threads(options: TorchOptions, device: torch.device) -> int:
    """Ranks on one CPU share its threads. 0: as torch chose."""
    if options.tensor_parallel == 1 or device.type != "cpu":
        return options.threads
    return max(1, (options.threads or torch.get_num_threads()) // options.tensor_parallel)


def _start_followers(
    source: ModelSource,
    shape: TransformerShape,
    place: Placement,
    devices: list[torch.device],
    window: int,
    options: TorchOptions,
) -> Followers | None:
    """They load their parts while this process loads its own."""
    ranks = options.tensor_parallel
    if ranks == 1:
        return None
    adapters = bool(options.adapters)
    check_supported(source, shape, fp8=place.fp8, kv_dtype=options.kv_dtype, adapters=adapters)
    shard_shape(shape, ranks)  # raises where it cannot be divided
    followers = Followers(RankGroup(0, ranks, devices[0]), on_lost=options.on_lost)
    setups = [
        messages.Setup(
            path=str(source),
            rank=rank,
            ranks=ranks,
            device=str(devices[rank]),
            dtype=str(place.dtype).removeprefix("torch."),
            load_format=options.load_format,
            slots=options.slots,
            window=window,
            rows_max=options.rows_max,
            page_tokens=options.page_tokens,
            threads=_threads(options, devices[rank]) or torch.get_num_threads(),
            kernel_cache=str(options.kernel_cache or ""),
            meeting=str(followers.meeting),
        )
        for rank in range(1, ranks)
    ]
    followers.load(setups)
    return followers


def build_part(setup: messages.Setup, group: RankGroup) -> CausalModel:
    """A follower's part of the model."""
    options = TorchOptions(dtype=setup.dtype, load_format=setup.load_format)
    shape, weights, place = weights_of(Path(setup.path), group.device, **options.reading)
    model = _build(weights, shape, place, group, window=setup.window)
    weights.close()
    return model


def _build(
    weights: PartSource | GgufSource,
    shape: TransformerShape,
    place: Placement,
    group: RankGroup | None,
    *,
    window: int,
    progress: Callable[[float], None] | None = None,
) -> CausalModel:
    if group is None:
        return build(weights, shape, place, window=window, progress=progress)
    assert not isinstance(weights, GgufSource)
    own = ShardedSource(weights, shape, rank=group.rank, ranks=group.count)
    part = shard_shape(shape, group.count)
    return build(own, part, replace(place, ranks=group), window=window, progress=progress)


def _stage(progress: Progress | None, name: str, begin: float, end: float) -> Callable[[float], None] | None:
    """One stage's part of the progress bar."""
    return None if progress is None else lambda done: progress(name, begin + done * (end - begin))


def _backend(
    model: CausalModel,
    window: int,
    options: TorchOptions,
    *,
    eos: frozenset[int],
    grammars: LazyGrammarFactory | None,
    followers: Followers | None = None,
    drafts: CausalModel | None = None,
) -> TorchBackend:
    small = options.kv_dtype == "fp8"
    pages = options.pages or pages_that_fit(
        model.shape,
        model.place,
        slots=options.slots,
        window=window,
        rows_max=options.rows_max,
        page_tokens=options.page_tokens,
        kv_item_bytes=1 if small else 0,
        outputs_max=min(options.rows_max, draft_rows(options.slots, options.drafts_max)),
        draft=None if drafts is None else _draft_memory(drafts, window, options),
    )
    if followers is not None:
        pages = followers.begin(pages)
    backend = TorchBackend(
        model,
        slots=options.slots,
        window=window,
        pages=pages,
        page_tokens=options.page_tokens,
        rows_max=options.rows_max,
        plan_ahead=options.plan_ahead,
        kv_scales=measure_scales(model, window=window) if small else None,
        graphs=options.graphs,
        eos=eos,
        make_grammars=grammars,
        followers=followers,
        drafts_max=options.drafts_max,
    )
    backend.add_host_pages(options.host_bytes)
    if options.adapters:
        backend.add_adapters(options.adapters, loaded_max=options.adapters_loaded_max)
    return backend


# --- the draft model -----------------------------------------------------------------------------


def _draft_model(
    options: TorchOptions,
    shape: TransformerShape,
    tokenizer: HfTokenizer | None,
    device: torch.device,
    window: int,
) -> CausalModel | None:
    """Of several ranks only rank 0 has it."""
    if options.draft_model is None:
        return None
    return load_draft(
        options.draft_model,
        target=shape, words=tokenizer, device=device, window=window, **options.reading,
    )  # fmt: skip


def _draft_memory(model: CausalModel, window: int, options: TorchOptions) -> DraftMemory:
    return draft_memory(model, slots=options.slots, window=window, page_tokens=options.page_tokens)


def _add_draft_model(
    backend: TorchBackend, model: CausalModel, options: TorchOptions, *, warming: bool
) -> None:
    can = backend.capabilities
    drafts = PagedDraftModel(
        model,
        slots=options.slots,
        window=min(can.window, model.shape.context_max),
        pages=min(can.pages, _draft_memory(model, can.window, options).pages_max),
        page_tokens=can.page_tokens,
        drafts_max=options.drafts_max,
        vocab=can.vocab,
        graphs=options.graphs,
    )
    if warming:
        drafts.warm_up()
    backend.add_draft_model(drafts, lookup=options.lookup)


def choose_device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


class LazyGrammarFactory:
    """llguidance's view of the vocabulary, built for the first grammar. Thread-safe."""

    def __init__(self, tokenizer: HfTokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._factory: GrammarFactory | None = None

    def __call__(self) -> GrammarFactory:
        with self._lock:
            if self._factory is None:
                self._factory = self._build()
            return self._factory

    def _build(self) -> GrammarFactory:
        from stretto.text.grammar import build_ll_tokenizer
        from stretto.text.grammar_factory import GrammarFactory

        words = self._tokenizer
        tokens = range(words.vocab_size)
        made = build_ll_tokenizer(
            [words.token_bytes(token) for token in tokens],
            sorted(words.eos),
            control=[token for token in tokens if words.is_control(token)],
            encode=lambda text: words.encode(text, False),
        )
        return GrammarFactory(made, eos=words.eos)


class _Clock:
    """`with clock("weights"):` adds to a table of seconds."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._name = ""
        self._started = 0.0

    def __call__(self, name: str) -> _Clock:
        self._name = name
        return self

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._seconds[self._name] = time.perf_counter() - self._started
