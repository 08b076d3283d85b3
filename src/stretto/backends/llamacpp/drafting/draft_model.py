"""A small model that continues the text of every slot, greedily: drafts for its target to verify.

Its KV is a cache of known tokens, one sequence for each slot, and may always be computed again: it is trimmed
to what the slot's text still has in common with it, and what is missing is computed in bounded chunks beside
the ticks. So forks, preemption, prefix reuse and snapshots need nothing here. All slots share a pass for each
draft position.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.model import Model, load
from stretto.backends.llamacpp.native.batch import Rows
from stretto.backends.llamacpp.native.vocabulary import Vocabulary
from stretto.backends.llamacpp.options import ContextOptions, ModelOptions, draft_options
from stretto.core.kv.prefix_store import common_prefix
from stretto.errors import LlamaCppError, ModelLoadError

CATCH_UP_ROWS = 128  # of all slots, that a tick computes at most before there are drafts


class DraftModelFailed(LlamaCppError):
    """A pass of the draft model failed: it is given up, and its target goes on alone."""


class Wanted(NamedTuple):
    """The known tokens of a slot, and how many drafts of what follows."""

    tokens: array[int]
    most: int


class DraftModel:
    """Has as many sequences as the target has slots. Freed by `close`."""

    def __init__(self, model: Model, options: ContextOptions, window: int) -> None:
        self.model = model
        self.context = Context(model, draft_options(options, min(window, model.n_ctx_train)))
        self._held = [array("i") for _ in range(options.n_seq_max)]  # tokens whose KV its sequence has

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
        ready = self._catch_up(wanted)
        found: dict[int, array[int]] = {slot: array("i") for slot in ready}
        rows = {slot: wanted[slot].tokens[len(self._held[slot]) :] for slot in ready}
        while rows:
            for slot, token in self._run(rows, outputs=True).items():
                found[slot].append(token)
            rows = {
                slot: array("i", [found[slot][-1]])
                for slot in rows
                if len(found[slot]) < wanted[slot].most and len(self._held[slot]) < self.context.window
            }
        return found

    # --- inside ----------------------------------------------------------------------------------

    def _catch_up(self, wanted: Mapping[int, Wanted]) -> list[int]:
        """Trim each sequence to its text, compute missing tokens, and say which slots can have drafts."""
        ready: list[int] = []
        room = CATCH_UP_ROWS
        chunks: dict[int, array[int]] = {}
        for slot, (tokens, most) in wanted.items():
            if most < 1 or len(tokens) + most > self.context.window:
                continue
            self._trim(slot, tokens)
            missing = len(tokens) - len(self._held[slot])
            if missing <= room:
                ready.append(slot)
                room -= missing
            elif room > 0:
                begin = len(self._held[slot])
                chunks[slot] = tokens[begin : begin + room]
                room = 0
        if chunks:
            self._run(chunks, outputs=False)
        return ready

    def _trim(self, slot: int, tokens: array[int]) -> None:
        """Keep what it has in common with these tokens, without the last one: its row gives the draft."""
        held = self._held[slot]
        common = common_prefix(tokens, held, min(len(tokens) - 1, len(held)))
        if common < len(held):
            if not self.context.remove(slot, common):
                raise DraftModelFailed("a sequence of the draft model could not be trimmed")
            del held[common:]

    def _run(self, rows: Mapping[int, array[int]], *, outputs: bool) -> dict[int, int]:
        """Compute these tokens of each slot, and with `outputs` the best token after the last of them."""
        slots = sorted(rows)
        flags = array("b")
        tokens, positions, sequences = array("i"), array("i"), array("i")
        for slot in slots:
            count, start = len(rows[slot]), len(self._held[slot])
            tokens.extend(rows[slot])
            positions.extend(range(start, start + count))
            sequences.extend(repeat(slot, count))
            flags.extend([*repeat(0, count - 1), int(outputs)])
        code = self.context.decode(
            Rows(slots, tokens, positions, sequences, flags, len(slots) if outputs else 0)
        )
        if code != 0:
            raise DraftModelFailed(f"a pass of the draft model failed (llama_decode: {code})")
        for slot in slots:
            self._held[slot].extend(rows[slot])
        if not outputs:
            return {}
        logits = self.context.logits()
        best = logits.argmax(axis=1).tolist()
        if not all(abs(float(logits[at, token])) < float("inf") for at, token in enumerate(best)):
            raise DraftModelFailed("the draft model computed NaN")
        return dict(zip(slots, best, strict=True))


def check_vocabularies(target: Vocabulary, draft: Vocabulary, name: str) -> None:
    """Raises a ModelLoadError that names the first difference."""
    hint = "choose a draft model of the same family"
    if target.vocab_size != draft.vocab_size:
        raise ModelLoadError(
            f"{name} cannot be a draft model: it has {draft.vocab_size} tokens, the model has "
            f"{target.vocab_size}",
            hint=hint,
        )
    for token in range(target.vocab_size):
        ours, theirs = target.token_bytes(token), draft.token_bytes(token)
        if ours != theirs:
            raise ModelLoadError(
                f"{name} cannot be a draft model: token {token} is {theirs!r}, in the model {ours!r}",
                hint=hint,
            )


def _options(target: ModelOptions) -> ModelOptions:
    """On the devices of the target; what belongs to its own tensors is left out."""
    return replace(target, override_tensors=(), n_cpu_moe=0, tensor_split=())
