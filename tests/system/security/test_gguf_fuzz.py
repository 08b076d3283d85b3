"""Damaged GGUFs: the checker raises a typed error or accepts, and no file crashes the caller.

The checker reads 500 of them. llama.cpp reads those that it accepts, each in a process of its own, which
takes most of the time: 100 in `make test`, all 500 in `make prove`.
"""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from stretto.errors import StrettoError
from stretto.model_files import gguf, kind, probe
from stretto.testing import tiny_models

COUNT = 500
LOADED = COUNT if os.environ.get("STRETTO_PROVE") == "1" else 100
EXTREMES = (0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def mutate(data: bytes, header: int, rng: random.Random) -> bytes:
    """One to four mutations, most of them in the header."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(min(header, len(changed))) if rng.random() < 0.9 else rng.randrange(len(changed))
        match rng.randrange(8):
            case 0 | 1:
                changed[at] ^= 1 << rng.randrange(8)
            case 2 | 3:
                size, letter = rng.choice(((4, "<I"), (8, "<Q")))
                value = rng.choice(EXTREMES) & (2 ** (8 * size) - 1)
                changed[at : at + size] = struct.pack(letter, value)
            case 4:
                changed[at] = rng.randrange(256)
            case 5:
                del changed[at : at + rng.randrange(1, 9)]
            case 6:
                changed[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                del changed[rng.randrange(len(changed)) :]
        if not changed:
            return b""
    return bytes(changed)


def damage_keys(data: bytes, header: int, rng: random.Random) -> bytes:
    """Change only the value of a number in the header, to pass all structural checks."""
    changed = bytearray(data)
    names = [b"_length", b"_count", b"head_count_kv", b"_type", b"_id", b"epsilon"]
    name = rng.choice(names)
    places = [at for at in range(header) if changed.startswith(name, at)]
    if places:
        at = rng.choice(places) + len(name) + 4
        changed[at : at + 4] = struct.pack("<I", rng.choice(EXTREMES) & 0xFFFFFFFF)
    return bytes(changed)


def mutants(source: Path, count: int, seed: int) -> Iterator[bytes]:
    """Yields one mutant at a time: 500 copies of a model do not fit in memory."""
    data = source.read_bytes()
    header = gguf.read(source).data_start
    rng = random.Random(seed)
    for number in range(count):
        yield (mutate if number % 3 else damage_keys)(data, header, rng)


def accepted(path: Path) -> bool:
    answer = None
    try:
        kind.shape_of(gguf.read(path))
    except StrettoError as error:
        answer = error
    assert answer is None or (answer.hint and "\n" not in answer.message)
    return answer is None


@pytest.mark.parametrize("model", ["embedding", "reranker"])
def test_the_checker_accepts_or_rejects_every_mutant(tmp_path, model):
    path = tmp_path / "mutant.gguf"
    answers = Counter()
    for data in mutants(tiny_models.make(model), COUNT, seed=1):
        path.write_bytes(data)
        answers[accepted(path)] += 1
    assert answers[True] > 20
    assert answers[False] > 100


def try_all(path: Path, files: Iterable[bytes]) -> Counter[str]:
    """Write each mutant and try to load it; this process must survive."""
    answers: Counter[str] = Counter()
    for data in files:
        path.write_bytes(data)
        if not accepted(path):
            answers["refused by the checker"] += 1
            continue
        verdict = probe.probe(path, cache_dir=None, timeout_s=60)
        crashed = "crashed" in verdict.reason
        answers["loads" if verdict.loads else "crashed the child" if crashed else "refused by llama.cpp"] += 1
    return answers


def test_a_sample_of_mutants_never_crashes_the_caller(tmp_path):
    path = tmp_path / "mutant.gguf"
    sample = []
    for data in mutants(tiny_models.make("embedding"), COUNT, seed=2):
        path.write_bytes(data)
        if accepted(path):
            sample.append(data)
    answers = try_all(path, sample[:20])
    assert sum(answers.values()) == 20


@pytest.mark.slow
@pytest.mark.parametrize("model", ["embedding", "dense"])
def test_mutants_never_crash_the_caller(tmp_path, model, record_property):
    answers = try_all(tmp_path / "mutant.gguf", mutants(tiny_models.make(model), LOADED, seed=3))
    for what, count in answers.items():
        record_property(what, count)
    print(dict(answers))
    assert sum(answers.values()) == LOADED
    assert answers["refused by the checker"] > LOADED // 5
