"""The same tokens give the same text, calls, logprobs and end, whether the worker or the API makes the text.

Both ways go through the worker's outbox, the frames of the wire and the client's registry; only where the
`TextStream` runs differs, and with it which tokens it sees together.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.client.api import Delta
from stretto.client.streams import StreamRegistry
from stretto.core.tick import End, PromptScores, Started, Terminal
from stretto.rpc.frames import decode, encode
from stretto.rpc.messages import GenerateParams, StreamEnd
from stretto.settings import EngineSettings
from stretto.text.model_text import Prompt
from stretto.text.reasoning import THINK
from stretto.text.requests import PreparedText
from stretto.text.stream import Shown, TextStream, ToolReading
from stretto.text.tokenizer import PromptTokens
from stretto.text.tools import Dialect
from stretto.text_client.reader import TextReader
from stretto.worker.outbox import Mailbox, Outbox, StreamSink
from stretto.worker.token_stream import TokenStream

PIECES = [
    b"a",
    b"b",
    b"ab",
    b" stop",
    b"st",
    b"op",
    b"\n",
    b"\xc3",
    b"\xa9",
    b"\xe2\x82",
    b"\xac",
    b"\xff",
    "é€".encode(),
    b"<think>",
    b"</think>",
    b"</",
    b"think>",
    b"<tool_call>",
    b'{"name": "look", "arguments": {"q": "x"}}',
    b'{"name": "lo',
    b'ok", "arguments": {}}',
    b"</tool_call>",
    b"",
    b"<end>",
]
CONTROL = frozenset({13, 14, 17, 21, 23})


class Words:
    vocab_size = len(PIECES)
    bos = None
    eos = frozenset({23})

    def encode(self, text: str, special: bool) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        return PIECES[token]

    def is_control(self, token: int) -> bool:
        return token in CONTROL


@dataclass(frozen=True)
class Measure:
    logprob: float
    top_tokens: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Case:
    """One request: its ticks, how it is read, and what it asks for."""

    ticks: list[list[int]]
    reads: list[bool]  # after each tick
    lag: int  # ticks that still run after a stop string
    stops: tuple[str, ...]
    reasoning: bool
    opened: bool
    tools: bool
    eager: bool
    logprobs: bool
    scored: bool
    shown: Shown
    end: tuple[End, str]


tokens = st.integers(0, len(PIECES) - 1)
cases = st.builds(
    Case,
    ticks=st.lists(st.lists(tokens, min_size=1, max_size=4), max_size=12),
    reads=st.lists(st.booleans(), min_size=12, max_size=12),
    lag=st.integers(0, 3),
    stops=st.lists(st.sampled_from(["stop", "ab", "é", "€", "</th", "b\n"]), max_size=2, unique=True).map(
        tuple
    ),
    reasoning=st.booleans(),
    opened=st.booleans(),
    tools=st.booleans(),
    eager=st.booleans(),
    logprobs=st.booleans(),
    scored=st.booleans(),
    shown=st.builds(Shown, control=st.booleans(), stop=st.booleans()),
    end=st.sampled_from([(End.FINISHED, "stop"), (End.FINISHED, "length"), (End.CANCELLED, "client")]),
)


@dataclass
class Heard:
    """Everything that a caller could observe."""

    text: str = ""
    reasoning: str = ""
    token_count: int = 0
    tokens: list[int] = field(default_factory=list)
    calls: list[tuple[int, str, str, bool]] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    prompt_logprobs: list[object] = field(default_factory=list)
    started: bool = False
    end: StreamEnd | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.reasoning += delta.reasoning
        self.token_count += delta.token_count
        self.tokens += delta.tokens
        self.calls += [(call.index, call.name, call.arguments, call.done) for call in delta.tool_calls]
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        self.started = self.started or delta.start is not None
        self.end = delta.end or self.end


class Wire:
    """A connection and an event loop that act at once, through the bytes of the frames."""

    unsent_bytes = 0

    def __init__(self, registry: StreamRegistry) -> None:
        self._registry = registry

    def send_now(self, note) -> bool:
        self.send(note)
        return True

    def send(self, note) -> None:
        self._registry.route(decode(encode(note)[4:]).params, epoch=0, now_s=0.0)

    def call_soon_threadsafe(self, work: Callable[..., None], *arguments: object) -> None:
        work(*arguments)


class Path:
    """A request from the worker's output to its reader; `number` 0: the worker makes the text."""

    def __init__(self, case: Case, number: int) -> None:
        self.case = case
        self.kept: int | None = None
        self.heard = Heard()
        self.registry = StreamRegistry(EngineSettings())
        self.stream = self.registry.register("s", tenant="", now_s=0.0, number=number)
        self.stream.epoch = 0
        wire = Wire(self.registry)
        self.outbox = Outbox(wire)
        mailbox = Mailbox(wire, unread_bytes_max=1 << 30, on_end=lambda _: None, on_cut=lambda _: None)
        reading = ToolReading(Dialect.HERMES, frozenset({"look"}), eager=case.eager) if case.tools else None
        tags = THINK if case.reasoning else None
        shown = Shown(case.shown.control, case.shown.stop, (1, 2, 3) if case.scored else ())
        self.reader: TextReader | None = None
        if number:
            self.output = TokenStream(self.outbox, mailbox, stream_id="s", number=number, waited_s=0.5)
            prompt = Prompt(PromptTokens(array("i", [1, 2, 3])), tags, case.opened)
            prepared = PreparedText(prompt, "", case.stops, reading, shown)
            params = GenerateParams(
                stream_id="s", echo_tokens=True, sampling={"logprobs": 1} if case.logprobs else {}
            )
            self.reader = TextReader(Words(), prepared, params, on_stop=self.stopped)
            return
        sink = StreamSink(self.outbox, mailbox, Words(), stream_id="s", echo_tokens=True, waited_s=0.5)
        self.output = TextStream(
            Words(),
            sink,
            self.stopped,
            stops=case.stops,
            tags=tags,
            opened=case.opened,
            tools=reading,
            on_start=sink.started,
            shown=shown,
        )

    def stopped(self, kept: int) -> None:
        self.kept = kept

    def read(self) -> None:
        delta = self.registry.read(self.stream)
        if delta is not None and self.reader is not None:
            delta = self.reader.read(delta)
        if delta is not None:
            self.heard.add(delta)

    def run(self) -> Heard:
        case, lag = self.case, self.case.lag
        self.output.start(Started("r", 0.25, 3, 1))
        self.outbox.flush()
        if case.scored:
            self.output.score(PromptScores(1, [Measure(-0.5), Measure(-1.5, (1, 2), (-1.0, -2.0))]))
        count = 0
        for tick, wants in zip(case.ticks, case.reads, strict=False):
            if self.kept is not None:
                lag -= 1
                if lag < 0:
                    break
            extras = [Measure(-float(token), (token,), (-1.0,)) for token in tick]
            self.output.push(array("i", tick), extras if case.logprobs else None)
            count += len(tick)
            self.outbox.flush()
            if wants:
                self.read()
        end, reason = case.end
        if self.kept is not None and end is End.FINISHED:
            reason = "stop"
        self.output.finish(Terminal("r", end, reason, count, 3, 1, count, 0, 0.5, 0.25, 0.3))
        self.outbox.flush()
        self.read()
        return self.heard


@settings(max_examples=100, deadline=None)
@given(cases)
def test_text_calls_logprobs_and_end_do_not_depend_on_where_the_text_is_made(case: Case) -> None:
    in_worker, in_api = Path(case, 0).run(), Path(case, 7).run()
    if case.end[0] is End.CANCELLED and in_worker.end is not None:
        # What a cancelled stream had generated beyond a stop string depends on when the stop was seen.
        in_worker.end.usage.completion_tokens = in_api.end.usage.completion_tokens = 0
        in_worker.end.usage.reasoning_tokens = in_api.end.usage.reasoning_tokens = 0
    assert in_api == in_worker
