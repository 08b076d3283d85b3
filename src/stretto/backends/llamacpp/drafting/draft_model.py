"""A small model that continues the text of every slot, greedily: drafts for its target to verify.

It has a sequence for each slot, a cache of known tokens (`backends.drafting.texts`). All slots share a pass
for each draft position.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping
from dataclasses import replace
from itertools import repeat
from pathlib import Path

from stretto.backends.drafting.texts import DraftTexts, Wanted
from stretto.backends.drafting.vocabulary import check_sizes, check_tokens
from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.model import Model, load
from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.llamacpp.native.vocabulary import Vocabulary
from stretto.backends.llamacpp.options import ContextOptions, ModelOptions, draft_options
from stretto.errors import LlamaCppError, ModelLoadError

CATCH_UP_ROWS = 128  # of all slots, that a tick computes at most before there are drafts


class DraftModelFailed(LlamaCppError):
    """A pass of the draft model failed: it is given up, and its target goes on alone."""


class DraftModel:
    """Has as many sequences as the target has slots. Freed by `close`."""

    def __init__(self, model: Model, options: ContextOptions, window: int) -> None:
        self.model = model
        self.context = Context(model, draft_options(options, min(window, model.n_ctx_train)))
        self._passes: list[tuple[int, float]] = []  # rows and seconds, since they were last taken
        self._texts = DraftTexts(options.n_seq_max, window=self.context.window, trim=self._trim)

    @classmethod
    def open(cls, path: Path, target: Context, *, cache_dir: Path | None, trial: bool = True) -> DraftModel:
        """Load a file as the draft model of `target`; raises a StrettoError if the two do not fit."""
        model = load(path, _options(target.model.options), cache_dir=cache_dir, trial=trial)
        try:
            if model.is_hybrid or model.is_recurrent:
                raise ModelLoadError(
                    f"{path.name} cannot be a draft model: its state cannot be taken back",
                    hint="choose a draft model without recurrent layers",
                )
            check_vocabularies(target.model.vocabulary, model.vocabulary, path.name)
            return cls(model, target.options, target.window)
        except BaseException:
            model.close()
            raise

    def close(self) -> None:
        self.context.close()
        self.model.close()

    def propose(self, wanted: Mapping[int, Wanted]) -> dict[int, array[int]]:
        """Drafts by slot; none for slots whose text is not computed yet, or is too long for this model."""
        rows, parts = self._texts.next_rows(wanted, CATCH_UP_ROWS)
        if parts:
            self._run(parts, outputs=False)
        found: dict[int, array[int]] = {slot: array("i") for slot in rows}
        while rows:
            for slot, token in self._run(rows, outputs=True).items():
                found[slot].append(token)
            rows = {
                slot: array("i", [found[slot][-1]]) for slot in rows if len(found[slot]) < wanted[slot].most
            }
        return found

    def behind(self, slot: int, wanted: Wanted) -> int:
        return self._texts.behind(slot, wanted)

    def take_passes(self) -> list[tuple[int, float]]:
        """Rows and seconds of the passes since the last call."""
        taken, self._passes = self._passes, []
        return taken

    # --- inside ----------------------------------------------------------------------------------

    def _trim(self, slot: int, length: int) -> None:
        if not self.context.remove(slot, length):
            raise DraftModelFailed("a sequence of the draft model could not be trimmed")

    def _run(self, rows: Mapping[int, array[int]], *, outputs: bool) -> dict[int, int]:
        """Compute these tokens of each slot, and with `outputs` the best token after the last of them."""
        slots = sorted(rows)
        flags = array("b")
        tokens, positions, sequences = array("i"), array("i"), array("i")
        for slot in slots:
            count, start = len(rows[slot]), self._texts.length(slot)
            tokens.extend(rows[slot])
            positions.extend(range(start, start + count))
            sequences.extend(repeat(slot, count))
            flags.extend([*repeat(0, count - 1), int(outputs)])
        began_s = time.perf_counter()
        code = self.context.decode(
            Rows(slots, tokens, positions, sequences, flags, len(slots) if outputs else 0)
        )
        self._passes.append((len(tokens), time.perf_counter() - began_s))
        if code != 0:
            raise DraftModelFailed(f"a pass of the draft model failed (llama_decode: {code})")
        for slot in slots:
            self._texts.add(slot, rows[slot])
        if not outputs:
            return {}
        logits = self.context.logits()
        best = logits.argmax(axis=1).tolist()
        if not all(abs(float(logits[at, token])) < float("inf") for at, token in enumerate(best)):
            raise DraftModelFailed("the draft model computed NaN")
        return dict(zip(slots, best, strict=True))


def check_vocabularies(target: Vocabulary, draft: Vocabulary, name: str) -> None:
    """Raises a ModelLoadError that names the first difference."""
    check_sizes(target.vocab_size, draft.vocab_size, name)
    check_tokens(target, draft, name)


def _options(target: ModelOptions) -> ModelOptions:
    """On the devices of the target; what belongs to its own tensors is left out."""
    return replace(target, override_tensors=(), n_cpu_moe=0, tensor_split=())
