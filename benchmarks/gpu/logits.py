"""Compares logits in half precision with transformers', and greedy tokens with and without CUDA graphs.

    PYTHONPATH=src python benchmarks/gpu/logits.py --model qwen3-0.6b [--json FILE] [--check]

A model with random weights in transformers, and the same tensors in ours. Per row: the norm of the difference
over the norm of the reference, teacher-forced; p99 at most 1.25 times that of transformers in chunks against
transformers at once: rounding that depends on the chunks. Both are also compared with the same weights in
float32. The tokens of 24 ragged requests must be the same with graphs
and eagerly.

The bar applies to transformers' own initialization. `initialisations` has the same figures for the weights of
the other benchmarks (`load_format: dummy`), unchanged and with the residual contribution of each layer scaled
by 1/sqrt(2 × layers), as in GPT-2's initialization.
"""

from __future__ import annotations

import copy
import random
import sys
from pathlib import Path
from typing import Any

import torch
from offline import OfflineLoop, find_shape, finish, make_request, parser

from stretto.backends.torch import TorchBackend, TransformerShape
from stretto.backends.torch.models import CausalModel, Placement, Step, build
from stretto.backends.torch.models.causal import CausalModel as _Model
from stretto.backends.torch.pool import KvPool
from stretto.backends.torch.weights import DummySource, checked
from stretto.core.tick import Tick

ERROR_RATIO_MAX = 1.25  # of the distance between transformers in chunks and transformers at once
WINDOW = 1024
CHUNK = 193


class StateSource:
    """A weight source with the tensors of a transformers model."""

    def __init__(self, model: Any) -> None:
        self._state = model.state_dict()

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return checked(self._state[name], name, shape)

    def experts(self, prefix: str, projection: str, shape: tuple[int, int, int]) -> torch.Tensor:
        rows = shape[1]
        if projection == "down_proj":
            return self.read(f"{prefix}.down_proj", shape)
        both = self._state[f"{prefix}.gate_up_proj"]
        return both[:, :rows] if projection == "gate_proj" else both[:, rows:]

    def unread(self) -> list[str]:
        return []

    def close(self) -> None:
        self._state = {}


def reference(shape: TransformerShape, place: Placement) -> Any:
    here = str(Path(__file__).parent)
    sys.path[:] = [
        path for path in sys.path if path != here
    ]  # transformers would import our `kernels` as its own
    import transformers

    sizes = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.norm_eps,
        "max_position_embeddings": shape.context_max,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope.theta},
    }
    classes = {"qwen3": transformers.Qwen3Config, "llama": transformers.LlamaConfig}
    config = classes[shape.family](**sizes)
    torch.manual_seed(0)
    with place.device:
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=place.dtype)
    return model.eval().to(place.device)


@torch.inference_mode()
def refill(theirs: Any, shape: TransformerShape, place: Placement, *, scaled: bool) -> None:
    """The weights of `load_format: dummy`. `scaled`: residual projections scaled down."""
    source, factor = DummySource(place.device, place.dtype), (2 * shape.layers) ** -0.5
    for name, weight in theirs.named_parameters():  # does not include a tied output matrix
        weight.copy_(source.read(name, tuple(weight.shape)))
        if scaled and name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.mul_(factor)


class Recorder(_Model):
    """Records its logits on request."""

    kept: list[torch.Tensor]

    def logits(self, *args: Any, **more: Any) -> torch.Tensor:
        made = super().logits(*args, **more)
        self.kept.append(made.float().clone())
        return made


def compare(model: CausalModel, theirs: Any, *, vocab: int, pages: int, page_tokens: int) -> dict[str, float]:
    """Compares prompt chunks and single rows with the whole text computed at once by transformers."""
    model.__class__ = Recorder
    model.kept = []  # type: ignore[attr-defined]
    backend = TorchBackend(
        model, slots=8, window=WINDOW, pages=pages, page_tokens=page_tokens, rows_max=4096, graphs=False
    )
    loop, rng = OfflineLoop(backend, prefill_chunk=CHUNK), random.Random(1)
    sizes = (1, 2, page_tokens - 1, page_tokens, page_tokens + 1, 194, 387, 700)
    requests = [
        make_request(f"r{n}", [rng.randrange(vocab) for _ in range(size)], 24, temperature=0.0)
        for n, size in enumerate(sizes)
    ]
    seen: list[tuple[str, int, torch.Tensor]] = []
    names: dict[int, str] = {}
    launch = backend.launch

    def watched(tick: Tick) -> None:
        names.update({binding.slot: binding.request.id for binding in tick.bind})
        launch(tick)
        rows = iter(model.kept.pop()) if tick.slots else iter(())  # type: ignore[attr-defined]
        for span in tick.spans():
            for output in range(span.outputs):
                position = span.start + span.rows - span.outputs + output
                seen.append((names[span.slot], position, next(rows)))

    backend.launch = watched  # type: ignore[method-assign]
    run = loop.run(requests)
    texts = {request.id: [*request.tokens, *run.outputs[request.id]] for request in requests}
    prompts = {request.id: len(request.tokens) for request in requests}
    model.__class__ = CausalModel
    uncut = {name: at_once(model, backend.pool, text) for name, text in texts.items()}
    chunked = in_chunks(theirs, texts, prompts, model.place.device)
    half, whole = truths(theirs, texts, model.place.device)
    rows = [(row, half[name][position], whole[name][position]) for name, position, row in seen]
    theirs_chunked = [(chunked[name][position], half[name][position]) for name, position, _ in seen]
    return {
        "rows": len(rows),
        **spread("error", [distance(ours, they) for ours, they, _ in rows]),
        **spread("ours_from_float32", [distance(ours, truth) for ours, _, truth in rows]),
        **spread("theirs_from_float32", [distance(they, truth) for _, they, truth in rows]),
        **spread("theirs_cut_from_theirs", [distance(one, other) for one, other in theirs_chunked]),
        **spread("uncut_error", [distance(uncut[name][at], half[name][at]) for name, at, _ in seen]),
        **spread("ours_from_theirs_cut", [distance(row, chunked[name][at]) for name, at, row in seen]),
        "best_token_agrees": sum(int(ours.argmax() == they.argmax()) for ours, they, _ in rows) / len(rows),
    }


@torch.inference_mode()
def at_once(model: CausalModel, pool: KvPool, text: list[int]) -> torch.Tensor:
    """Logits of a whole text in one pass, as transformers computes it."""
    device, rows = model.place.device, torch.arange(len(text), dtype=torch.int32, device=model.place.device)
    pages = -(-len(text) // pool.page_tokens)
    step = Step(
        positions=rows,
        slot_mapping=rows.long(),
        block_tables=torch.arange(pages, dtype=torch.int32, device=device).view(1, -1),
        query_starts=torch.tensor([0, len(text)], dtype=torch.int32, device=device),
        context_lens=torch.tensor([len(text)], dtype=torch.int32, device=device),
        max_query=len(text),
        decode_only=False,
    )
    return model.logits(torch.tensor(text, device=device), step, pool.layers).float()


@torch.inference_mode()
def in_chunks(
    theirs: Any, texts: dict[str, list[int]], prompts: dict[str, int], device: torch.device
) -> dict[str, torch.Tensor]:
    """Logits by transformers with a cache: chunks of the prompt, then row by row."""
    found = {}
    for name, text in texts.items():
        cache, rows, at = None, [], 0
        while at < len(text):
            size = min(CHUNK, prompts[name] - at) if at < prompts[name] else 1
            part = torch.tensor([text[at : at + size]], device=device)
            answer = theirs(part, past_key_values=cache, use_cache=True)
            cache = answer.past_key_values
            rows.append(answer.logits[0].float())
            at += size
        found[name] = torch.cat(rows)
    return found


@torch.inference_mode()
def truths(theirs: Any, texts: dict[str, list[int]], device: torch.device) -> list[dict[str, torch.Tensor]]:
    """Logits of each whole text by transformers: in the model's type, and with float32 weights."""
    wide = copy.deepcopy(
        theirs
    ).float()  # not converted in place: that would round its rotary frequencies too
    return [
        {name: model(torch.tensor([text], device=device)).logits[0].float() for name, text in texts.items()}
        for model in (theirs, wide)
    ]


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def spread(name: str, errors: list[float]) -> dict[str, float]:
    errors = sorted(errors)
    places = {"p50": len(errors) // 2, "p99": len(errors) * 99 // 100, "max": len(errors) - 1}
    return {f"{name}_{place}": errors[at] for place, at in places.items()}


def tokens(
    model: CausalModel, *, graphs: bool, pages: int, page_tokens: int, vocab: int
) -> dict[str, list[int]]:
    backend = TorchBackend(
        model, slots=16, window=WINDOW, pages=pages, page_tokens=page_tokens, rows_max=2048, graphs=graphs
    )
    rng = random.Random(2)
    requests = [
        make_request(
            f"r{n}",
            [rng.randrange(vocab) for _ in range(rng.randint(1, 600))],
            64,
            temperature=0.7 * (n % 2),
            seed=n,
        )
        for n in range(24)
    ]
    return OfflineLoop(backend).run(requests).outputs


def main() -> int:
    options = parser(__doc__).parse_args()
    shape = find_shape(options.model)
    assert isinstance(shape, TransformerShape), "a named shape"
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    place = Placement(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    theirs = reference(shape, place)

    def ours() -> CausalModel:
        with torch.inference_mode():
            return build(StateSource(theirs), shape, place, window=WINDOW)

    model = ours()
    pages = 16 * WINDOW // options.page_tokens
    shared = {"pages": pages, "page_tokens": options.page_tokens, "vocab": shape.vocab}
    result: dict[str, Any] = {"what": "logits against transformers", "model": options.model}
    result |= compare(model, theirs, **shared)
    own = result["theirs_cut_from_theirs_p99"]
    result["error_p99_ratio"] = result["error_p99"] / own
    result["bars"] = {"error_p99_to_spare": (ERROR_RATIO_MAX * own - result["error_p99"], 0.0)}
    if device.type == "cuda":
        with_graphs = tokens(model, graphs=True, **shared)
        eager = tokens(model, graphs=False, **shared)
        same = sum(with_graphs[name] == eager[name] for name in eager)
        result |= {"same_with_graphs": same, "of": len(eager)}
        result["bars"]["same_with_graphs"] = (float(same), float(len(eager)))
    result["initialisations"] = {}
    for name, scaled in (("dummy", False), ("dummy, residual projections scaled", True)):
        refill(theirs, shape, place, scaled=scaled)
        result["initialisations"][name] = compare(ours(), theirs, **shared)
    return finish(options, result)


if __name__ == "__main__":
    sys.exit(main())
