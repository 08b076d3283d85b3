"""Measures llama.cpp alone: output tokens per second of a greedy loop without server or scheduler.

    python benchmarks/bare_loop.py --model FILE [--slots 8] [--prompt 79] [--output 48] [--rounds 6]
                                   [--threads 2] [--json FILE] [--check]

An upper bound for any server of the same model on `steady`: all prompts are computed in one batch, then every
slot generates one token per pass. Prints one JSON object. `--check` exits 1 if nothing was measured.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time
from pathlib import Path

import llama_cpp
import numpy as np

WINDOW = 4096


@llama_cpp.llama_log_callback
def _silence(level: int, text: bytes, user_data: object) -> None:
    """Discards llama.cpp's log."""


class BareLoop:
    """One context with one sequence per slot."""

    def __init__(self, path: str, *, slots: int, threads: int) -> None:
        llama_cpp.llama_log_set(_silence, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        assert self._model, "the model does not load"
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = WINDOW * slots
        params.n_seq_max = slots
        params.n_batch, params.n_ubatch = 2048, 512
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 1
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        assert self._context, "no context with these options"
        self._memory = llama_cpp.llama_get_memory(self._context)
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._size = llama_cpp.llama_vocab_n_tokens(vocab)
        self._slots = slots
        self._batch = llama_cpp.llama_batch_init(2048, 0, 1)

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """One call; rows are (token, position, slot, whether it is sampled). Returns the sampled tokens."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for index, (token, position, slot, sampled) in enumerate(rows):
            batch.token[index] = token
            batch.pos[index] = position
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = slot
            batch.logits[index] = sampled
        code = llama_cpp.llama_decode(self._context, batch)
        assert code == 0, f"llama_decode answered {code}"
        return [self._best(index) for index, row in enumerate(rows) if row[3]]

    def _best(self, index: int) -> int:
        pointer = llama_cpp.llama_get_logits_ith(self._context, index)
        row = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(row, (self._size,)).argmax())

    def round(self, prompts: list[list[int]], output: int) -> None:
        """Computes all prompts from scratch, then generates `output` tokens for each."""
        llama_cpp.llama_memory_clear(self._memory, True)
        rows = [
            (token, position, slot, position == len(prompt) - 1)
            for slot, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        best: list[int] = []
        for start in range(0, len(rows), 2048):
            best += self._decode(rows[start : start + 2048])
        for step in range(output - 1):
            best = self._decode(
                [(token, len(prompts[slot]) + step, slot, True) for slot, token in enumerate(best)]
            )

    def close(self) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)


def measure(path: str, *, slots: int, prompt: int, output: int, rounds: int, threads: int) -> float:
    """Output tokens per second, including prefill, after one warm-up round."""
    loop = BareLoop(path, slots=slots, threads=threads)
    dice = random.Random(0)
    made = [
        [[dice.randrange(1000, 40_000) for _ in range(prompt)] for _ in range(slots)]
        for _ in range(rounds + 1)
    ]
    loop.round(made[0], output)
    started = time.perf_counter()
    for prompts in made[1:]:
        loop.round(prompts, output)
    spent_s = time.perf_counter() - started
    loop.close()
    return slots * output * rounds / spent_s


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=79, help="tokens of a prompt, template included")
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--check", action="store_true", help="exit 1 if no token was generated")
    chosen = parser.parse_args()
    found = measure(
        chosen.model,
        slots=chosen.slots,
        prompt=chosen.prompt,
        output=chosen.output,
        rounds=chosen.rounds,
        threads=chosen.threads,
    )
    sizes = {name: getattr(chosen, name) for name in ("slots", "prompt", "output", "rounds", "threads")}
    figures = json.dumps({"output_tokens_per_s": found, **sizes})
    print(figures)
    if chosen.json:
        chosen.json.write_text(figures + "\n", encoding="utf-8")
    return int(chosen.check and not found > 0)


if __name__ == "__main__":
    sys.exit(main())
