"""A loaded model and its answers on a terminal, shared by `run` and `chat`."""

from __future__ import annotations

import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from stretto.cli.context import GlobalOptions
from stretto.cli.output import note, progress, say
from stretto.cli.text import clean

if TYPE_CHECKING:
    from stretto.llm import LLM, Completion, Stream

Messages = Sequence[Mapping[str, Any]]
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


@contextmanager
def opened(context: GlobalOptions, model: str | None, flags: Mapping[str, Any]) -> Iterator[LLM]:
    """Load a model with a progress bar, and close it at the end of the block."""
    model, given = _chosen(context, model, flags)  # validate settings before heavy imports
    with _heeding_interrupts():
        llm = _load(context, model, given)
    try:
        for warning in llm.description.get("warnings", ()):
            note(str(warning))
        yield llm
    finally:
        llm.close()


def _chosen(
    context: GlobalOptions, model: str | None, flags: Mapping[str, Any]
) -> tuple[str | None, Mapping[str, Any]]:
    """The model to load and its settings. A settings file with one model selects it.

    The SDK reads variables and the usual file itself; values of another file (`--config`) are passed to it.
    """
    loaded = context.settings(flags)
    for text in loaded.notes:
        note(text)
    settings = loaded.settings
    if model is None and len(settings.models) == 1:
        model = next(iter(settings.models))
    if context.config is None:
        return model, flags
    values = settings.model(model or "").model_dump()
    path = values.pop("path")
    return path or model, {name: value for name, value in values.items() if value is not None}


def _load(context: GlobalOptions, model: str | None, flags: Mapping[str, Any]) -> LLM:
    from stretto.llm import LLM
    from stretto.worker.own_process import claim_process

    claim_process()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # settings under old names: `_chosen` has named them
        if not sys.stderr.isatty():
            return LLM(model, cache_dir=context.cache_dir, **flags)
        return _load_shown(LLM, context, model, flags)


def _load_shown(llm: type[LLM], context: GlobalOptions, model: str | None, flags: Mapping[str, Any]) -> LLM:
    with progress(f"loading {model or 'the default model'}") as shown:
        return llm(
            model,
            cache_dir=context.cache_dir,
            progress=lambda _stage, done: shown(int(1000 * done), 1000),
            **flags,
        )


@contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """Defer Ctrl-C: inside a callback from C the exception would be printed and lost."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = False

    def remember(_number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen = True
        raise KeyboardInterrupt

    def swallow(unraisable: sys.UnraisableHookArgs) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)

    before, hook = signal.signal(signal.SIGINT, remember), sys.unraisablehook
    sys.unraisablehook = swallow
    try:
        yield
    except Exception:
        if not seen:
            raise
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = hook
    if seen:
        raise KeyboardInterrupt


def show_answer(
    llm: LLM, prompt: str | Messages, options: Mapping[str, Any], shown: list[str] | None = None
) -> Completion:
    """Stream one answer to stdout; reasoning goes to stderr. An interrupt cancels the generation.

    `shown` collects the printed text, for use after an interrupt.
    """
    from stretto.llm.client import ANSWER_TOKENS

    stream = llm.stream(prompt, **options)
    try:
        completion = _show(stream, [] if shown is None else shown)
    except BaseException:
        stream.close()
        raise
    if completion.usage.completion_tokens == ANSWER_TOKENS and "max_tokens" not in options:
        note(f"the answer was truncated after {ANSWER_TOKENS} tokens; -n N allows more")
    return completion


def _show(stream: Stream, shown: list[str]) -> Completion:
    terminal, watched = sys.stdout.isatty(), sys.stderr.isatty()
    for delta in stream:
        if delta.reasoning and watched:
            sys.stderr.write(f"{_DIM}{clean(delta.reasoning)}{_PLAIN}")
            sys.stderr.flush()
        if delta.text:
            sys.stdout.write(clean(delta.text) if terminal else delta.text)
            sys.stdout.flush()
            shown.append(delta.text)
    if shown and not shown[-1].endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()
    assert stream.completion is not None
    return stream.completion


def show_stats(completion: Completion) -> None:
    usage, timing = completion.usage, completion.timing
    ttft_s = timing.ttft_s or timing.duration_s
    rate = (usage.completion_tokens - 1) / max(timing.duration_s - ttft_s, 1e-6)
    say(
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), "
        f"first token after {ttft_s:.2f} s, "
        f"{usage.completion_tokens} tokens at {max(rate, 0):.1f} tok/s, ended by {completion.finish_reason}"
    )
