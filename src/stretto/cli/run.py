"""`stretto run`: one prompt, one answer. Piped input is part of the prompt."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from stretto.cli.attachments import Attachments, attachments, with_parts
from stretto.cli.context import GlobalOptions
from stretto.cli.failures import UsageError
from stretto.cli.flags import ModelFlags, values
from stretto.cli.sampling import SamplingOptions
from stretto.errors import InvalidRequestError

STDIN_BYTES_MAX = 64 << 20


def run(
    prompt: Annotated[str | None, Parameter(name="PROMPT")] = None,
    /,
    *,
    model: Annotated[str | None, Parameter(name=["--model", "-m"], metavar="MODEL")] = None,
    system: Annotated[str | None, Parameter(name=["--system", "-s"], metavar="TEXT")] = None,
    raw: Annotated[bool, Parameter(negative="")] = False,
    lora: Annotated[list[str] | None, Parameter(name="--lora", metavar="ADAPTER", negative="")] = None,
    image: Annotated[list[Path] | None, Parameter(name="--image", metavar="FILE", negative="")] = None,
    audio: Annotated[list[Path] | None, Parameter(name="--audio", metavar="FILE", negative="")] = None,
    stats: Annotated[bool, Parameter(negative="")] = False,
    sampling: SamplingOptions | None = None,
    flags: ModelFlags = None,
    context: Annotated[GlobalOptions, Parameter(parse=False)],
) -> None:
    """Ask a model once and stream its answer to stdout.

    Without a prompt and with nothing piped in, `run` opens a chat.

    Parameters
    ----------
    prompt
        The prompt. Piped input is appended.
    model
        A .gguf file, a name from `stretto ls` or from the settings file. [default: SmolLM2-135M-Instruct]
    system
        A system prompt.
    raw
        Continue the text without the model's chat template.
    lora
        An adapter: a name from the settings, a GGUF file or a PEFT folder; with =SCALE at its end, if it is
        not 1. May be repeated.
    image
        A picture to ask about (PNG, JPEG, GIF, WebP, BMP), for models with eyes. May be repeated.
    audio
        A sound to ask about (WAV), for models with ears. May be repeated.
    stats
        Print timings to stderr.
    """
    sampling = sampling or SamplingOptions()
    text = _prompt(prompt, piped())
    media = attachments(image, audio, text=text, raw=raw)
    if text is None:
        from stretto.cli.chat import chat

        return chat(model=model, system=system, stats=stats, sampling=sampling, flags=flags, context=context)
    if not text.strip():
        raise UsageError("the prompt is empty", hint='stretto run "Why is the sky blue?"')
    from stretto.cli.session import opened, show_answer, show_stats

    adapters, uses = _adapters(lora or ())
    options = {**sampling.options(), **({"lora": uses} if uses else {})}
    chosen = values(flags)
    if adapters:
        chosen["adapters"] = adapters
    with opened(context, model, chosen) as llm:
        completion = show_answer(llm, _asked(text, system, raw=raw, media=media), options)
        if stats:
            show_stats(completion)
    return None


def _adapters(given: Sequence[str]) -> tuple[dict[str, str], dict[str, float | None]]:
    """Paths of adapters that are files, by the name they get, and the scale of each adapter."""
    paths: dict[str, str] = {}
    uses: dict[str, float | None] = {}
    for text in given:
        name, sign, scale = text.rpartition("=")
        if not sign:
            name, scale = text, ""
        if Path(name).expanduser().exists():
            path, name = name, re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).stem).lstrip("._-") or "adapter"
            paths[name] = path
        try:
            uses[name] = float(scale) if scale else None
        except ValueError:
            raise UsageError(f"{scale[:40]!r} is not a scale", hint="--lora NAME=0.5") from None
    return paths, uses


def _asked(text: str, system: str | None, *, raw: bool, media: Attachments) -> str | list[dict[str, Any]]:
    if raw:
        return f"{system}\n\n{text}" if system else text
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": with_parts(text, media)}]


def _prompt(given: str | None, piped: str | None) -> str | None:
    """The argument, then piped input; None if there is neither."""
    parts = [part for part in (given, piped) if part is not None]
    return "\n\n".join(part for part in parts if part) if parts else None


def piped() -> str | None:
    """All of stdin, unless it is a terminal."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return None
    data = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1)
    if len(data) > STDIN_BYTES_MAX:
        raise InvalidRequestError(
            f"more than {STDIN_BYTES_MAX >> 20} MiB were piped in",
            hint="send less; a prompt must fit the window",
        )
    try:
        return data.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:
        raise InvalidRequestError(
            "the piped input is not UTF-8 text", hint="convert it, e.g. with iconv"
        ) from None
