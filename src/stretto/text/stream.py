"""Turns the tokens of one request into text: detokenizing, UTF-8, stop strings, reasoning, tool calls.

Runs on the output thread. Output goes to a sink (any callable) as deltas; the last delta carries the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stretto.core.tick import End, Progress, PromptScores, Started, Terminal
from stretto.errors import StrettoError
from stretto.text.detokenizer import Detokenizer
from stretto.text.reasoning import ReasoningSplitter, Tags
from stretto.text.stops import StopMatcher
from stretto.text.tokenizer import Tokenizer
from stretto.text.tools import MARKERS, Dialect, ToolCall, ToolParser


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Output of one tick for one stream. The last delta carries the end and the final values."""

    text: str = ""
    reasoning: str = ""
    tokens: tuple[int, ...] = ()
    extras: object = None
    end: Terminal | None = None
    calls: tuple[ToolCall, ...] = ()
    stop: str | None = None  # with the end: the stop string that matched
    reasoning_tokens: int = 0  # with the end
    called: bool = False  # with the end: whether tools were called
    scored: tuple[
        tuple[int, object], ...
    ] = ()  # prompt tokens and their log-probabilities; the first has none
    progress: Progress | None = None  # of the prompt


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown besides plain text. `prompt`: its tokens, if their logprobs are requested."""

    control: bool = False  # generated control tokens
    stop: bool = False  # the stop string that matched
    prompt: Sequence[int] = ()


PLAIN = Shown()


@dataclass(frozen=True, slots=True)
class ToolReading:
    """How tool calls are parsed from the output. Without `parallel` only the first one counts.

    `forced`: a grammar enforces them. `eager`: arguments are streamed as they are generated.
    """

    dialect: Dialect
    names: frozenset[str]
    parallel: bool = True
    forced: bool = False
    eager: bool = False


class TextStream:
    """One request's output. `sink` takes deltas; `on_stop` tells the scheduler that a stop string matched."""

    light = False  # text takes time
    place = None  # … and is no row of token ids

    def __init__(
        self,
        tokenizer: Tokenizer,
        sink: Callable[[TextDelta], None],
        on_stop: Callable[[int], None],
        *,
        stops: Sequence[str] = (),
        tags: Tags | None = None,
        opened: bool = False,
        tools: ToolReading | None = None,
        on_start: Callable[[Started], None] | None = None,
        shown: Shown = PLAIN,
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._scored = 0  # prompt tokens whose log-probabilities were delivered
        self._detokenizer = Detokenizer(tokenizer.token_bytes)
        self._matcher = StopMatcher(stops) if stops else None
        self._splitter = ReasoningSplitter(tags, opened=opened) if tags is not None else None
        self._parser = _parser(tools)
        self._calls_max = 1 if tools is not None and not tools.parallel else None
        self._shown_controls = _shown_controls(tags, tools)
        self._sink = sink
        self._on_stop = on_stop
        self._on_start = on_start
        self._stop: str | None = None
        self._stop_kept = 0
        self._calls = 0
        self._reasoning_tokens = 0
        self.broken = False

    def start(self, started: Started) -> None:
        """The request got its first slot."""
        if self._on_start is not None:
            self._on_start(started)

    def resume(self, tokens: Sequence[int]) -> None:
        """Tokens whose text the reader already has: they bring every stage to where it was."""
        for token in tokens:
            if self._stop is not None:
                return
            content: list[str] = []
            self._split(self._matched(self._text_of(token)), content, [])
            self._parse("".join(content))

    @property
    def stop_kept(self) -> int | None:
        """How many tokens a stop string left, once one matched."""
        return self._stop_kept if self._stop is not None else None

    def push(self, tokens: array[int], extras: object) -> None:
        if self._stop is not None or self.broken:
            return  # generated after the stop string, before the scheduler was told
        content: list[str] = []
        reasoning: list[str] = []
        kept = 0
        for token in tokens:
            self._split(self._matched(self._text_of(token)), content, reasoning)
            kept += 1
            if self._stop is not None:
                break
        text, calls = self._parse("".join(content))
        self._sink(TextDelta(text, "".join(reasoning), tuple(tokens[:kept]), extras, calls=calls))

    def score(self, scores: PromptScores) -> None:
        """Prompt log-probabilities. Tokens recomputed after a preemption were already delivered."""
        prompt, known = self._shown.prompt, self._scored
        new = scores.measured[max(0, known - scores.start) :]
        begin = max(known, scores.start)
        if self.broken or not new or begin > max(1, known):
            return
        found = list(zip(prompt[begin : begin + len(new)], new, strict=False))
        if known == 0:
            found.insert(0, (prompt[0], None))
        self._scored = begin + len(new)
        self._sink(TextDelta(scored=tuple(found)))

    def advance(self, progress: Progress) -> None:
        if not self.broken:
            self._sink(TextDelta(progress=progress))

    def finish(self, terminal: Terminal) -> None:
        if self.broken:
            if terminal.reason == "client":  # cancelled because its sink raised
                terminal = terminal._replace(end=End.FAILED, reason=StrettoError.code)
            self._sink(TextDelta(end=terminal))
            return
        text, reasoning, calls = self._rest(truncated=terminal.reason == "length")
        if self._stop is not None and terminal.end is End.FINISHED:  # whichever end the scheduler saw first
            terminal = terminal._replace(reason="stop", tokens_kept=self._stop_kept)
        self._sink(
            TextDelta(
                text,
                reasoning,
                end=terminal,
                calls=calls,
                stop=self._stop,
                reasoning_tokens=self._reasoning_tokens,
                called=self._calls > 0,
            )
        )

    # --- inside ----------------------------------------------------------------------------------

    def _text_of(self, token: int) -> str:
        if (
            self._tokenizer.is_control(token)
            and not self._shown.control
            and (not self._shown_controls or self._tokenizer.token_bytes(token) not in self._shown_controls)
        ):
            return ""
        return self._detokenizer.push(token)

    def _matched(self, text: str) -> str:
        """The visible part of a token's text; records a matching stop string."""
        if self._matcher is None:
            return text
        found = self._matcher.push(text)
        if found.stop is not None:
            self._stop, self._stop_kept = found.stop, found.tokens_kept
            self._on_stop(found.tokens_kept)
            if self._shown.stop:
                return found.emit + found.stop
        return found.emit

    def _split(self, text: str, content: list[str], reasoning: list[str]) -> None:
        if self._splitter is None:
            content.append(text)
            return
        before = self._splitter.in_reasoning
        split = self._splitter.push(text)
        self._reasoning_tokens += before or self._splitter.in_reasoning
        content.append(split.content)
        reasoning.append(split.reasoning)

    def _parse(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        if self._parser is None:
            return text, ()
        parsed = self._parser.push(text)
        return parsed.content, self._counted(parsed.calls)

    def _counted(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The calls that the request is allowed to make."""
        if self._calls_max is not None:
            calls = tuple(call for call in calls if call.index < self._calls_max)
        self._calls += sum(bool(call.name) for call in calls)
        return calls

    def _rest(self, *, truncated: bool) -> tuple[str, str, tuple[ToolCall, ...]]:
        """Flush what every stage has held back."""
        held = ""
        if self._stop is None:
            held = self._detokenizer.flush()
            if self._matcher is not None:
                held = self._matcher.push(held).emit + self._matcher.flush()
        content, reasoning = held, ""
        if self._splitter is not None:
            split, tail = self._splitter.push(held), self._splitter.flush()
            content, reasoning = split.content + tail.content, split.reasoning + tail.reasoning
        text, calls = self._parse(content)
        if self._parser is not None:
            last = self._parser.flush(truncated=truncated)
            text, calls = text + last.content, calls + self._counted(last.calls)
        return text, reasoning, calls


def _parser(tools: ToolReading | None) -> ToolParser | None:
    if tools is None:
        return None
    return ToolParser(tools.dialect, tools.names, eager=tools.eager, forced=tools.forced)


def _shown_controls(tags: Tags | None, tools: ToolReading | None) -> frozenset[bytes]:
    """Control tokens that later stages must see: reasoning tags and tool call markers."""
    names = (tags.open, tags.close) if tags is not None else ()
    marks = MARKERS[tools.dialect] if tools is not None else ()
    return frozenset(name.encode() for name in (*names, *marks))
