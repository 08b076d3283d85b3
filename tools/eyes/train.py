"""Trains the model that sees on generated pictures; minutes on one GPU.

    python -m tools.eyes.train --out DIRECTORY [--seconds 210] [--start WEIGHTS.npz] [--small]

Stops by itself after `--seconds`; the learning rate follows the clock. Prints loss and accuracy on held-out
pictures and keeps the best weights so far in `eyes.npz` (16-bit floats, `sizes` as JSON). An answer counts as
right if every token of it has the highest logit, which is what greedy decoding would say.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tools.eyes import dataset, drawing, scenes
from tools.eyes.model import SMALL, Eyes, Sizes

SEED = 7
CHUNK = 2000  # conversations that a process makes at a time
PATCH_LOSS = 0.5  # weight of naming what each patch shows
WARM_UP = 0.04  # of the time


@dataclass(frozen=True, slots=True)
class Options:
    out: Path
    seconds: float
    batch: int
    conversations: int
    rate: float
    held_out: int
    start: Path | None
    small: bool


@dataclass(frozen=True, slots=True)
class Batch:
    tokens: Tensor
    answers: Tensor
    pictures: Tensor  # of the conversations that have one
    shown: Tensor


class Source:
    """Examples on the device; batches of them, with the pictures drawn there."""

    def __init__(self, examples: dataset.Examples, device: torch.device, seed: int) -> None:
        self.count = len(examples)
        self.device = device
        self._tokens = torch.from_numpy(examples.tokens).to(device)
        self._answers = torch.from_numpy(examples.answers).to(device)
        self._has_picture = torch.from_numpy(examples.has_picture).to(device)
        self._things = torch.from_numpy(examples.things).to(device)
        self._backgrounds = torch.from_numpy(examples.backgrounds).to(device)
        self._glyphs = torch.from_numpy(drawing.GLYPHS).to(device)
        self._random = torch.Generator(device).manual_seed(seed)

    def batch(self, numbers: Tensor) -> Batch:
        seen = numbers[self._has_picture[numbers]]
        shape = (len(seen), scenes.SIZE, scenes.SIZE, 3)
        noise = torch.randn(shape, generator=self._random, device=self.device)
        pictures, shown = drawing.draw(
            torch, self._things[seen], self._backgrounds[seen], noise, self._glyphs
        )
        return Batch(self._tokens[numbers].long(), self._answers[numbers], pictures, shown.long())

    def forever(self, size: int) -> Iterator[Batch]:
        while True:
            order = torch.randperm(self.count, generator=self._random, device=self.device)
            for begin in range(0, self.count - size + 1, size):
                yield self.batch(order[begin : begin + size])


def make_examples(count: int) -> dataset.Examples:
    """In as many processes as there are processors."""
    ranges = [(SEED, range(begin, min(count, begin + CHUNK))) for begin in range(0, count, CHUNK)]
    context = multiprocessing.get_context("fork")
    with context.Pool(os.cpu_count()) as pool:
        parts = pool.starmap(dataset.examples, ranges)
    names = ("tokens", "answers", "has_picture", "things", "backgrounds")
    return dataset.Examples(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def losses(model: Eyes, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of the answers, and of naming what the patches show."""
    features = model.tower.features(batch.pictures)
    logits = model(batch.tokens[:, :-1], model.tower.rows(features))
    counted = batch.answers[:, 1:]
    answers = functional.cross_entropy(logits[counted].float(), batch.tokens[:, 1:][counted])
    shown = batch.shown.flatten(0, 2)
    kinds = functional.cross_entropy(model.patch_kind(features).flatten(0, 1).float(), shown[:, 0])
    colours = functional.cross_entropy(model.patch_colour(features).flatten(0, 1).float(), shown[:, 1])
    return answers, kinds + colours


@torch.no_grad()
def right(model: Eyes, source: Source, size: int) -> Tensor:
    """For each held-out picture, whether its answer is right."""
    found = []
    numbers = torch.arange(source.count, device=source.device)
    for begin in range(0, source.count, size):
        batch = source.batch(numbers[begin : begin + size])
        logits = model(batch.tokens[:, :-1], model.tower.rows(model.tower.features(batch.pictures)))
        good = (logits.argmax(-1) == batch.tokens[:, 1:]) | ~batch.answers[:, 1:]
        found.append(good.all(1))
    return torch.cat(found).cpu()


def by_topic(good: Tensor) -> str:
    counts: dict[str, list[bool]] = {}
    for (_, question), one in zip(dataset.held_out(len(good)), good.tolist(), strict=True):
        counts.setdefault(question.topic, []).append(one)
    return ", ".join(f"{topic} {sum(ones)}/{len(ones)}" for topic, ones in sorted(counts.items()))


def save(model: Eyes, path: Path) -> None:
    arrays = {
        name: value.detach().float().cpu().numpy().astype(np.float16)
        for name, value in model.state_dict().items()
        if not name.startswith("patch_")
    }
    part = path.with_suffix(".part.npz")
    np.savez(part, sizes=np.array(json.dumps(asdict(model.sizes))), **arrays)
    part.replace(path)


def load(path: Path) -> Eyes:
    """A model with saved weights; the heads that only training uses are new."""
    with np.load(path) as stored:
        model = Eyes(Sizes(**json.loads(str(stored["sizes"]))))
        arrays = {name: torch.from_numpy(stored[name]).float() for name in stored.files if name != "sizes"}
    model.load_state_dict(arrays, strict=False)
    return model


def optimizer_for(model: Eyes, rate: float, *, fused: bool) -> torch.optim.AdamW:
    matrices = [value for value in model.parameters() if value.ndim >= 2]
    others = [value for value in model.parameters() if value.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=fused)


def scheduled(rate: float, share: float) -> float:
    """The learning rate after this share of the time: a linear rise, then half a cosine."""
    if share < WARM_UP:
        return rate * share / WARM_UP
    return rate * (0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, (share - WARM_UP) / (1 - WARM_UP)))))


class Watch:
    """Says now and then how good the model is, and keeps the best."""

    def __init__(self, options: Options, source: Source, begun_s: float) -> None:
        self._options, self._source, self._begun_s = options, source, begun_s
        self.best, self._next_s = -1.0, begun_s

    def look(self, model: Eyes, step: int, loss: Tensor, patches: Tensor, *, last: bool = False) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s and not last:
            return
        self._next_s = now_s + max(2.0, self._options.seconds / 14)
        model.eval()
        with _autocast(self._source.device):
            good = right(model, self._source, self._options.batch)
        model.train()
        accuracy = good.float().mean().item()
        if accuracy > self.best:
            self.best = accuracy
            save(model, self._options.out / "eyes.npz")
        parts = f"loss {loss.item():.4f}  patches {patches.item():.4f}  right {accuracy:.4f}"
        print(f"{now_s - self._begun_s:6.1f} s  step {step:5d}  {parts}  best {self.best:.4f}", flush=True)
        if last:
            print(by_topic(good), flush=True)


def _autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def train(options: Options) -> float:
    """The accuracy of the best weights, which are then in the output directory."""
    begun_s = time.monotonic()
    torch.manual_seed(SEED)
    torch.set_float32_matmul_precision("high")
    examples = make_examples(options.conversations)  # in forked processes, so before CUDA is used
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source = Source(examples, device, SEED)
    held_out = Source(dataset.held_out_examples(options.held_out), device, SEED + 1)
    model = (load(options.start) if options.start else Eyes(SMALL if options.small else Sizes())).to(device)
    sizes = [sum(p.numel() for p in part.parameters()) for part in (model, model.tower)]
    print(
        f"{time.monotonic() - begun_s:6.1f} s  {len(examples)} conversations, parameters {sizes}", flush=True
    )
    optimizer = optimizer_for(model, options.rate, fused=device.type == "cuda")
    options.out.mkdir(parents=True, exist_ok=True)
    watch = Watch(options, held_out, begun_s)
    trained_from_s = time.monotonic()
    end_s = begun_s + options.seconds
    for step, batch in enumerate(source.forever(options.batch), 1):
        share = (time.monotonic() - trained_from_s) / (end_s - trained_from_s)
        for group in optimizer.param_groups:
            group["lr"] = scheduled(options.rate, share)
        with _autocast(device):
            loss, patches = losses(model, batch)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss + PATCH_LOSS * patches)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        watch.look(model, step, loss, patches, last=share >= 1)
        if share >= 1:
            break
    return watch.best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=210)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--conversations", type=int, default=300_000)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--held-out", type=int, default=1024)
    parser.add_argument("--start", type=Path, help="weights to continue from")
    parser.add_argument(
        "--small", action="store_true", help="a much smaller model, to try the script on a CPU"
    )
    given = parser.parse_args()
    best = train(Options(**vars(given)))
    print(f"right {best:.4f} of {given.held_out} held-out pictures; weights in {given.out / 'eyes.npz'}")


if __name__ == "__main__":
    main()
