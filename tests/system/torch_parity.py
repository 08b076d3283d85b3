"""Greedy text of the torch backend against a plain llama.cpp loop, from the same F16 GGUF file of SmolLM2.

    python -m tests.system.torch_parity [--prompts 20] [--json FILE] [--check]

At least 18 of 20 prompts must be identical to the end; where a text differs, the reference logit of our token
must be within 0.05 of the maximum.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from array import array
from pathlib import Path

import torch

from benchmarks.gpu.offline import OfflineLoop
from stretto.backends.torch.loading import Opened, TorchOptions, open_model
from stretto.core.request import Request, SamplingParams
from stretto.model_files import bundled
from stretto.model_files.quantize import quantize
from stretto.settings.places import cache_home
from stretto.text.templates import ChatTemplate
from stretto.text.tokenizer import encode_prompt
from tests.system.parity import Tally, compare, conversations
from tests.system.plain_loop import PlainLoop

IDENTICAL_MIN = 0.9
OUTPUT = 24


def f16_file(directory: Path) -> Path:
    """SmolLM2 with F16 weights, converted once."""
    target = directory / "default" / f"{bundled.NAME}.F16.{bundled.SHA256[:12]}.gguf"
    return target if target.is_file() else quantize(bundled.source(), target, "F16", threads=1)


def prompts(opened: Opened, count: int) -> list[array[int]]:
    assert opened.tokenizer is not None
    assert opened.template is not None
    template = ChatTemplate(opened.template, bos="<|im_start|>", eos="<|im_end|>")
    return [
        encode_prompt(template.render(messages), opened.tokenizer).tokens for messages in conversations(count)
    ]


def run(count: int, path: Path, *, threads: int = 1, output: int = OUTPUT) -> Tally:
    opened = open_model(path, TorchOptions(slots=8, window=512, rows_max=512, device="cpu", threads=threads))
    asked = prompts(opened, count)
    assert opened.tokenizer is not None
    params = SamplingParams(max_tokens=output, temperature=0.0, stop_token_ids=opened.tokenizer.eos)
    started = time.monotonic()
    requests = [Request(f"p{number}", tokens, params) for number, tokens in enumerate(asked)]
    texts = OfflineLoop(opened.backend, prefill_chunk=128).run(requests).outputs
    tally = Tally("torch, 8 slots", seconds=time.monotonic() - started)
    loop = PlainLoop(str(path), special_buffers=False, window=512, threads=threads)
    for number, tokens in enumerate(asked):
        compare(tally, loop, list(tokens), loop.greedy(list(tokens), output), texts[f"p{number}"])
    loop.close()
    opened.backend.close()
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    tally = run(options.prompts, f16_file(cache_home()), threads=options.threads)
    held = options.prompts > 0 and not tally.wrong and tally.identical >= IDENTICAL_MIN * options.prompts
    result = {
        "identical": tally.identical,
        "tolerated": tally.tolerated,
        "wrong": tally.wrong,
        "of": options.prompts,
        "seconds": round(tally.seconds, 1),
        "held": held,
    }
    print(json.dumps(result))
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0 if held or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
