"""Measures what FP8 costs in accuracy: perplexity of a fixed text, and greedy tokens that stay the same.

    PYTHONPATH=src python benchmarks/gpu/perplexity.py MODEL [--text FILE] [--tokens N] [--json F] [--check]

MODEL is a GGUF file or a folder. The text is split into windows, each computed in one pass: first as it is,
then with FP8 KV, FP8 weights, and both. On a CPU FP8 is emulated. `increase_error` is the standard error of
the mean difference of a token.
`--check` exits 1 if FP8 KV, FP8 weights or both raise the perplexity by more than 1 %.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from stretto.backends.torch import TorchBackend
from stretto.backends.torch.kv_scales import measure_scales
from stretto.backends.torch.loading import TorchOptions, open_model
from stretto.backends.torch.models import CausalModel, Step
from stretto.backends.torch.ops import KvScales
from stretto.backends.torch.pool import KvPool

BAR = 0.01
WINDOW = 512
ROOT = Path(__file__).resolve().parent.parent.parent


def read_text(options: argparse.Namespace) -> str:
    text: str = options.text.read_text(encoding="utf-8")
    return text


def open_backend(options: argparse.Namespace, quantization: str) -> tuple[TorchBackend, Any]:
    chosen = TorchOptions(slots=1, window=WINDOW, pages=1, page_tokens=WINDOW, quantization=quantization)
    opened = open_model(options.model, chosen)
    return opened.backend, opened.tokenizer


@torch.inference_mode()
def logprobs(model: CausalModel, tokens: list[int], scales: list[KvScales] | None) -> torch.Tensor:
    """[tokens, vocab], each window computed alone."""
    found, device = [], model.place.device
    for begin in range(0, len(tokens), WINDOW):
        own = torch.tensor(tokens[begin : begin + WINDOW], device=device)
        pool = KvPool(model.shape, model.place, pages=1, page_tokens=len(own), scales=scales)
        rows = torch.arange(len(own), dtype=torch.int32, device=device)
        step = Step(
            positions=rows,
            slot_mapping=rows.long(),
            block_tables=torch.zeros(1, 1, dtype=torch.int32, device=device),
            query_starts=torch.tensor([0, len(own)], dtype=torch.int32, device=device),
            context_lens=torch.tensor([len(own)], dtype=torch.int32, device=device),
            max_query=len(own),
            decode_only=False,
        )
        found.append(torch.log_softmax(model.logits(own, step, pool.layers, rows).float(), -1).cpu())
    return torch.cat(found)


def losses(logprob: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Of every token but the first of its window."""
    followers = torch.tensor([*tokens[1:], 0]).unsqueeze(1)
    own = -logprob.gather(1, followers).squeeze(1)
    last = torch.arange(len(tokens)) % WINDOW == WINDOW - 1
    last[-1] = True
    return own[~last]


def compare(base: torch.Tensor, other: torch.Tensor, tokens: list[int]) -> dict[str, float]:
    difference = losses(other, tokens) - losses(base, tokens)
    return {
        "perplexity": math.exp(losses(other, tokens).mean()),
        "increase": math.exp(difference.mean()) - 1,
        "increase_error": float(difference.std()) / math.sqrt(len(difference)),
        "greedy_agreement": float((base.argmax(-1) == other.argmax(-1)).float().mean()),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    backend, tokenizer = open_backend(options, "none")
    if tokenizer is None:
        raise SystemExit("this model has no tokenizer")
    text = read_text(options)
    tokens = list(tokenizer.encode(text, False))[: options.tokens]
    base = logprobs(backend.model, tokens, None)
    scales = measure_scales(backend.model, window=WINDOW)
    found: dict[str, Any] = {
        "model": options.model.name,
        "text": options.text.name,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
        "tokens": len(tokens),
        "torch": torch.__version__,
        "device": str(backend.model.place.device),
        "perplexity": math.exp(losses(base, tokens).mean()),
        "fp8 kv": compare(base, logprobs(backend.model, tokens, scales), tokens),
    }
    backend.close()
    small, _ = open_backend(options, "fp8")
    found["fp8 weights"] = compare(base, logprobs(small.model, tokens, None), tokens)
    scales = measure_scales(small.model, window=WINDOW)
    found["fp8 weights and kv"] = compare(base, logprobs(small.model, tokens, scales), tokens)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=ROOT / "README.md")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    parts = {name: part for name, part in found.items() if name.startswith("fp8")}
    found["missed"] = [name for name, part in parts.items() if not part["increase"] <= BAR]
    print(json.dumps(found, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name in found["missed"]:
        print(f"missed: {name} {parts[name]['increase']:+.2%}, the bar is {BAR:+.0%}", file=sys.stderr)
    return 1 if options.check and found["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
