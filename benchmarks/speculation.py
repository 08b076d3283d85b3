"""Measures speculation: the same texts and samples, faster or not slower than without, and than llama-server.

    python benchmarks/speculation.py [--json FILE] [--check] [--quick] [--parts exact speed peer lora pair …]

- exact: greedy texts over prompts × drafters × slots × cache policies; samples with and without drafts.
- speed: SmolLM2 through the SDK with and without lookup drafts, in turns of a tenth of a second: code edits,
  summaries and chat for 1 to 8 users in a closed loop.
- peer: the server beside llama-server, both with lookup drafts (`--peer` is its binary).
- lora: `lora.py`.
- pair: a target with a draft model of its family (`--target`, `--draft`; `pair.py` fetches one), and lookup;
  code edits are of real code, one user gets whole ones, `--answers` in each round.
- pair-peer: the pair beside llama-server, both with the draft model.

`--check` exits 1 if a text or a distribution differs, if a case is slower than 0.98 times plain decoding,
code edits of one user less than 1.6 times as fast, the pair less than 1.3 times, or llama-server faster.
Windows differ by several percent: a case that misses its bar gets twice as many rounds again, and all
count. The windows of `--quick` are too short for that: there a case is slower if every one is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.drafting import parity, peer, sampled
from benchmarks.drafting.prompts import KINDS
from benchmarks.drafting.same_work import ratios_of
from benchmarks.drafting.users import Load, Turn, Window, answer, watch
from stretto import LLM
from stretto.backends.llamacpp.native.cpu_limits import cores
from stretto.core.limits import CACHE_POLICIES
from stretto.loadgen.conditions import cpu_name
from stretto.model_files.store import Store
from stretto.settings.places import cache_home

USERS = (1, 2, 4, 8)
QUICK = [("edit", 1), ("summary", 4), ("chat", 8)]
QUICK_TOKENS = {("edit", 1): 160}  # long enough for the bar of code edits
QUICK_LONGER = 2.0  # … and so is their window
PARTS = ("exact", "speed", "peer", "lora")
PAIR_PARTS = ("pair", "pair-peer")
SLOWEST, EDIT_MIN, PAIR_MIN, PEER_MIN = 0.98, 1.6, 1.3, 1.0
PEER_BINARY = Path("build/peers/llama-server")
STRIDE = 60  # prompts of a round, at most
REPEATED = 3  # times as many rounds, where a case misses its bar
SAME: dict[str, Any] = {"kernels": "own", "n_threads": cores()}  # not measured at load, for each model
WARM_UP_TOKENS = 32  # of an answer of the pair
_numbers = itertools.count(1)


def speed(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    common: dict[str, Any] = {"n_seq_max": 8, "context_window": 1024, **SAME}
    with LLM(**common) as plain, LLM(**common, speculation="ngram") as drafting:
        return {
            f"{kind}, {users} users": compared(
                plain, drafting, kind, users, wanted(kind, users, EDIT_MIN), options
            )
            for kind, users in options.cases
        }


def compared(
    plain: LLM, drafting: LLM, kind: str, users: int, bar: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Ratios above 1: speculation is faster."""
    models = {"off": plain, "on": drafting}
    rounds = _rounds(models, kind, users, options, options.rounds)
    if not options.quick and ratios_of(rounds)[0] < bar:
        rounds += _rounds(models, kind, users, options, options.rounds * (REPEATED - 1))
    ratio, *ratios = ratios_of(rounds)
    return {
        "ratio": round(ratio, 3),
        "bar": bar,
        "rounds": len(ratios),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "tokens_per_s": {name: round(_rate(rounds, name), 1) for name in models},
        "accepted": sum(windows["on"].accepted for windows in rounds),
        "proposed": sum(windows["on"].proposed for windows in rounds),
        "same_texts": all(_same_texts(windows["on"], windows["off"]) for windows in rounds),
    }


def _rounds(
    models: dict[str, LLM], kind: str, users: int, options: argparse.Namespace, rounds: int
) -> list[dict[str, Window]]:
    """Windows of a closed loop, or whole answers where a text begins with other drafts than it ends with."""
    load = Load(kind, users, _tokens(options, kind, users), next(_numbers) * STRIDE, tuning=options.tuning)
    if load.kind == "rewrite" and load.users == 1:
        return _answers(models, load, options.answers, rounds)
    long = QUICK_LONGER if options.quick and (kind, users) in QUICK_TOKENS else 1.0
    return watch(models, load, windows=[long * options.seconds] * rounds, warm_up=options.warm_up)


def _answers(models: dict[str, LLM], load: Load, answers: int, rounds: int) -> list[dict[str, Window]]:
    for model in models.values():
        answer(model, load._replace(tokens=WARM_UP_TOKENS), answers=1)
    found, names = list[dict[str, Window]](), list(models)
    for number in range(rounds):
        asked = load._replace(first=load.first + 1 + number * answers)
        found.append({name: answer(models[name], asked, answers=answers) for name in names})
        names.reverse()
    return found


def _rate(rounds: list[dict[str, Window]], name: str) -> float:
    turns = _turns(rounds, name)
    return sum(turn.tokens for turn in turns) / sum(turn.seconds for turn in turns)


def _turns(rounds: list[dict[str, Window]], name: str) -> list[Turn]:
    return [turn for windows in rounds for turn in windows[name].turns]


def _same_texts(one: Window, other: Window) -> bool:
    return all(one.texts[number] == other.texts[number] for number in one.texts.keys() & other.texts.keys())


def _tokens(options: argparse.Namespace, kind: str, users: int) -> int:
    """Of an answer: a user whose answers are short waits for prompts, with drafts and without."""
    return options.tokens or (QUICK_TOKENS.get((kind, users), 80) if options.quick else 128)


def exact(options: argparse.Namespace) -> dict[str, Any]:
    model = Store(cache_home()).ensure_default()
    sizes: dict[str, Any] = (
        {"prompts": 4, "slots": (4,), "policies": ("prefix",), "tokens": 16}
        if options.quick
        else {"prompts": 50, "slots": options.slots, "policies": options.policies, "tokens": 24}
    )
    sizes["drafters"] = options.drafters
    samples = options.samples or (4_000 if options.quick else 1_000_000)
    return {
        "texts": parity.compared(model, **sizes),
        "samples": {case: sampled.compared(case, samples)._asdict() for case in sampled.CASES},
    }


def pair(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The draft model, and lookup where a long match is found: what a user of both would set.

    Texts of several users are not compared: llama.cpp's kernels for K-quants round by the number of rows, so
    that a text depends on how many requests run beside it, without any draft.
    """
    slots = max(users for _, users in options.cases)
    common: dict[str, Any] = {"n_seq_max": slots, "context_window": 1024, **SAME}
    common["model"] = str(options.target)
    drafts: dict[str, Any] = {"draft_model": str(options.draft), "speculation": options.pair_lookup}
    with LLM(**common) as plain, LLM(**common, **drafts) as drafting:
        found = {}
        for kind, users in options.cases:
            bar = wanted(kind, users, PAIR_MIN)
            case = compared(plain, drafting, "rewrite" if kind == "edit" else kind, users, bar, options)
            unknown = {"same_texts": None} if users > 1 else {}
            found[f"{kind}, {users} users, pair"] = {**case, **unknown}
        return found


def lora(options: argparse.Namespace) -> dict[str, Any]:
    script = Path(__file__).with_name("lora.py")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "lora.json"
        command = [sys.executable, str(script), "--check", "--json", str(report)]
        done = subprocess.run([*command, *(["--quick"] if options.quick else [])], check=False)
        return {"passed": done.returncode == 0, **json.loads(report.read_text())}


def wanted(kind: str, users: int, edit_alone: float) -> float:
    """The bar of a case, if that of one user's edits is `edit_alone`."""
    return edit_alone if (kind, users) == ("edit", 1) else SLOWEST


def missed(report: dict[str, Any]) -> list[str]:
    """Every bar that was not reached, in words."""
    found = []
    for name, case in {**report.get("speed", {}), **report.get("pair", {})}.items():
        if (case["spread"][1] if report["quick"] else case["ratio"]) < case["bar"]:
            found.append(f"{name}: {case['ratio']} × plain decoding, at least {case['bar']} wanted")
        if case["same_texts"] is False:
            found.append(f"{name}: speculation changed a text")
    for part in ("peer", "pair-peer"):
        for name, case in report.get(part, {}).items():
            if case["ratio"] < PEER_MIN:
                found.append(f"{part}, {name}: {case['ratio']} × llama-server")
    for name, cell in report.get("exact", {}).get("texts", {}).items():
        if cell["differ"] or not cell["proposed"]:
            found.append(f"{name}: {cell['differ']} texts differ, {cell['proposed']} drafts were verified")
    for name, case in report.get("exact", {}).get("samples", {}).items():
        if not sampled.Comparison(**case).ok:
            found.append(f"samples, {name}: {case}")
    if not report.get("lora", {"passed": True})["passed"]:
        found.append("lora.py missed a bar")
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--quick", action="store_true", help="under three minutes: fewer cases and windows")
    parser.add_argument("--parts", nargs="+", choices=(*PARTS, *PAIR_PARTS), default=PARTS)
    parser.add_argument("--users", type=int, nargs="+")
    parser.add_argument("--slots", type=int, nargs="+", default=(1, 4, 16), help="exact: of the full matrix")
    parser.add_argument(
        "--drafters", nargs="+", choices=parity.DRAFTERS, default=parity.DRAFTERS, help="exact: likewise"
    )
    parser.add_argument(
        "--policies", nargs="+", choices=CACHE_POLICIES, default=CACHE_POLICIES, help="exact: likewise"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS)
    parser.add_argument("--tuning", action="store_true", help="other prompts, of which no figure is reported")
    parser.add_argument("--tokens", type=int, help="of an answer, on average")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of a window")
    parser.add_argument("--answers", type=int, default=3, help="pair: of one user, in a round")
    parser.add_argument("--warm-up", type=float, default=0.5, help="seconds")
    parser.add_argument("--samples", type=int, help="of each way of sampling")
    parser.add_argument("--peer", type=Path, default=PEER_BINARY)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument(
        "--pair-lookup", choices=("off", "ngram"), default="ngram", help="beside the draft model"
    )
    options = parser.parse_args()
    quick = options.quick and not (options.users or options.kinds)
    options.users, options.kinds = options.users or USERS, options.kinds or KINDS
    options.cases = QUICK if quick else list(itertools.product(options.kinds, options.users))
    options.peer_rounds = options.rounds or (1 if options.quick else 3)
    options.rounds = options.rounds or (2 if options.quick else 4)
    options.seconds = options.seconds or (2.0 if options.quick else _window_s(options.parts))
    if set(PAIR_PARTS) & set(options.parts) and not (options.target and options.draft):
        parser.error("a pair needs --target and --draft")
    return options


def _window_s(parts: Sequence[str]) -> float:
    """A pair has eight tokens a second, and prompts of seconds."""
    return 15.0 if "pair" in parts else 5.0


def main() -> int:
    options = parsed()
    report: dict[str, Any] = {
        "cpu": cpu_name(),
        "quick": options.quick,
        "tokens": options.tokens or "by case",
        "rounds": options.rounds,
        "seconds": options.seconds,
    }
    began_s = time.perf_counter()
    if "exact" in options.parts:
        report["exact"] = exact(options)
    if "speed" in options.parts:
        report["speed"] = speed(options)
    if "peer" in options.parts and options.peer.exists():
        model = Store(cache_home()).ensure_default()
        report["peer"] = peer.compared(
            options.peer,
            model,
            options.cases,
            rounds=options.peer_rounds,
            tokens=options.tokens or (40 if options.quick else 128),
        )
    if "lora" in options.parts:
        report["lora"] = lora(options)
    if "pair" in options.parts:
        report["pair"] = pair(options)
    if "pair-peer" in options.parts and options.peer.exists():
        report["pair-peer"] = peer.compared(
            options.peer,
            options.target,
            [("rewrite" if kind == "edit" else kind, users) for kind, users in options.cases],
            rounds=options.peer_rounds,
            tokens=options.tokens or 64,
            flags=peer.with_draft_model(options.draft),
        )
    report["took_s"] = round(time.perf_counter() - began_s, 1)
    print(json.dumps(report, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    bars = missed(report)
    for bar in bars:
        print(f"missed: {bar}", file=sys.stderr)
    return int(options.check and bool(bars))


if __name__ == "__main__":
    sys.exit(main())
