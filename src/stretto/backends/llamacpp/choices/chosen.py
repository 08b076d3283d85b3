"""Choices: what was decided for one model on this machine, from the disk or measured now.

`choose` is called once per load, after the weights and before the context. Entries are kept by everything
that the times depend on: the file, llama.cpp's build, the processor, the processors that may be used, and the
options.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from stretto.backends.llamacpp.attention import UNMEASURED, Measured
from stretto.backends.llamacpp.calibration import PassFigures
from stretto.backends.llamacpp.choices import questions as ask
from stretto.backends.llamacpp.choices.decision import Decision
from stretto.backends.llamacpp.choices.drift import Drift
from stretto.backends.llamacpp.choices.measuring import measured
from stretto.backends.llamacpp.choices.store import ChoiceStore, key_of
from stretto.backends.llamacpp.kernels import interpose
from stretto.backends.llamacpp.kernels.support import build_of_llama_cpp, installed_version, processor
from stretto.backends.llamacpp.model import Model
from stretto.backends.llamacpp.native.cpu_limits import cores
from stretto.backends.llamacpp.native.temporary_thread import on_temporary_thread
from stretto.backends.llamacpp.options import ContextOptions

NOT_TIMED = ("rope", "drafts_max")  # options that change no time; with drafts, attention is not asked
MEASURED, CACHED, EXPECTED = "measured", "cached", "expected"
TWICE = (ask.THREADS_DECODE, ask.THREADS_PREFILL)  # questions whose answer must be found at two loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """`origin`: measured now, cached, or expected (not measured: on a GPU, or the machine was too busy)."""

    decisions: tuple[Decision, ...] = ()
    figures: PassFigures | None = None  # measured in the context that was chosen
    origin: str = EXPECTED
    measured_on: str = ""  # date
    took_s: float = 0.0

    def chosen(self, question: str) -> str:
        """Empty where it was not decided."""
        return next((one.chosen for one in self.decisions if one.question == question), "")

    @property
    def threads_decode(self) -> int:
        """0: not decided."""
        return int(self.chosen(ask.THREADS_DECODE) or 0)

    @property
    def threads_prefill(self) -> int:
        return int(self.chosen(ask.THREADS_PREFILL) or 0)

    @property
    def pads_to_four(self) -> bool:
        return self.chosen(ask.PAD_TO_FOUR) == ask.YES

    @property
    def attention(self) -> Measured:
        where = self.chosen(ask.LONG_PROMPTS)
        slots = self.chosen(ask.ATTENTION)
        return Measured(slots, where == ask.SIDE_CONTEXT if where else None) if slots else UNMEASURED

    def table(self) -> list[dict[str, Any]]:
        """For people and JSON: each question, what was chosen, and milliseconds by candidate and probe."""
        return [
            {
                "question": one.question,
                "chosen": one.chosen,
                "unconfirmed": one.unconfirmed,
                "ms": {
                    candidate: {probe: round(1e3 * seconds, 3) for probe, seconds in probes.items()}
                    for candidate, probes in one.times.items()
                },
            }
            for one in self.decisions
        ]

    @property
    def complete(self) -> bool:
        """Whether all of it was measured without disturbance, or was no question: worth remembering."""
        return bool(self.decisions) and all(one.measured or one.only for one in self.decisions)


NOTHING = Choices()


class ModelChooser:
    """Finds or measures the choices of one model with one set of options."""

    def __init__(self, model: Model, options: ContextOptions, folder: Path | None) -> None:
        self._model, self._options = model, options
        self._store = ChoiceStore(folder)
        self._key = key_of(facts(model, options))
        self._before: Mapping[str, str] = {}  # what was found at an earlier load, by question

    def choose(self) -> Choices:
        started = time.perf_counter()
        choices = self._remembered()
        if choices is None:
            found = on_temporary_thread(lambda: measured(self._model, self._options))
            done = [one for one in found if one.measured]
            choices = Choices(
                decisions=tuple(map(self._confirmed, found)),
                origin=MEASURED if done else EXPECTED,
                measured_on=time.strftime("%Y-%m-%d"),
            )
        if choices.chosen(ask.KERNELS):
            interpose.choose(own=choices.chosen(ask.KERNELS) == ask.OWN)
        return replace(choices, took_s=time.perf_counter() - started)

    def remember(self, choices: Choices) -> None:
        """Only what is complete; the rest is measured again at the next load."""
        if choices.origin == MEASURED and choices.complete and choices.figures is not None:
            self._store.put(self._key, _entry(choices))

    def drift(self, choices: Choices) -> Drift | None:
        """Drops the entry when passes no longer take what was measured: the next load measures again."""
        if choices.figures is None or not choices.figures.one_s:
            return None
        return Drift(choices.figures, on_stale=partial(self._store.drop, self._key))

    def _confirmed(self, found: Decision) -> Decision:
        """Fewer threads only if two loads say so: a neighbour on the same core is gone a second later."""
        expected = next(iter(found.times), found.chosen)
        if found.question not in TWICE or found.chosen in (expected, self._before.get(found.question)):
            return found
        return replace(found, chosen=expected, unconfirmed=found.chosen)

    def _remembered(self) -> Choices | None:
        entry = self._store.find(self._key)
        if entry is None:
            return None
        try:
            choices = _choices(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._store.complain(f"an entry is damaged ({type(error).__name__})")
            return None
        self._before = {one.question: one.unconfirmed for one in choices.decisions if one.unconfirmed}
        return None if self._before else choices


def facts(model: Model, options: ContextOptions) -> dict[str, Any]:
    """Everything that times depend on."""
    identity = asdict(model.file.identity)
    asked = {one.name: getattr(options, one.name) for one in fields(options) if one.name not in NOT_TIMED}
    asked["quirks_off"] = sorted(options.quirks_off)
    return {
        "file": identity,
        "library": [installed_version(), build_of_llama_cpp()],
        "processor": processor(),
        "cores": cores(),
        "own_kernels": interpose.digest(),
        "decides_kernels": interpose.may_choose(),
        "kernels": model.options.kernels,
        "gpu_layers": model.options.n_gpu_layers if model.on_gpu else 0,
        "options": asked,
        "verifies": options.drafts_max > 0,
    }


def _entry(choices: Choices) -> dict[str, Any]:
    return {
        "measured_on": choices.measured_on,
        "decisions": [asdict(one) for one in choices.decisions],
        "figures": None if choices.figures is None else asdict(choices.figures),
    }


def _choices(entry: Mapping[str, Any]) -> Choices:
    decisions = tuple(
        Decision(
            question=str(one["question"]),
            chosen=str(one["chosen"]),
            only=bool(one["only"]),
            unconfirmed=str(one["unconfirmed"]),
            times={
                str(candidate): {str(probe): float(seconds) for probe, seconds in probes.items()}
                for candidate, probes in one["times"].items()
            },
        )
        for one in entry["decisions"]
    )
    if any(one.times and one.chosen not in one.times for one in decisions):
        raise ValueError("a choice without times")
    for name in (ask.THREADS_DECODE, ask.THREADS_PREFILL):
        int(next((one.chosen for one in decisions if one.question == name), 0))
    told = entry["figures"]
    return Choices(
        decisions=decisions,
        figures=PassFigures(
            two_calls=bool(told["two_calls"]),
            one_s=float(told["one_s"]),
            many_s=float(told["many_s"]),
            rows=int(told["rows"]),
        ),
        origin=CACHED,
        measured_on=str(entry["measured_on"])[:10],
    )
