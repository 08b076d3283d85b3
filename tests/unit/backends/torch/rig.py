"""Tiny random models of every family as Hugging Face folders, transformers as the reference, and a loop.

The reference computes a whole text at once, in float32, without cache, pages or batches. The recorder keeps
every row of logits that the backend sampled from, with its request and position.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from stretto.backends.base import complete
from stretto.backends.torch import TorchBackend, read_config
from stretto.backends.torch.models import CausalModel, Placement, build
from stretto.backends.torch.weights import SafetensorsSource
from stretto.core import invariants
from stretto.core.limits import Limits
from stretto.core.request import Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Idle, Terminal, Tick

torch.set_num_threads(1)

KINDS = ("llama", "qwen2", "qwen3", "moe", "gemma3", "gptoss")
WINDOW = 256
VOCAB = 512
TOLERANCE = 1e-4
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,  # so that tokens differ in their logits
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}

SLIDING_WINDOW = 20
GEMMA = {
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "sliding_window": SLIDING_WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1_000_000.0},
    },
    "pad_token_id": 0,
}

GPT_OSS = {
    "head_dim": 16,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "sliding_window": SLIDING_WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "swiglu_limit": 1.0,  # so low that it matters
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 150_000.0,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}


def hf_config(kind: str, **more):
    import transformers

    classes = {
        "llama": (transformers.LlamaConfig, {}),
        "qwen2": (transformers.Qwen2Config, {}),
        "qwen3": (transformers.Qwen3Config, {"head_dim": 32, "tie_word_embeddings": True}),
        "moe": (transformers.Qwen3MoeConfig, {"head_dim": 16, **EXPERTS}),
        "gemma3": (transformers.Gemma3TextConfig, GEMMA),
        "gptoss": (transformers.GptOssConfig, GPT_OSS),
    }
    config, own = classes[kind]
    return config(**{**SHAPE, **own, **more})


@lru_cache(maxsize=32)
def hf_model(kind: str):
    return make_hf_model(hf_config(kind))


def make_hf_model(config):
    """Random everywhere: norms and biases too, which transformers would leave at one and zero."""
    import transformers

    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.uniform_(0.5, 1.5)
                value -= float(config.model_type == "gemma3_text")  # whose gains are 1 + the weight
            elif name.endswith(("bias", "sinks")):
                value.normal_(0.0, 0.2)
    return model


@lru_cache(maxsize=32)
def folder(kind: str) -> Path:
    return save(hf_model(kind))


def save(model, **options) -> Path:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    target = tempfile.TemporaryDirectory(prefix="stretto-torch-")
    _kept.append(target)
    model.save_pretrained(target.name, **options)
    return Path(target.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


class Recorder(CausalModel):
    """A model that records its logits."""

    rows: list[torch.Tensor]

    def head(self, *args):
        made = super().head(*args)
        self.rows.append(made.clone())
        return made


def load(path: Path, *, window: int = WINDOW) -> CausalModel:
    place = Placement(torch.device("cpu"), torch.float32)
    source = SafetensorsSource(path)
    with torch.inference_mode():
        model = build(source, read_config(path), place, window=window)
    source.close()
    model.__class__ = Recorder
    model.rows = []
    return model


@lru_cache(maxsize=8)
def tiny(kind: str) -> CausalModel:
    return load(folder(kind))


def make_backend(kind: str | CausalModel, **more) -> TorchBackend:
    defaults = {
        "slots": 4,
        "window": WINDOW,
        "pages": 96,
        "page_tokens": 16,
        "rows_max": 256,
        "plan_ahead": 1,
    }
    model = tiny(kind) if isinstance(kind, str) else kind
    return TorchBackend(model, **defaults | more)


@torch.no_grad()
def reference_logits(kind, tokens: Sequence[int]) -> torch.Tensor:
    """[tokens, vocab] of a text, all at once."""
    model = hf_model(kind) if isinstance(kind, str) else kind
    return model(torch.tensor([list(tokens)])).logits[0]


def gap(kind, prompt: Sequence[int], output: Sequence[int]) -> float:
    """The largest gap between a token's logit and the reference's best one, teacher-forced."""
    logits = reference_logits(kind, [*prompt, *output])[len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(list(output)).unsqueeze(1)).squeeze(1)
    return float((logits.amax(1) - chosen).max())


def ask(name: str, count: int, *, start: int = 0, outputs: int = 8, **params) -> Request:
    tokens = array("i", [3 + (start * 53 + at * 17 + at * at) % 400 for at in range(count)])
    chosen = {"max_tokens": outputs, "temperature": 0.0, "ignore_eos": True} | params
    return Request(name, tokens, SamplingParams(**chosen))


class Loop:
    """A scheduler over the backend, with every sampled row of logits kept by (request, position)."""

    def __init__(self, backend: TorchBackend, **limits) -> None:
        self.backend = backend
        defaults = {"n_seq_max": backend.capabilities.sequences_max, "n_batch": 256, "target_itl_s": 10.0}
        self.scheduler = Scheduler(
            Limits(**{"cache_min_tokens": 1} | defaults | limits), backend.capabilities
        )
        self.texts: dict[str, array[int]] = {}
        self.extras: dict[str, list[object]] = {}
        self.ends: dict[str, Terminal] = {}
        self.logits: dict[tuple[str, int], torch.Tensor] = {}
        self.passes = 0
        self.mixed_drafts = 0  # passes with drafts and prompts
        self._bound: dict[int, str] = {}
        self._flying: list[Tick] = []

    def run(self, requests: Iterable[Request]) -> dict[str, list[int]]:
        for request in requests:
            answer = self.scheduler.submit(request, 0.0)
            assert answer.accepted, answer.error
            self.texts[request.id] = array("i", request.tokens)
        while len(self.ends) < len(self.texts):
            self._turn()
            invariants.check_books(self.scheduler)
        return {r: list(t[self.ends[r].prompt_tokens :]) for r, t in self.texts.items()}

    def _turn(self) -> None:
        planned = self.scheduler.plan(0.0)
        if isinstance(planned, Tick):
            self._launch(planned)
        if self._flying and (
            isinstance(planned, Idle) or len(self._flying) > self.backend.capabilities.plan_ahead
        ):
            tick = self._flying.pop(0)
            self._take(self.scheduler.commit(complete(self.backend, tick), 0.0))
        else:
            self._take(self.scheduler.take_events())

    def _launch(self, tick: Tick) -> None:
        for slot in tick.unbind:
            self._bound.pop(slot, None)
        for binding in tick.bind:
            self._bound[binding.slot] = binding.request.id
        self.passes += 1
        self.mixed_drafts += tick.decode_spans < tick.decode_rows < tick.rows
        rows = self.backend.model.rows
        rows.clear()
        self.backend.launch(tick)
        self._flying.append(tick)
        if not rows:
            return
        made, at = rows[-1], 0  # earlier rows come from the capture run
        for span in tick.spans():
            for row in range(span.outputs):
                position = span.start + span.rows - span.outputs + row
                self.logits[self._bound[span.slot], position] = made[at]
                at += 1

    def _take(self, events) -> None:
        at = 0
        for request, count in zip(events.requests, events.counts, strict=True):
            self.texts[request].extend(events.tokens[at : at + count])
            at += count
        for request, extra in events.extras.items():
            self.extras.setdefault(request, []).append(extra)
        for end in events.ends:
            self.ends[end.request_id] = end

    def worst(self, kind) -> float:
        """The largest difference of any sampled logit from the reference's."""
        errors = []
        truth = {name: reference_logits(kind, text) for name, text in self.texts.items()}
        for (name, position), row in self.logits.items():
            errors.append(float((row - truth[name][position]).abs().max()))
        assert errors
        return max(errors)
