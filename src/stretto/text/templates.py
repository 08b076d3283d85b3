"""Chat templates from model files: messages → one prompt, with provenance and message boundaries.

Knows the Jinja dialect of Hugging Face templates, rendered by minijinja with bounded fuel and output.
Templates are untrusted code and messages are untrusted text; see `provenance` for how the two are kept apart.
Does not know tokens: `tokenizer.encode_prompt` converts a `Rendered` into tokens.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import minijinja

from stretto.errors import (
    BrokenTemplateError,
    InvalidMessageError,
    InvalidRequestError,
    TemplateRefusedError,
    one_line,
)
from stretto.text.messages import normalized, normalized_tools
from stretto.text.provenance import Alphabet, Marking, Segment, is_identifier, literals, prefix
from stretto.text.template_support import TemplateSupport, support_of

SOURCE_CHARS_MAX = 1 << 20
FUEL = 2_000_000  # instructions per render: about 75 ms; a 200-message chat uses about 10,000
OUTPUT_CHARS_MIN = 1 << 20  # always allowed; beyond it a prompt may be 4 times the size of its input
BOUNDARIES_MAX = 16
MARKINGS_MAX = 16
KWARGS_ALLOWED = ("enable_thinking", "thinking", "reasoning_effort", "preserve_thinking", "date_string")
_KWARG_TEXT = re.compile(r"[A-Za-z0-9 _.,:/-]{0,64}")
# A tag that transformers adds to Jinja and minijinja lacks: it marks training targets.
_GENERATION = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt as text. `boundaries` are character offsets where messages end, except the last one's.

    `exact` is False if the template changes contents in a way that cannot be traced; the prompt then has the
    contents as they were sent. `continued` is the text of the last message if the answer continues it.
    """

    segments: tuple[Segment, ...]
    boundaries: tuple[int, ...] = ()
    exact: bool = True
    continued: str = ""

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)

    @property
    def tail(self) -> str:
        """The text before the answer: the end of the template (an open `<think>`) or the continued text."""
        last = self.segments[-1] if self.segments else Segment("", user=False)
        return self.continued if self.continued or last.user else last.text


@dataclass(frozen=True, slots=True)
class _Render:
    """The input of a render; each request is rendered several times."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    generate: bool
    kwargs: Mapping[str, Any]
    now: datetime
    output_chars_max: int
    check: Callable[[str], None] | None = None

    def marked(self, marking: Marking) -> _Render:
        return replace(self, messages=marking.messages(self.messages), tools=marking.value(self.tools))

    def until(self, end: int) -> _Render:
        """The first `end` messages, without the generation prompt."""
        return replace(self, messages=self.messages[:end], generate=False)


class _Refusal(Exception):
    """Raised by `raise_exception` inside a template."""


class _Overflow(Exception):
    """The output exceeded its limit."""


class ChatTemplate:
    """One template, compiled once. Rendering is thread-safe, and deterministic apart from `clock`."""

    def __init__(
        self,
        source: str,
        *,
        bos: str = "",
        eos: str = "",
        clock: Callable[[], datetime] = datetime.now,
        fuel: int = FUEL,
    ) -> None:
        if len(source) > SOURCE_CHARS_MAX:
            raise BrokenTemplateError(f"the chat template has {len(source):,} characters")
        self.source = source
        self._bos, self._eos, self._clock = bos, eos, clock
        self._literals = literals(source)
        self._words = frozenset(filter(is_identifier, self._literals))
        self._reserved = frozenset(character for character in source + bos + eos if ord(character) >= 0xF0000)
        self._lock = threading.Lock()
        self._now = datetime.min
        self._budget = 0
        self._environment = self._compiled(fuel)
        variables = self._environment.undeclared_variables_in_template("chat")
        self._support: TemplateSupport | None = None
        self.knows_thinking = "enable_thinking" in variables or "thinking" in variables

    @property
    def support(self) -> TemplateSupport:
        """What the template renders of a conversation; probed on first use, in a few milliseconds."""
        if self._support is None:
            self._support = support_of(self._plain)
        return self._support

    def _plain(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str | None:
        """A render without marking, None if the template refuses."""
        call = _Render(list(messages), tools, True, {}, self._clock(), OUTPUT_CHARS_MIN)
        return self._attempt(call)

    def _compiled(self, fuel: int) -> minijinja.Environment:
        environment = minijinja.Environment(
            fuel=fuel,
            debug=False,
            trim_blocks=True,
            lstrip_blocks=True,
            finalizer=self._count,
            filters={"tojson": _tojson},
            globals={"raise_exception": _raise_exception, "strftime_now": self._strftime_now},
            auto_escape_callback=lambda _name: False,
        )
        source = _GENERATION.sub(
            lambda tag: f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}", self.source
        )
        try:
            environment.add_template("chat", source)
        except (minijinja.TemplateError, ValueError) as error:
            raise _broken(error) from None
        return environment

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        check: Callable[[str], None] | None = None,
        **kwargs: Any,
    ) -> Rendered:
        """The prompt for these messages. Raises a typed error if the template cannot render them.

        With `continue_final_message` the prompt ends within the last message, begun by the assistant. `check`
        is called with the text of the first render and raises if it is too long.
        """
        check_kwargs(kwargs)
        plain, plain_tools = normalized(messages), normalized_tools(tools)
        size = len(json.dumps([plain, plain_tools], ensure_ascii=False))
        call = _Render(
            plain,
            plain_tools,
            add_generation_prompt,
            kwargs,
            self._clock(),
            max(OUTPUT_CHARS_MIN, 4 * size),
            check,
        )
        return self._continued(call) if continue_final_message else self._rendered(call)

    def _rendered(self, call: _Render) -> Rendered:
        marking, marked, prompt, exact = self._marked(call)
        template_from = self._generation_start(marked, prompt) if marking.keep else len(prompt)
        segments = marking.segments(prompt, template_from=template_from)
        return Rendered(segments, self._boundaries(marked, prompt), exact)

    def _continued(self, call: _Render) -> Rendered:
        """Truncates the prompt at a unique character appended to the last message.

        If the template refuses or drops that message, it is appended to the prompt of the others.
        """
        last = continued_message(call.messages)
        mark = self._unused_character(call)
        marked = [*call.messages[:-1], {**last, "content": last["content"] + mark}]
        try:
            whole = self._rendered(replace(call, messages=marked, generate=False))
        except (BrokenTemplateError, TemplateRefusedError):
            whole = Rendered(())
        end = whole.text.rfind(mark)
        if end >= 0:
            segments = prefix(whole.segments, end)
            boundaries = tuple(offset for offset in whole.boundaries if offset <= end)
            return Rendered(segments, boundaries, whole.exact, last["content"])
        if len(call.messages) < 2:
            raise TemplateRefusedError("the chat template cannot continue the last message")
        before = self._rendered(replace(call, messages=call.messages[:-1], generate=True))
        said = Segment(last["content"], user=True)
        return replace(before, segments=(*before.segments, said), continued=last["content"])

    def _unused_character(self, call: _Render) -> str:
        """A private-use character that occurs neither in the template nor in any message."""
        sent = (
            self.source + self._bos + self._eos + json.dumps([call.messages, call.tools], ensure_ascii=False)
        )
        taken = set(sent)
        return next(mark for code in range(0xE000, 0xF900) if (mark := chr(code)) not in taken)

    # ── marking: as much of the user text as the template allows ────────────────────────────────

    def _marked(self, call: _Render) -> tuple[Marking, _Render, str, bool]:
        """The strictest marking whose decoded render equals the plain render, with that render."""
        wanted = self._run(call)
        if call.check is not None:
            call.check(wanted)
        alphabet = Alphabet(self._reserved)
        for readable in (False, True):
            marking = Marking(alphabet, readable=readable, source_words=self._words)
            marked = call.marked(marking)
            prompt = self._attempt(marked)
            if prompt is not None and marking.decode(prompt) == wanted:
                return marking, marked, prompt, True
        keeping = self._keeping(call, alphabet, wanted)
        if keeping is not None:
            return *keeping, True
        if prompt is None:
            raise BrokenTemplateError(
                "the chat template computes with contents: user text cannot be identified"
            )
        return marking, marked, prompt, False

    def _keeping(self, call: _Render, alphabet: Alphabet, wanted: str) -> tuple[Marking, _Render, str] | None:
        """A marking that leaves as few as possible of the template's literals readable."""
        keep = self._present(call)
        words = tuple(literal for literal in keep if is_identifier(literal))
        others = [(literal,) for literal in keep if not is_identifier(literal)]
        best: tuple[Marking, _Render, str] | None = None
        for dropped in [(), words, *others][:MARKINGS_MAX] if keep else []:
            fewer = tuple(literal for literal in keep if literal not in dropped)
            marking = Marking(alphabet, readable=True, keep=fewer, source_words=self._words)
            marked = call.marked(marking)
            prompt = self._attempt(marked)
            if prompt is not None and marking.decode(prompt) == wanted:
                keep, best = fewer, (marking, marked, prompt)
            elif best is None:
                return None
        return best

    def _present(self, call: _Render) -> tuple[str, ...]:
        """The template's literals that occur in user text."""
        sent = json.dumps([call.messages, call.tools], ensure_ascii=False)
        texts = [message["content"] for message in call.messages]
        return tuple(
            literal for literal in self._literals if literal in sent or any(literal in text for text in texts)
        )

    # ── boundaries ──────────────────────────────────────────────────────────────────────────────

    def _generation_start(self, call: _Render, prompt: str) -> int:
        """Where the generation prompt, which is template text, begins."""
        without = self._attempt(call.until(len(call.messages))) if call.generate else None
        return len(without) if without is not None and prompt.startswith(without) else len(prompt)

    def _boundaries(self, call: _Render, prompt: str) -> tuple[int, ...]:
        """Message ends at which the prompt of the messages so far is a prefix of the whole prompt.

        In a long chat only the first two and the last messages are tried, to bound the cost.
        """
        ends = list(range(1, len(call.messages)))
        if len(ends) > BOUNDARIES_MAX:
            ends = [*ends[:2], *ends[2 - BOUNDARIES_MAX :]]
        offsets: list[int] = []
        for end in ends:
            part = self._attempt(call.until(end))
            floor = offsets[-1] if offsets else 0
            if part is not None and len(part) > floor and prompt.startswith(part):
                offsets.append(len(part))
        return tuple(offsets)

    def _attempt(self, call: _Render) -> str | None:
        try:
            return self._run(call)
        except (BrokenTemplateError, TemplateRefusedError):
            return None

    # ── one render ──────────────────────────────────────────────────────────────────────────────

    def _run(self, call: _Render) -> str:
        try:
            with self._lock:  # per render, not per request: a long prompt does not block others
                self._now, self._budget = call.now, call.output_chars_max
                output = self._environment.render_template(
                    "chat",
                    messages=[dict(message) for message in call.messages],
                    tools=call.tools,
                    add_generation_prompt=call.generate,
                    bos_token=self._bos,
                    eos_token=self._eos,
                    **call.kwargs,
                )
        except _Refusal as error:
            raise TemplateRefusedError(f"the chat template refuses: {one_line(str(error))}") from None
        except _Overflow:
            raise BrokenTemplateError("the chat template's output grows without bound") from None
        except InvalidRequestError:
            raise
        except Exception as error:
            raise _broken(error) from None
        if len(output) > call.output_chars_max:
            raise BrokenTemplateError("the chat template's output grows without bound")
        return output

    def _count(self, value: Any) -> Any:
        """Called for every printed value; the result makes minijinja print it as usual."""
        if isinstance(value, str):
            self._budget -= len(value)
            if self._budget < 0:
                raise _Overflow
        return NotImplemented

    def _strftime_now(self, format: str) -> str:
        return self._now.strftime(format)


def continued_message(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the last message after checking that it is text from the assistant."""
    last = messages[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        raise InvalidMessageError(
            "only an assistant message with text can be continued",
            hint="give the last message the role assistant and no tool calls",
        )
    return last


def _raise_exception(message: object = "") -> None:
    raise _Refusal(str(message))


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **options: Any) -> str:
    """As in transformers: no HTML escapes, no ASCII escapes."""
    separators = options.get("separators")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=tuple(separators) if separators else None,
        sort_keys=bool(options.get("sort_keys")),
    )


def check_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Rejects template variables that a client may not set. A server calls this before `render`."""
    for name, value in kwargs.items():
        if name not in KWARGS_ALLOWED:
            raise InvalidRequestError(
                f"chat_template_kwargs has the unknown key {name[:40]!r}",
                hint=f"known keys: {', '.join(KWARGS_ALLOWED)}",
            )
        if not isinstance(value, bool | int) and not (
            isinstance(value, str) and _KWARG_TEXT.fullmatch(value)
        ):
            raise InvalidRequestError(
                f"chat_template_kwargs.{name} must be a boolean, a number or a short word"
            )


def _broken(error: Exception) -> BrokenTemplateError:
    """The error on one line, with the template's line number and without its source."""
    line = getattr(error, "line", None)
    text = one_line(str(error.args[0]) if error.args else type(error).__name__)
    text = re.sub(r" \(in [^()]*\)$", "", text)
    return BrokenTemplateError(f"the chat template fails{f' at line {line}' if line else ''}: {text}")
