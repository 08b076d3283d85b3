"""Milliseconds of passes with each kind of attention on this CPU: plain, llama.cpp's flash attention, ours.

    python -m benchmarks.attention_passes [--json FILE] [--check] [--lengths 60 1100 …] [--kinds plain ours …]

Decode rows of 1, 4 and 8 sequences, rows of one sequence that verify drafts, and prompt chunks, at each
context length, with the bundled model. Kinds take turns; the best of the repeats counts. `--check` exits 1
where ours takes longer than another kind, by a twentieth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from stretto.backends.llamacpp import Context, ContextOptions, load
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.kernels import interpose, support
from stretto.model_files.bundled import ensure_default
from stretto.settings.places import cache_home

KINDS = {"plain": "off", "rows": "rows", "tiles": "on", "ours": "on"}
DECODE_ROWS, PROMPT_ROWS, SEQUENCES = (1, 4, 8), (64, 512), 8
PROMPT_REPEATS = 4
SLOWER_MAX = 1.05  # ours ÷ the fastest of the others
Span = tuple[int, int, int]  # sequence, start, count


class Passes:
    """A context of each kind, filled alike."""

    def __init__(self, kinds: list[str], window: int, threads: int) -> None:
        support.allow_in_this_process()
        model = load(ensure_default(cache_home()), cache_dir=cache_home(), trial=False)
        print(f"our kernels: {interpose.reason('auto') or 'compute'}")
        sizes = {"n_seq_max": SEQUENCES, "context_window": window, "n_threads": threads}
        self.contexts: dict[str, Context] = {}
        for kind in kinds:
            with self._kernels(kind):
                options = ContextOptions(**sizes, flash_attention=KINDS[kind])
                self.contexts[kind] = Context(model, options)
        self._length = 0
        self.best_ms: dict[str, dict[str, float]] = {}

    def fill(self, length: int) -> None:
        """Every sequence with as many tokens."""
        for kind, context in self.contexts.items():
            for sequence in range(1, SEQUENCES):
                context.remove(sequence, 0)
            for start in range(self._length, length, 512):
                self._run(kind, [(0, start, min(512, length - start))])
            for sequence in range(1, SEQUENCES):
                context.copy(0, sequence, length)
            self._run(kind, [(sequence, length, 1) for sequence in range(SEQUENCES)])
            for sequence in range(SEQUENCES):
                context.remove(sequence, length)
        self._length = length

    def compare(self, name: str, spans: list[Span], repeats: int) -> None:
        found: dict[str, list[float]] = {kind: [] for kind in self.contexts}
        for _ in range(repeats + 1):
            for kind, context in self.contexts.items():
                found[kind].append(self._run(kind, spans))
                for sequence, start, _count in spans:
                    context.remove(sequence, start)
        best = {
            kind: round(1e3 * min(times[1:]), 2) for kind, times in found.items()
        }  # the first plans the graph
        self.best_ms[name] = best
        print(f"{name:34}", *(f"{ms:9.1f}" for ms in best.values()), flush=True)

    def slower(self) -> list[str]:
        """The passes in which ours is not the fastest."""
        rest = [kind for kind in self.contexts if kind != "ours"]
        if not rest or "ours" not in self.contexts:
            return []
        found = self.best_ms.items()
        return [name for name, ms in found if ms["ours"] > SLOWER_MAX * min(ms[kind] for kind in rest)]

    def _run(self, kind: str, spans: list[Span]) -> float:
        context = self.contexts[kind]
        with self._kernels(kind):
            started = time.perf_counter()
            code = context.decode(rows_for(spans, vocab=context.vocab))
            context.logits()
            seconds = time.perf_counter() - started
        if code != 0:
            raise SystemExit(f"llama_decode answered {code}")
        return seconds

    @staticmethod
    def _kernels(kind: str) -> AbstractContextManager[None]:
        return nullcontext() if kind == "ours" else interpose.disabled()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit 1 if ours is slower than another kind")
    parser.add_argument("--lengths", nargs="+", type=int, default=[60, 1100, 4000])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    window = max(asked.lengths) + max(PROMPT_ROWS) + SEQUENCES
    passes = Passes(asked.kinds, window, asked.threads)
    print(f"{'ms':34}", *(f"{kind:>9}" for kind in asked.kinds))
    for length in (0, *sorted(asked.lengths)):
        if length:
            passes.fill(length)
            for rows in DECODE_ROWS:
                spans = [(sequence, length, 1) for sequence in range(rows)]
                passes.compare(f"{rows} decode rows at {length}", spans, asked.repeats)
            passes.compare(f"4 rows of a sequence at {length}", [(0, length, 4)], asked.repeats)
        for rows in PROMPT_ROWS:
            passes.compare(f"{rows} prompt rows at {length}", [(0, length, rows)], PROMPT_REPEATS)
    if asked.json is not None:
        asked.json.write_text(json.dumps(passes.best_ms, indent=1) + "\n", encoding="utf-8")
    for name in passes.slower():
        print(f"slower than another kind: {name}", file=sys.stderr)
    return int(asked.check and bool(passes.slower()))


if __name__ == "__main__":
    sys.exit(main())
