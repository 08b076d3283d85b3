"""Answers the questions on this machine for one model: makes trial contexts and runs rounds in them.

Two seconds at most. What could not be measured in that time, or not without disturbance, keeps the expected
candidate. Runs on a temporary thread (see `calibration`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from stretto.backends.llamacpp import attention as policy
from stretto.backends.llamacpp.attention import TILES
from stretto.backends.llamacpp.choices import questions as ask
from stretto.backends.llamacpp.choices.decision import Decision, Question, Samples, decide
from stretto.backends.llamacpp.choices.rounds import Arm, run_rounds
from stretto.backends.llamacpp.choices.trials import (
    CHUNK_ROWS,
    SHORT,
    TILES_ROWS,
    Trial,
    TrialSizes,
    layers_for,
    sizes_for,
)
from stretto.backends.llamacpp.kernels import interpose
from stretto.backends.llamacpp.model import Model
from stretto.backends.llamacpp.native.cpu_limits import cores
from stretto.backends.llamacpp.native.cpu_pressure import Pressures, open_pressure
from stretto.backends.llamacpp.options import ContextOptions
from stretto.errors import ContextError

LIMIT_S = 2.0
SHORT_UNTIL, LONG_UNTIL, REST_UNTIL = 0.35, 0.6, 0.95  # shares of it by which each stage ends
Probe = Callable[[int], float]  # seconds of a pass of so many layers


class Measuring:
    """One measurement of one model with one set of options."""

    def __init__(self, model: Model, options: ContextOptions, pressures: Pressures | None) -> None:
        self._model = model
        self._options = options
        self._pressures = pressures
        window = options.window(model.n_ctx_train)
        self._candidates = policy.candidates(model.shape, options, window, model.machine)
        self._sizes: TrialSizes = sizes_for(model, options)
        self._started_s = time.perf_counter()
        self._open = ExitStack()

    def run(self) -> list[Decision]:
        with self._open:
            decisions = self._attention()
            slots = decisions[0].chosen
            if len(self._candidates) > 1 and not decisions[0].measured:
                return decisions  # disturbed, or too slow: the rest would be no better
            return decisions + self._rest(self._trials.get(slots) or self._filled(slots))

    # --- attention -------------------------------------------------------------------------------

    def _attention(self) -> list[Decision]:
        """The slots' attention, and where long prompts run."""
        self._trials: dict[str, Trial] = {}
        kinds = tuple(dict.fromkeys(one.slots for one in self._candidates))
        if len(self._candidates) == 1:
            return [decide(ask.attention(self._candidates, has_long=False), {})]
        tiles = self._trial(TILES, sequences=1)
        state = tiles.seed()
        for kind in kinds:
            self._trials[kind] = self._trial(kind)
        samples, has_long = Samples(), self._sizes.long > 0
        question = ask.attention(self._candidates, has_long=has_long)
        for trial in self._trials.values():
            trial.fill(state, SHORT)
        self._compare(question, samples, {ask.DECODE_SHORT: True, ask.CHUNK_SHORT: True}, SHORT_UNTIL)
        if has_long and samples:
            for trial in (tiles, *self._trials.values()):
                trial.fill(state, self._sizes.long)
            probes = {ask.DECODE_LONG: len(kinds) > 1, ask.CHUNK_LONG: True}
            self._compare(question, samples, probes, LONG_UNTIL, tiles)
        for trial in self._trials.values():
            trial.fill(state, SHORT)
        slots = _decided(question, samples)
        return [slots, self._long_prompts(slots.chosen, samples)]

    def _long_prompts(self, slots: str, samples: Samples) -> Decision:
        question = ask.long_prompts(self._candidates, slots)
        pairs = {ask.SIDE_CONTEXT: TILES, ask.IN_SLOTS: slots}
        measured = Question(name="", candidates=(TILES, slots), weights=question.weights)
        if len(question.candidates) < 2 or not samples.is_settled(measured):
            return decide(question, {})
        times = {
            one: {ask.CHUNK_LONG: samples.best(pairs[one], ask.CHUNK_LONG)} for one in question.candidates
        }
        return decide(question, times)

    def _compare(
        self,
        question: Question,
        samples: Samples,
        probes: dict[str, bool],
        until: float,
        tiles: Trial | None = None,
    ) -> None:
        arms: list[Arm] = []
        rows = self._sizes.sequences
        for probe in (one for one, wanted in probes.items() if wanted):
            if probe in (ask.DECODE_SHORT, ask.DECODE_LONG):
                runs: dict[str, Probe] = {
                    kind: partial(trial.decode_s, rows) for kind, trial in self._trials.items()
                }
                scale = 1
            else:
                runs = {kind: partial(trial.chunk_s, CHUNK_ROWS) for kind, trial in self._trials.items()}
                if tiles is not None:
                    runs[TILES] = partial(tiles.chunk_s, TILES_ROWS)
                scale = CHUNK_ROWS
            arms += self._arms(probe, runs, rows=scale)
        self._rounds(arms, [question], samples, until)

    # --- threads, kernels, padding ---------------------------------------------------------------

    def _rest(self, trial: Trial) -> list[Decision]:
        """In a context with the attention that was chosen."""
        rows, options = self._sizes.sequences, self._options
        decode: Probe = partial(trial.decode_s, rows)
        one_row: Probe = partial(trial.decode_s, 1)
        chunk: Probe = partial(trial.chunk_s, CHUNK_ROWS)
        counts = ask.thread_counts(options.n_threads or cores(), fixed=bool(options.n_threads))
        many = counts if not options.n_threads_batch else counts[:1]
        found = [ask.threads_decode(counts), ask.threads_prefill(many)]
        arms: list[Arm] = []
        if len(counts) > 1:
            for probe, run, of, scale in (
                (ask.DECODE_SHORT, decode, counts, 1),
                (ask.ONE_ROW, one_row, counts, 1),
                (ask.CHUNK_SHORT, chunk, many, CHUNK_ROWS),
            ):
                runs = {str(count): partial(_with_threads, trial, count, counts[0], run) for count in of}
                arms += self._arms(probe, runs, rows=scale)
        if interpose.may_choose() and not options.deterministic:
            found.append(ask.kernels())
            parts: Probe = partial(trial.chunk_s, CHUNK_ROWS, rows_max=self._their_rows_max())
            for probe, ours, theirs, scale in (
                (ask.DECODE_SHORT, decode, decode, 1),
                (ask.CHUNK_SHORT, chunk, parts, CHUNK_ROWS),
            ):
                both: dict[str, Probe] = {
                    ask.OWN: ours,
                    ask.LLAMACPP: partial(_with_their_kernels, theirs),
                }
                arms += self._arms(probe, both, rows=scale)
        if rows >= 4 and not self._model.n_swa:
            found.append(ask.pad_to_four())
            three: Probe = partial(trial.decode_s, 3)
            four: Probe = partial(trial.decode_s, 4)
            arms += self._arms(ask.THREE_ROWS, {ask.NO: three, ask.YES: four})
        samples = Samples()
        self._rounds(arms, [one for one in found if len(one.candidates) > 1], samples, REST_UNTIL)
        return [_decided(question, samples) for question in found]

    def _their_rows_max(self) -> int:
        """Rows of a pass if llama.cpp's kernels compute: by rows they attend in small passes only."""
        window = self._options.window(self._model.n_ctx_train)
        with interpose.disabled():
            return max(
                one.n_ubatch
                for one in policy.candidates(self._model.shape, self._options, window, self._model.machine)
            )

    # --- common ----------------------------------------------------------------------------------

    def _trial(self, slots: str, *, sequences: int = 0) -> Trial:
        count = sequences or self._sizes.sequences
        trial = Trial(self._model, self._options, self._sizes, slots=slots, sequences=count)
        self._open.callback(trial.close)
        return trial

    def _filled(self, slots: str) -> Trial:
        """With a context, where one can be written: kernels differ in how they attend to it."""
        trial = self._trial(slots)
        try:
            trial.fill(self._trial(TILES, sequences=1).seed(), SHORT)
        except (ContextError, ValueError):
            trial.empty()
        return trial

    def _arms(self, probe: str, runs: Mapping[str, Probe], *, rows: int = 1) -> list[Arm]:
        """All candidates of a probe run the same number of layers. None when the time is up."""
        if time.perf_counter() - self._started_s >= LIMIT_S:
            return []
        layers = layers_for(list(runs.values()), self._model.n_layer, rows)
        return [Arm(candidate, probe, partial(run, layers)) for candidate, run in runs.items()]

    def _rounds(self, arms: list[Arm], found: list[Question], samples: Samples, until: float) -> None:
        if arms:
            until_s = self._started_s + until * LIMIT_S
            run_rounds(arms, found, samples, pressures=self._pressures, until_s=until_s)


def _decided(question: Question, samples: Samples) -> Decision:
    believed = len(question.candidates) > 1 and samples.is_settled(question)
    return decide(question, samples.times(question) if believed else {})


def _with_threads(trial: Trial, count: int, usual: int, run: Probe, layers: int) -> float:
    trial.context.set_threads(count, count)
    try:
        return run(layers)
    finally:
        trial.context.set_threads(usual, usual)


def _with_their_kernels(run: Probe, layers: int) -> float:
    with interpose.disabled():
        return run(layers)


def measured(model: Model, options: ContextOptions) -> list[Decision]:
    """Empty on a GPU, and where not even trial contexts run: the model itself will say why."""
    if model.on_gpu:
        return []
    pressures = open_pressure()
    try:
        return Measuring(model, options, pressures).run()
    except (ContextError, ValueError):
        return []
    finally:
        if pressures is not None:
            pressures.close()
