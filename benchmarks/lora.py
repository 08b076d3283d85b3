"""Measures adapters (LoRA): the same texts as alone, first tokens of a group, throughput of four adapters.

    python benchmarks/lora.py [--json FILE] [--check] [--quick] [--device cuda]

Adapters and weights are random. llama.cpp (SmolLM2): 8 requests on 4 adapters against each alone, and the
wait for the first token of a request whose group is new, while six streams of three groups run, against the
length of a rotation. torch (random weights, on a CPU a small model as a diagnosis): the same texts, and
tokens per second of 16 requests on four adapters against all on one, in alternating rounds. `--check` exits 1
if a text differs, a first token waits longer than two rotations, or four adapters reach less than 0.8 of one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stretto.backends.adapters import AdapterLease, AdapterSource, AdapterStore
from stretto.backends.base import Backend, complete
from stretto.core.limits import Limits
from stretto.core.request import AdapterGroup, Request, SamplingParams
from stretto.core.scheduler import Scheduler
from stretto.core.tick import Events, Idle, Tick
from stretto.loadgen.conditions import cpu_name
from stretto.testing.tiny_adapters import gguf_adapter, peft_adapter

NAMES = ("one", "two", "three", "four")
ROTATIONS_MAX, THROUGHPUT_MIN = 2.0, 0.8
PROMPT_TOKENS = 24
_numbers = itertools.count(1)


class Loop:
    """A scheduler over a backend; remembers when each request had its first token."""

    def __init__(self, backend: Backend, store: AdapterStore[Any]) -> None:
        can = backend.capabilities
        limits = Limits(n_seq_max=can.sequences_max, n_batch=can.rows_max, cache="none")
        self.backend, self.store = backend, store
        self.scheduler = Scheduler(limits, can)
        self.texts: dict[str, list[int]] = {}
        self.first_s: dict[str, float] = {}
        self.groups: list[tuple[float, AdapterGroup]] = []  # start of each tick with rows
        self._leases: dict[str, AdapterLease] = {}
        self._flying: list[Tick] = []

    def submit(self, number: int, adapter: str, tokens: int) -> str:
        """`number` chooses the prompt."""
        name = f"r{next(_numbers)}"
        prompt = array(
            "i", [100 + (number * 7919 + at * 104729 + at * at * 31) % 300 for at in range(PROMPT_TOKENS)]
        )
        group = self.store.group([(adapter, None)])
        self._leases[name] = self.store.lease(group)
        self._leases[name].wait()
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        answer = self.scheduler.submit(Request(name, prompt, params, adapters=group), time.perf_counter())
        assert answer.accepted, answer.error
        self.texts[name] = []
        return name

    def step(self) -> None:
        planned = self.scheduler.plan(time.perf_counter())
        if isinstance(planned, Tick):
            if planned.rows:
                self.groups.append((time.perf_counter(), planned.adapters))
            self.backend.launch(planned)
            self._flying.append(planned)
        if self._flying and (
            isinstance(planned, Idle) or len(self._flying) > self.backend.capabilities.plan_ahead
        ):
            outcome = complete(self.backend, self._flying.pop(0))
            self._take(self.scheduler.commit(outcome, time.perf_counter()))
        else:
            self._take(self.scheduler.take_events())

    def run(self) -> None:
        while self.scheduler.state.jobs or self._flying:
            self.step()

    def _take(self, events: Events) -> None:
        at = 0
        for name, count in zip(events.requests, events.counts, strict=True):
            self.texts[name].extend(events.tokens[at : at + count])
            self.first_s.setdefault(name, time.perf_counter())
            at += count
        for end in events.ends:
            self._leases.pop(end.request_id).release()


def same_texts(loop: Loop, tokens: int) -> bool:
    """8 requests on 4 adapters together, then each alone."""
    together = [loop.submit(number, NAMES[number % 4], tokens) for number in range(8)]
    loop.run()
    for number, name in enumerate(together):
        alone = loop.submit(number, NAMES[number % 4], tokens)
        loop.run()
        if loop.texts[alone] != loop.texts[name]:
            return False
    return True


def first_token(loop: Loop, rounds: int) -> dict[str, float]:
    """The wait of a newcomer of a fourth group, in rotations; the worst of all rounds."""
    waits = []
    for at in range(rounds):
        running = [loop.submit(n, NAMES[(at + n % 3) % 4], 400) for n in range(6)]
        while any(len(loop.texts[name]) < 16 for name in running):
            loop.step()
        loop.groups.clear()
        for _ in range(60):
            loop.step()
        rotation_s = _rotation_s(loop.groups)
        asked_s = time.perf_counter()
        new = loop.submit(50 + at, NAMES[(at + 3) % 4], 4)
        while new not in loop.first_s:
            loop.step()
        waits.append({"rotation_s": rotation_s, "wait_s": loop.first_s[new] - asked_s})
        for name in running:
            loop.scheduler.cancel(name)
        loop.run()
    worst = max(waits, key=lambda each: each["wait_s"] / each["rotation_s"])
    return {
        **{key: round(value, 4) for key, value in worst.items()},
        "rotations": round(worst["wait_s"] / worst["rotation_s"], 2),
        "change_s": round(loop.scheduler.state.cost.change_s, 5),
    }


def _rotation_s(ticks: Sequence[tuple[float, AdapterGroup]]) -> float:
    """The median time from the start of a group's turn to the start of its next."""
    starts: dict[AdapterGroup, list[float]] = {}
    for (_, before), (at_s, group) in itertools.pairwise(ticks):
        if group != before:
            starts.setdefault(group, []).append(at_s)
    return statistics.median(b - a for own in starts.values() for a, b in itertools.pairwise(own))


def throughput(loop: Loop, rounds: int, tokens: int) -> dict[str, Any]:
    """Tokens per second of 16 requests: on one adapter, and on four; the median ratio of rounds in pairs."""
    ratios, rates = [], {"one": 0.0, "four": 0.0}
    for at in range(rounds + 1):
        for kind in ("one", "four") if at % 2 else ("four", "one"):
            began_s = time.perf_counter()
            for number in range(16):
                loop.submit(number, NAMES[number % 4 if kind == "four" else 0], tokens)
            loop.run()
            rates[kind] = 16 * tokens / (time.perf_counter() - began_s)
        if at:  # the first round loads the adapters
            ratios.append(rates["four"] / rates["one"])
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "tokens_per_s": {kind: round(rate, 1) for kind, rate in rates.items()},
    }


def on_llamacpp(folder: Path, *, quick: bool) -> dict[str, Any]:
    from stretto.backends.llamacpp import ContextOptions, LlamaCppBackend
    from stretto.settings.places import cache_home
    from stretto.worker.model_paths import find

    home = cache_home()
    model = find("", home)
    sources = {
        name: AdapterSource(gguf_adapter(model, folder / f"{name}.gguf", seed=at, rank=8, strength=2.0))
        for at, name in enumerate(NAMES)
    }
    options = ContextOptions(n_seq_max=8, context_window=1024)
    backend = LlamaCppBackend.open(model, cache_dir=home, context_options=options, adapters=sources)
    assert backend.adapters is not None
    loop = Loop(backend, backend.adapters.store)
    try:
        return {
            "same_texts": same_texts(loop, 16 if quick else 48),
            "first_token": first_token(loop, 2 if quick else 5),
        }
    finally:
        backend.close()


def on_torch(folder: Path, device: str, *, quick: bool) -> dict[str, Any]:
    from stretto.backends.torch.config import TransformerShape
    from stretto.backends.torch.loading import TorchOptions, open_model

    sizes = (4096, 32, 32, 8, 128, 14336) if device != "cpu" else (256, 4, 8, 4, 32, 768)
    hidden, layers, heads, kv_heads, dim, inner = sizes
    shape = TransformerShape(
        family="llama", vocab=8192, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads,
        head_dim=dim, inner=inner, norm_eps=1e-5,
    )  # fmt: skip
    widths = {
        "q_proj": (heads * dim, hidden),
        "v_proj": (kv_heads * dim, hidden),
        "o_proj": (hidden, heads * dim),
    }
    modules = {
        f"model.layers.{layer}.self_attn.{name}": width
        for layer in range(layers)
        for name, width in widths.items()
    }
    sources = {
        name: AdapterSource(peft_adapter(folder / name, modules, seed=at, rank=16))
        for at, name in enumerate(NAMES)
    }
    options = TorchOptions(slots=16, window=512, device=device, load_format="dummy", adapters=sources)
    backend = open_model(shape, options).backend
    assert backend.adapters is not None
    loop = Loop(backend, backend.adapters.store)
    try:
        return {
            "device": device,
            "hidden": hidden,
            "layers": layers,
            "same_texts": same_texts(loop, 16 if quick else 48),
            "throughput": throughput(loop, 2 if quick else 6, 32 if quick else 96),
        }
    finally:
        backend.close()


def missed(report: dict[str, Any]) -> list[str]:
    found = [f"{name}: a text differs" for name in ("llamacpp", "torch") if not report[name]["same_texts"]]
    if (waited := report["llamacpp"]["first_token"]["rotations"]) > ROTATIONS_MAX:
        found.append(f"a first token waits {waited} rotations")
    if (ratio := report["torch"]["throughput"]["ratio"]) < THROUGHPUT_MIN:
        found.append(f"four adapters reach {ratio} of one")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer rounds of shorter answers")
    parser.add_argument("--device", default="cpu", help="of the torch backend")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        report = {
            "cpu": cpu_name(),
            "llamacpp": on_llamacpp(Path(place), quick=options.quick),
            "torch": on_torch(Path(place), options.device, quick=options.quick),
        }
    print(json.dumps(report, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    bars = missed(report)
    for bar in bars:
        print(f"missed: {bar}", file=sys.stderr)
    return int(options.check and bool(bars))


if __name__ == "__main__":
    sys.exit(main())
