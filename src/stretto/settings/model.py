"""The settings of one model.

Knows names, ranges, defaults and conflicts. `limits` derives the scheduler's limits.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from stretto.core.limits import Limits, Preemption
from stretto.errors import SettingsError
from stretto.settings.values import Bytes, Count, Milliseconds, Seconds

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"]
CachePolicy = Literal["none", "system_prompt", "incremental", "prefix"]
Quirk = Literal[
    "row_attention",
    "side_context",
    "separate_calls",
    "batch_invariant_ubatches",
    "tile_fill",
    "pad_gaps",
    "pad_to_four",
    "pad_lone_row",
]
CACHE_SWITCHES = {"system_prompt_cache": "system_prompt", "incremental_cache": "incremental"}
_SWITCH = {True: "on", False: "off", "enabled": "on", "disabled": "off", "true": "on", "false": "off"}


def _switch(value: Any) -> Any:
    """Accept `true`, `enabled` and `on` alike; YAML 1.1 reads `on` as true."""
    key = value.lower() if isinstance(value, str) else value
    return _SWITCH.get(key, key) if isinstance(key, str | bool) else value


def _policy(value: Any) -> Any:
    """Accept `cache: off`, which YAML reads as false."""
    return "none" if value is False or value == "off" else value


def _layers(value: Any) -> Any:
    """Accept -1 for all layers, as llama.cpp does."""
    return "all" if value == -1 and not isinstance(value, bool) else value


def _regular_expression(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


def _some_share(value: list[float] | None) -> list[float] | None:
    if value is not None and not any(value):
        raise ValueError("at least one GPU needs a share above 0")
    return value


_LayerCount = Annotated[Annotated[Count, Field(le=100_000)] | Literal["all"], BeforeValidator(_layers)]
_Shares = Annotated[list[Annotated[float, Field(ge=0)]] | None, AfterValidator(_some_share)]
_TensorPattern = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_regular_expression)]
_DeviceName = Annotated[str, Field(min_length=1, max_length=80)]


_AdapterName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class AdapterSettings(BaseModel):
    """One adapter; a path alone will do."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    path: Annotated[str, Field(min_length=1)]
    """A GGUF file (llama.cpp), or a folder as PEFT saves it (torch)."""
    scale: Annotated[float, Field(ge=-100.0, le=100.0)] = 1.0
    """For requests that give none."""


def _adapter(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


_Adapters = dict[_AdapterName, Annotated[AdapterSettings, BeforeValidator(_adapter)]]


class ModelSettings(BaseModel):
    """One model. Every field is a YAML key, a `STRETTO_*` variable and a flag of the same name."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )

    path: str | None = None
    """Where the model is: a file, a directory, or user/repo[:quant]. Default: looked up by its name."""
    backend: Literal["auto", "llamacpp", "torch", "simulated"] = "auto"
    """Which backend runs it; auto decides by the file."""
    chat_template: str | None = None
    """A file with a chat template that replaces the model's own."""

    context_window: Annotated[Count, Field(ge=16, le=1 << 24)] | Literal["auto"] = "auto"
    """Context length of each slot (not divided among them); auto: the model's, at most 8192."""
    n_seq_max: Annotated[Count, Field(ge=1, le=1024)] = 4
    """Slots: number of requests that run concurrently."""
    n_ctx: Annotated[Count, Field(ge=16, le=1 << 28)] | Literal["auto"] = "auto"
    """Tokens of KV memory that all slots share; auto: a window for each slot (torch on a GPU: what is free).
    Less than n_seq_max windows oversubscribes the memory: requests wait or are preempted when it is short.
    llama.cpp needs kv_layout: unified for it, and takes it unless kv_layout says otherwise."""
    n_batch: Annotated[Count, Field(ge=1, le=1 << 20)] = 2048
    """Tokens of one tick: decode rows first, then prefill chunks."""
    n_ubatch: Annotated[Count, Field(ge=1, le=1 << 20)] = 512
    """Tokens of one physical batch in llama.cpp; at most n_batch."""
    prefill_chunk: Annotated[Count, Field(ge=1, le=1 << 20)] = 512
    """Maximum prompt tokens per tick."""
    target_itl_ms: Annotated[Milliseconds, Field(gt=0)] | Literal["auto"] = "auto"
    """Milliseconds between two tokens of a stream that a tick tries to keep; auto: 50, on a slow machine four
    ticks without prompts, and long prompts in chunks of an efficient size."""

    load_format: Literal["auto", "dummy"] = "auto"
    """torch: dummy makes random weights of the model's shape, for benchmarks."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """torch: type of weights and KV cache; auto: the model's on a GPU, float32 on a CPU."""
    kv_dtype: Literal["auto", "fp8"] = "auto"
    """torch: type of the KV cache; auto: the weights'. fp8 (e4m3) holds twice as many tokens; scales of
    heads are measured when the model is loaded."""
    quantization: Literal["auto", "none", "fp8"] = "auto"
    """torch: fp8 quantizes the matrices of the layers to e4m3 at load, with a scale for each row; auto: if
    the model's files are FP8. none widens such files to dtype."""
    page_tokens: Annotated[Count, Field(ge=1, le=256)] = 32
    """torch: tokens in a page of the KV pool."""
    tensor_parallel: Annotated[Count, Field(ge=1, le=64)] = 1
    """torch: processes that share a model, each with a part of every layer; one for each GPU."""
    warm_up: bool = True
    """torch, on a GPU: compile kernels and capture graphs before the model is ready; false: on first use."""

    cache_type_k: CacheType = "f16"
    """Type of the K cache."""
    cache_type_v: CacheType = "f16"
    """Type of the V cache; quantized types need flash attention."""
    kv_layout: Literal["streams", "unified"] = "streams"
    """streams: memory of its own for each slot. unified: one pool of n_ctx tokens, where memory is short."""
    swa_full: bool = True
    """Keep the full cache of sliding-window layers, so that prefixes can be reused anywhere."""

    cache: Annotated[CachePolicy, BeforeValidator(_policy)] = "prefix"
    """What is kept between requests: none, system_prompt, incremental (per conversation) or prefix (all)."""
    system_prompt_cache: bool = False
    """Selects cache: system_prompt."""
    incremental_cache: bool = False
    """Selects cache: incremental."""
    cache_min_tokens: Count = 100
    """Minimum length of a cached prefix, in tokens."""
    cache_slot_timeout: Annotated[Seconds, Field(gt=0)] = 30.0
    """Seconds that a request waits in the queue before it takes the slot of the longest-running request, or
    of the busy conversation that it continues; under every cache policy."""
    cache_ram_bytes: Bytes = 1 << 30
    """Host memory for saved prefixes; on torch only if it is set."""
    deterministic: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = "auto"
    """on: greedy text never depends on cache, neighbours, chunks or preemption, where need be by computing
    answers again when a conversation goes on; refused where it cannot be kept. auto: where that is free."""

    queue_depth: Annotated[Count, Field(ge=1, le=1024)] = 2
    """n_seq_max times this many requests of each priority are in flight, those in slots included."""
    max_queue: Count = 512
    """Maximum requests queued beyond that, per priority."""
    max_queue_wait_s: Annotated[Seconds, Field(gt=0)] | None = None
    """Maximum time in the queue; the server's default is 60."""
    slice_tokens: Annotated[Count, Field(le=1 << 20)] = 64
    """Time slicing when there are more streams than slots: tokens that a stream generates before a preempted
    one may take its slot; 0: a request keeps its slot until it ends. Formerly `turn_tokens`."""
    preemption: Literal["resume", "fail"] = "resume"
    """What happens to the victim of cache_slot_timeout: resume continues it later, fail ends it."""
    tenant_weights: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = {}
    """Weights of tenants; default 1."""

    split_mode: Literal["none", "layer", "row", "tensor"] = "layer"
    """How several GPUs share a model: by layers, by rows of matrices or by tensors (experimental in
    llama.cpp). none: main_gpu alone."""
    flash_attention: Annotated[Literal["auto", "on", "off", "long", "rows"], BeforeValidator(_switch)] = (
        "auto"
    )
    """on, off, long: only for long prompts, or rows: row by row, too. auto: on for GPUs, else measured."""
    n_gpu_layers: _LayerCount = "all"
    """Layers on the GPU; 0 is none, -1 is all."""
    main_gpu: Annotated[Count, Field(le=1024)] = 0
    """The GPU that holds what cannot be split."""
    tensor_split: _Shares = None
    """Proportions of the model on each GPU; default: by free memory."""
    devices: list[str] | None = None
    """Devices to use, by name; default: all."""
    override_tensors: Annotated[dict[_TensorPattern, _DeviceName], Field(max_length=64)] = {}
    """Devices of single tensors, by regular expression on their names: {"ffn_.*_exps": CPU}. The first match
    wins."""
    n_cpu_moe: _LayerCount = 0
    """Layers, from the first, whose experts stay on the CPU; -1 is all."""
    offload_kqv: bool = True
    """Keep the KV cache on the GPU."""
    op_offload: bool = True
    """Run operations on the GPU even for tensors in host memory."""
    n_threads: Annotated[Count, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """CPU threads for decoding; auto: measured at load."""
    n_threads_batch: Annotated[Count, Field(ge=1, le=4096)] | Literal["auto"] = "auto"
    """CPU threads for prefill; auto: as n_threads."""
    use_mmap: bool = True
    """Map the model file instead of reading it."""
    use_mlock: bool = False
    """Keep the model from being swapped out."""
    use_direct_io: bool = False
    """Bypass the page cache when reading the model file."""

    kernels: Literal["auto", "own", "llamacpp"] = "auto"
    """Whose CPU kernels compute. auto: on ARM Stretto's own, in processes of its own. own: also in a program
    that embeds the SDK, for all of its llama.cpp. llamacpp: never ours. A process's first model decides."""
    quirks_off: list[Quirk] = []
    """Answers to llama.cpp's behaviour on this machine to leave out (`stretto doctor MODEL` lists them)."""

    rope_scaling_type: Literal["none", "linear", "yarn", "longrope"] | None = None
    """RoPE scaling method. Unset, as with the keys below: what the model file says."""
    rope_freq_base: Annotated[float, Field(gt=0)] | None = None
    """RoPE base frequency."""
    rope_freq_scale: Annotated[float, Field(gt=0)] | None = None
    """RoPE frequency scaling factor."""
    yarn_ext_factor: float | None = None
    """YaRN extrapolation mix factor."""
    yarn_attn_factor: float | None = None
    """YaRN attention magnitude scaling factor."""
    yarn_beta_fast: float | None = None
    """YaRN low correction dimension."""
    yarn_beta_slow: float | None = None
    """YaRN high correction dimension."""
    yarn_orig_ctx: Count | None = None
    """Context length that the model was trained with, for YaRN."""

    speculation: Annotated[Literal["off", "ngram"], BeforeValidator(_switch)] = "off"
    """ngram: draft tokens by lookup in the prompt, the answer and recent answers; output is unchanged."""
    draft_model: str | None = None
    """Name or path of a small model with the same vocabulary, whose tokens the model verifies: a GGUF, with
    torch also a folder of safetensors."""
    speculation_tokens: Annotated[Count, Field(ge=1, le=64)] = 8
    """Maximum draft tokens per tick."""
    adapters: Annotated[_Adapters, Field(max_length=256)] = {}
    """Low-rank adapters (LoRA) that requests may name: {name: path}, or {name: {path: …, scale: 0.5}}."""
    adapters_loaded_max: Annotated[Count, Field(ge=1, le=64)] = 8
    """Adapters in memory at once; the least recently used one that no request needs is dropped."""
    mmproj: str = "auto"
    """The projector, for pictures and sounds: a GGUF file, or none. auto: mmproj*.gguf beside the model, if
    it fits and has the model's name. The simulated backend takes any name and then sees and hears."""
    n_media_max: Annotated[Count, Field(ge=1, le=4096)] = 16
    """Pictures and sounds in one request."""
    media_bytes_max: Annotated[Bytes, Field(ge=1 << 10, le=1 << 30)] = 16 << 20
    """Bytes of the files of all pictures and sounds in one request."""
    media_cache_bytes: Bytes = 256 << 20
    """Host memory for encoded pictures and sounds that no request needs now."""
    embed_inputs_max: Annotated[Count, Field(ge=1, le=1 << 20)] = 2048
    """Maximum inputs of an embedding request, or documents of a rerank request."""
    embed_batch_tokens: Annotated[Count, Field(ge=1, le=1 << 20)] | Literal["auto"] = "auto"
    """Tokens per pass of an embedding model; auto: 128 on a CPU, n_ubatch on a GPU."""
    seed: Annotated[Count, Field(ge=0)] | None = None
    """Seed of requests without one; default: random per request."""
    simulated_tick_ms: Milliseconds = 0.0
    """Duration of a tick of the simulated backend; 0: as fast as possible."""

    @model_validator(mode="before")
    @classmethod
    def _one_cache(cls, data: Any) -> Any:
        return select_cache(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _show_cache(self) -> Self:
        """Keep the two switches and `cache` consistent, whichever was set."""
        for switch, policy in CACHE_SWITCHES.items():
            object.__setattr__(self, switch, self.cache == policy)
        return self

    @field_validator("quirks_off", mode="before")
    @classmethod
    def _known_quirks(cls, names: Any) -> Any:
        known = get_args(Quirk)
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",") if name.strip()]
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str) and name not in known:
                near = difflib.get_close_matches(name, known, 1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise ValueError(f"{name[:80]!r} is not a quirk; {hint}")
        return names

    @field_validator("n_ubatch")
    @classmethod
    def _within_batch(cls, n_ubatch: int, info: ValidationInfo) -> int:
        n_batch = info.data.get("n_batch", n_ubatch)
        if n_ubatch > n_batch:
            raise ValueError(f"n_ubatch is more than n_batch ({n_batch})")
        return n_ubatch

    @model_validator(mode="after")
    def _room_for_rows(self) -> Self:
        if self.n_batch < self.n_seq_max:
            raise ValueError(
                f"n_batch ({self.n_batch}) must hold one row for each of n_seq_max ({self.n_seq_max}) slots"
            )
        if self.n_ctx != "auto":
            self._check_pool(self.n_ctx)
        if self.n_ubatch > self.n_batch:  # the default exceeds a small n_batch
            object.__setattr__(self, "n_ubatch", self.n_batch)
        return self

    def _check_pool(self, n_ctx: int) -> None:
        """`n_ctx` selects the layout with a shared pool, unless another was set."""
        if self.context_window != "auto" and self.context_window > n_ctx:
            raise ValueError(
                f"n_ctx ({n_ctx}) must hold one context_window ({self.context_window}); "
                "lower context_window, or raise n_ctx"
            )
        if "kv_layout" in self.model_fields_set and self.kv_layout == "streams":
            raise ValueError(
                "n_ctx is the size of a pool, and kv_layout: streams has none; set kv_layout: unified"
            )
        object.__setattr__(self, "kv_layout", "unified")

    @property
    def drafts(self) -> int:
        """Draft tokens of a request in a tick, at most; 0: nothing makes drafts."""
        return self.speculation_tokens if self.draft_model or self.speculation != "off" else 0

    def limits(self) -> Limits:
        """The scheduler's limits."""
        itl_s = None if self.target_itl_ms == "auto" else self.target_itl_ms / 1000
        try:
            return Limits(
                n_seq_max=self.n_seq_max,
                n_batch=self.n_batch,
                prefill_chunk=self.prefill_chunk,
                target_itl_s=itl_s,
                queue_depth=self.queue_depth,
                max_queue=self.max_queue,
                max_queue_wait_s=self.max_queue_wait_s,
                cache=self.cache,
                cache_min_tokens=self.cache_min_tokens,
                cache_slot_timeout_s=self.cache_slot_timeout,
                cache_ram_bytes=self.cache_ram_bytes,
                deterministic=self.deterministic == "on",
                slice_tokens=self.slice_tokens,
                preemption=Preemption(self.preemption),
                tenant_weights=dict(self.tenant_weights),
            )
        except ValueError as error:
            raise SettingsError(str(error)) from None


def select_cache(data: dict[str, Any]) -> dict[str, Any]:
    """`system_prompt_cache: true` becomes `cache: system_prompt`. Contradictions are errors."""
    chosen = [switch for switch in CACHE_SWITCHES if data.get(switch) is True]
    if len(chosen) > 1:
        raise SettingsError(
            "system_prompt_cache and incremental_cache are both true",
            hint="choose one, or set cache: prefix, which does the work of both",
        )
    cache = _policy(data.get("cache"))
    for switch, policy in CACHE_SWITCHES.items():
        wanted = data.get(switch)
        agrees = wanted is None or cache is None or (cache == policy) == wanted
        if isinstance(wanted, bool) and not agrees:
            raise SettingsError(
                f"cache: {cache} contradicts {switch}: {str(wanted).lower()}", hint="leave one of the two out"
            )
    return {**data, "cache": CACHE_SWITCHES[chosen[0]]} if chosen else data
