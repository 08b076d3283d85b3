"""Guidance (JSON schema, JSON, regex, Lark, GBNF) → llguidance grammars and the matchers that apply them.

Knows llguidance and bounds its cost. A grammar is a string that can be sent in `SamplingParams.grammar`; a
matcher is state, rebuilt from tokens whenever a request is bound to a slot. Compiling hostile input can take
a second: the caller does it outside the loop, with a deadline.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stretto.errors import GrammarTooComplexError, InvalidGrammarError, one_line
from stretto.text.closing import Closer, Ending

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer
    from llguidance._lib import JsonCompileOptions

SOURCE_CHARS_MAX = 1 << 18
DEPTH_MAX = 64
COMPACT: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON on one line. With free whitespace, small models waste their tokens on it."""
SPACING = ("whitespace_flexible", "whitespace_pattern", "item_separator", "key_separator")
STEP_S_MAX = 0.05  # of CPU time for one token; the whole batch waits for it
SLOW_STEPS_MAX = 8  # per generation
_TOO_COMPLEX = ("fuel", "too complex", "too many", "too large", "limit", "too big")
_UNICODE_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


# ── sources ─────────────────────────────────────────────────────────────────────────────────────


def from_json_schema(schema: Mapping[str, Any] | bool | str) -> str:
    """JSON that follows a schema. Keywords that llguidance does not enforce are rejected, not ignored."""
    from llguidance import LLMatcher

    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise InvalidGrammarError("the JSON schema is not JSON") from None
    if not isinstance(schema, Mapping | bool):
        raise InvalidGrammarError("a JSON schema is an object or a boolean")
    _check_depth(schema)
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError):
        raise InvalidGrammarError("the JSON schema holds values that are not JSON") from None
    _check_size(text)
    own = schema.get("x-guidance") if isinstance(schema, Mapping) else None
    _check_spacing(own)
    wrapped = text if isinstance(schema, Mapping) else json.dumps({} if schema else {"not": {}})
    return LLMatcher.grammar_from_json_schema(wrapped, defaults=None if own else COMPACT)


def _check_spacing(own: Any) -> None:
    """A schema may change the whitespace rules, but no other llguidance options."""
    if own is None:
        return
    unknown = [key for key in own if key not in SPACING] if isinstance(own, Mapping) else ["x-guidance"]
    if unknown:
        raise InvalidGrammarError(
            f"x-guidance: {str(unknown[0])[:40]!r} cannot be set", hint=f"known: {', '.join(SPACING)}"
        )


def from_json_object() -> str:
    """Any JSON object: `response_format: {type: json_object}`."""
    return from_json_schema({"type": "object"})


def from_regex(pattern: str) -> str:
    """Text that matches a regular expression as a whole."""
    from llguidance import LLMatcher

    _check_size(pattern)
    return LLMatcher.grammar_from_regex(pattern)


def from_lark(source: str) -> str:
    """A Lark grammar in llguidance's dialect."""
    from llguidance import LLMatcher

    _check_size(source)
    return LLMatcher.grammar_from_lark(source)


def from_gbnf(source: str) -> str:
    """llama.cpp's grammar format, converted to Lark."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    _check_size(source)
    if _gbnf_depth(source) > DEPTH_MAX:
        raise InvalidGrammarError(f"the GBNF grammar nests deeper than {DEPTH_MAX} levels")
    try:
        return from_lark(gbnf_to_lark(_gbnf_plain(source)))
    except InvalidGrammarError:
        raise
    except Exception as error:  # the converter raises bare Exceptions
        raise InvalidGrammarError(f"the GBNF grammar is broken: {one_line(str(error))}") from None


def from_grammar(source: str) -> str:
    """The `grammar` field of a request: GBNF where it has `::=`, else Lark."""
    _check_size(source)
    return from_gbnf(source) if "::=" in source else from_lark(source)


def _check_size(text: Any) -> None:
    """Checks the type too: requests may contain anything."""
    if not isinstance(text, str):
        raise InvalidGrammarError(f"a regex or grammar is text, not {type(text).__name__}")
    if not text.strip():
        raise InvalidGrammarError("the grammar is empty")
    if len(text) > SOURCE_CHARS_MAX:
        raise GrammarTooComplexError(f"the grammar has {len(text):,} characters")


def _check_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        level = [
            item
            for parent in level
            if isinstance(parent, Mapping | list)
            for item in (parent.values() if isinstance(parent, Mapping) else parent)
        ]
        if not level:
            return
    raise GrammarTooComplexError(f"the JSON schema nests deeper than {DEPTH_MAX} levels")


def _gbnf_depth(source: str) -> int:
    deepest = depth = 0
    for bracket in re.findall(r"[()]", source):
        depth += 1 if bracket == "(" else -1
        deepest = max(deepest, depth)
    return deepest


def _gbnf_plain(source: str) -> str:
    """Replaces \\u and \\U escapes by their characters: the converter mangles them."""
    return _UNICODE_ESCAPE.sub(_gbnf_character, source)


def _gbnf_character(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]  # any other escape, including an escaped backslash
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise InvalidGrammarError(f"the GBNF grammar is broken: no character has the code {digits}")
    return f"\\x{code:02x}" if code < 128 else chr(code)


# ── vocabulary ──────────────────────────────────────────────────────────────────────────────────


class _LlguidanceVocabulary:
    """The tokenizer interface that llguidance expects."""

    is_tokenizer_wrapper = True

    def __init__(
        self,
        tokens: Sequence[bytes],
        eos: int,
        control: Sequence[int],
        encode: Callable[[str], list[int]] | None,
    ) -> None:
        self.tokens = tokens
        self.eos_token_id = eos
        self.bos_token_id = None
        self.special_token_ids = control
        self._encode = encode
        self._ids = {text: token for token, text in reversed(list(enumerate(tokens))) if text}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenizes forced text with the model's tokenizer; greedily if there is none."""
        data = text if isinstance(text, bytes) else text.encode()
        if self._encode is not None:
            return self._encode(data.decode("utf-8", "replace"))
        ids: list[int] = []
        position = 0
        while position < len(data):
            for length in range(min(self._longest, len(data) - position), 0, -1):
                token = self._ids.get(data[position : position + length])
                if token is not None:
                    ids.append(token)
                    break
            else:
                length = 1
            position += length
        return ids


def build_ll_tokenizer(
    token_bytes: Sequence[bytes],
    eos: int | Iterable[int],
    *,
    control: Iterable[int] = (),
    encode: Callable[[str], list[int]] | None = None,
) -> LLTokenizer:
    """llguidance's view of a vocabulary: the bytes of each token; control tokens never match as text.

    Takes about 0.2 s for 50,000 tokens, so once per model. `encode` is the model's own tokenizer without
    special tokens; with it, forced text is tokenized as the model would.
    """
    from llguidance import LLTokenizer

    ends = [eos] if isinstance(eos, int) else list(eos)
    special = sorted({*control, *ends})
    tokens = list(token_bytes)
    for token in special:
        tokens[token] = b"\xff" + tokens[token]  # llguidance's mark: no UTF-8 text contains it
    vocabulary: Any = _LlguidanceVocabulary(tokens, ends[0], special, encode)
    return LLTokenizer(vocabulary, n_vocab=len(tokens), eos_token=ends)


# ── matchers ────────────────────────────────────────────────────────────────────────────────────


def parser_limits() -> LLParserLimits:
    """Limits on compiling and on each step: llguidance's defaults, pinned."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=50_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


class GrammarMatcher:
    """Which tokens may come next in one generation."""

    __slots__ = ("_closer", "_ending", "_eos", "_fresh", "_matcher", "_shortest", "_slow_steps", "mask_bytes")

    def __init__(
        self,
        fresh: LLMatcher,
        eos: frozenset[int],
        mask_bytes: int,
        closer: Closer | None = None,
        shortest: int = 0,
    ) -> None:
        self._fresh = fresh
        self._matcher = fresh.deep_copy()
        self._eos = eos
        self._closer = closer
        self._shortest = shortest  # length of the shortest text in tokens; 0: unknown
        self._ending: Ending | None = None
        self._slow_steps = 0
        self.mask_bytes = mask_bytes

    def limit(self, tokens_max: int) -> None:
        """Makes `steer` end the text within this many tokens, if the grammar allows that."""
        if self._closer is not None:
            self._ending = Ending(self._closer, self._shortest, tokens_max)

    def steer(self, token: int, left: int) -> int:
        """The token, or a closing one in its place; `left` more tokens may follow it."""
        if self._ending is None or token in self._eos or self._matcher.is_stopped():
            return token
        return self._ending.steer(self._matcher, token, left)  # has its own bound

    def is_near_end(self, left: int) -> bool:
        """Whether each token must be steered from here on; `left` more may follow the next one."""
        return self._ending is not None and self._ending.is_near(self._matcher, left)

    @property
    def is_finished(self) -> bool:
        """Only the end of the text can follow."""
        return self._matcher.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """The text so far is complete; more may still be allowed."""
        return self._matcher.is_accepting()

    def allowed(self, token: int) -> bool:
        """Much cheaper than a mask: sample first, and compute a mask only if this is False."""
        if self._matcher.is_stopped():
            return token in self._eos
        if token in self._eos:
            return self._matcher.is_accepting()
        return self._matcher.validate_tokens([token]) == 1

    def mask(self, into: bytearray | memoryview | Any) -> None:
        """Writes one bit for each token, least significant first, into `mask_bytes` writable bytes.

        `into` may be a numpy array of any integer type; bytes beyond the mask are left unchanged.
        """
        view = memoryview(into).cast("B")
        view[: self.mask_bytes] = self._bits()[: self.mask_bytes]

    def _bits(self) -> bytes:
        if self._matcher.is_stopped():
            bits = bytearray(self.mask_bytes)
            for token in self._eos:
                bits[token >> 3] |= 1 << (token & 7)
            return bytes(bits)
        began_s = time.thread_time()
        bits_now = self._matcher.compute_bitmask()
        self.count_step(time.thread_time() - began_s)
        if self._matcher.is_error():
            raise GrammarTooComplexError("the grammar costs too much at this point of the text")
        return bits_now

    def count_step(self, step_s: float) -> None:
        """Ends a request whose grammar is slow repeatedly: every step delays the whole batch."""
        self._slow_steps += step_s > STEP_S_MAX
        if self._slow_steps > SLOW_STEPS_MAX:
            raise GrammarTooComplexError("the grammar took too long for too many tokens of this text")

    def advance(self, token: int) -> None:
        """Consumes an allowed token. After the end of the text this has no effect."""
        if token in self._eos:
            return
        if self._ending is not None:
            self._ending.advance(token)
        began_s = time.thread_time()
        taken = self._matcher.try_consume_tokens([token])
        self.count_step(time.thread_time() - began_s)
        if taken != 1:
            if self._matcher.is_error():
                raise GrammarTooComplexError("the grammar costs too much at this point of the text")
            raise InvalidGrammarError(
                "a token outside the grammar was taken", hint="this is a bug in Stretto"
            )

    def rebuild(self, tokens: Iterable[int]) -> None:
        """Restarts and consumes these tokens, for a preempted request that resumes."""
        self._matcher = self._fresh.deep_copy()
        if self._ending is not None:
            self._ending.restart()
        taken = [token for token in tokens if token not in self._eos]
        if self._matcher.try_consume_tokens(taken) != len(taken):
            raise InvalidGrammarError(
                "tokens outside the grammar were taken", hint="this is a bug in Stretto"
            )


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A fresh matcher. Native code: hostile input can take long or crash the process."""
    from llguidance import LLMatcher

    found = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
    if found.is_error():
        raise _error(found.get_error())
    return found


def check_grammar(grammar: str) -> None:
    """Raises a typed error if a grammar does not compile. Needs no vocabulary."""
    from llguidance import LLMatcher

    is_error, notes = LLMatcher.validate_grammar_with_warnings(grammar, limits=parser_limits())
    if is_error:
        raise _error(notes[0] if notes else "")


def _error(text: str) -> InvalidGrammarError | GrammarTooComplexError:
    line = one_line(text) or "no reason was given"
    if any(word in line.lower() for word in _TOO_COMPLEX):
        return GrammarTooComplexError(f"the grammar is too complex: {line}")
    return InvalidGrammarError(f"the grammar is broken: {line}")
