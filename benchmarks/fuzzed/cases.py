"""Cases of `benchmarks/fuzz_grammars.py`: generates a request, or renders a template, from a seed.

Most cases are generated from their grammar, so that they pass the first checks; some are mutated afterwards,
and some are known kinds of hostile input of random size.
"""

from __future__ import annotations

from random import Random
from typing import Any

from stretto.errors import StrettoError

_WORDS = ("a", "name", "ключ", "数", "x y", "", "\x00", "\\", '"', "é" * 40, "$ref", "-1")
_PATTERNS = (
    "^a+$",
    "[a-z]{2,40}",
    "(a|b)*",
    ".*",
    "^.{0,900}$",
    "\\d+",
    "(",
    "[",
    "\\p{L}+",
    "(?=x)",
    "a{9999}",
)


def request(rng: Random) -> tuple[str, dict[str, Any]]:
    """The kind of a case, and the fields of a chat request."""
    kind = rng.choices(("schema", "regex", "lark", "gbnf", "options"), (40, 25, 12, 12, 11))[0]
    if kind == "schema":
        schema = _hostile_schema(rng) if rng.random() < 0.25 else _schema(rng, rng.randint(1, 5))
        asked = {"name": "x", "schema": schema}
        return kind, {"response_format": {"type": "json_schema", "json_schema": asked}}
    if kind == "regex":
        return kind, {
            "guided_regex": _mutated(rng, _hostile_regex(rng) if rng.random() < 0.3 else _regex(rng, 4))
        }
    if kind == "options":
        return kind, {"chat_template_kwargs": _options(rng)}
    source = _lark(rng) if kind == "lark" else _gbnf(rng)
    return kind, {"guided_grammar": _mutated(rng, source)}


# --- JSON schemas ----------------------------------------------------------------------------------


def _schema(rng: Random, depth: int) -> Any:
    if depth <= 0 or rng.random() < 0.2:
        return rng.choice((_leaf(rng), rng.choice((True, False)), {}))
    made = rng.choice((_object, _array, _combined, _ref))(rng, depth)
    if rng.random() < 0.1:
        made[rng.choice(("minLength", "maxItems", "required", "type", "enum", "pattern", "x-guidance"))] = (
            _junk(rng)
        )
    return made


def _leaf(rng: Random) -> dict[str, Any]:
    return rng.choice(
        (
            {"type": rng.choice(("string", "integer", "number", "boolean", "null", "any", 7))},
            {"type": "string", "pattern": rng.choice(_PATTERNS)},
            {"type": "string", "minLength": rng.randint(0, 5000), "maxLength": rng.randint(0, 10**9)},
            {"type": "integer", "minimum": rng.randint(-(10**18), 10), "maximum": rng.randint(0, 10**30)},
            {"type": "number", "multipleOf": rng.choice((0, 0.1, -1, 1e-300))},
            {"enum": [rng.choice(_WORDS) for _ in range(rng.randint(0, 300))]},
            {"const": _junk(rng)},
            {"format": rng.choice(("date-time", "email", "uuid", "ipv6", "regex", "unknown"))},
        )
    )


def _object(rng: Random, depth: int) -> dict[str, Any]:
    names = [rng.choice(_WORDS) + str(i) for i in range(rng.choice((0, 1, 3, 8, 40)))]
    return {
        "type": "object",
        "properties": {name: _schema(rng, depth - 1) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": rng.choice((True, False, _schema(rng, depth - 2))),
    }


def _array(rng: Random, depth: int) -> dict[str, Any]:
    bounds = {"minItems": rng.choice((0, 1, 50, 10**6)), "maxItems": rng.choice((0, 3, 400, 10**9))}
    items = {"prefixItems": [_schema(rng, depth - 1) for _ in range(rng.randint(0, 6))]}
    return {
        "type": "array",
        "items": _schema(rng, depth - 1),
        **bounds,
        **(items if rng.random() < 0.3 else {}),
    }


def _combined(rng: Random, depth: int) -> dict[str, Any]:
    kind = rng.choice(("anyOf", "oneOf", "allOf", "not", "if"))
    if kind in ("not", "if"):
        return {kind: _schema(rng, depth - 1)}
    return {kind: [_schema(rng, depth - 1) for _ in range(rng.randint(0, 12))]}


def _ref(rng: Random, depth: int) -> dict[str, Any]:
    names = [f"d{i}" for i in range(rng.randint(1, 6))]
    definitions = {name: _schema(rng, depth - 1) for name in names}
    definitions[names[0]] = {"$ref": f"#/$defs/{rng.choice((*names, 'missing'))}"}
    return {"$ref": f"#/$defs/{rng.choice(names)}", "$defs": definitions}


def _hostile_schema(rng: Random) -> Any:
    size = rng.choice((10, 100, 400, 800, 1300, 2500))
    kind = rng.randrange(6)
    if kind == 0:  # a chain of references
        link = {"type": "array", "minItems": 1, "maxItems": 1}
        chain: dict[str, Any] = {
            f"d{i}": {**link, "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(size)
        }
        return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{size}": {"type": "null"}}}
    if kind == 1:  # everything refers to everything
        size = min(size, 100)
        refs = [{"$ref": f"#/$defs/d{i}"} for i in range(size)]
        return {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"anyOf": refs} for i in range(size)}}
    if kind == 2:
        return {
            "allOf": [
                {"type": "string", "pattern": f"^.*{chr(97 + i % 26)}.*$"} for i in range(min(size, 60))
            ]
        }
    if kind == 3:
        return {"enum": [f"{i}{rng.random()}" for i in range(size * 4)]}
    if kind == 4:
        return {"type": "string", "pattern": _hostile_regex(rng)[:60_000]}
    made: Any = {}
    for _ in range(min(size, 60)):
        made = {rng.choice(("items", "not", "additionalProperties")): made}
    return made


# --- regular expressions ---------------------------------------------------------------------------


def _regex(rng: Random, depth: int) -> str:
    if depth <= 0:
        return rng.choice(("a", ".", "\\d", "[^x]", "[a-zA-Z0-9_]", "\\w", "é", "\\u{1F600}", "\\s"))
    parts = [_regex(rng, depth - 1) for _ in range(rng.randint(1, 4))]
    joined = rng.choice(("", "|")).join(parts)
    count = rng.choice(("", "", "*", "+", "?", "{2}", "{1,30}", "{0,900}"))
    return f"({joined}){count}"


def _hostile_regex(rng: Random) -> str:
    size = rng.choice((50, 500, 5_000, 30_000))
    part = rng.choice(
        ("a?", "(?:a|aa)+", ".{1,1000}", "(a|b)*c", "\\p{L}+", "(x+x+)+y", ".*a.{9}", "(", "[a-z]?")
    )
    made = part * (size // len(part) + 1)
    return rng.choice(
        (made, f"({made}){{{rng.randint(2, 99)}}}", f"(.*{rng.choice('ab')}.{{{size % 40}}}c)|{made}")
    )


# --- Lark and GBNF ---------------------------------------------------------------------------------


def _lark(rng: Random) -> str:
    if rng.random() < 0.2:
        size = rng.choice((10, 200, 900))
        terminals = [f"T{i}: /{_regex(rng, 2)}/" for i in range(size)]
        return "start: (" + " | ".join(f"T{i}" for i in range(size)) + ")*\n" + "\n".join(terminals)
    names = ["start", *(f"r{i}" for i in range(rng.randint(0, 8)))]
    return "\n".join(f"{name}: {_body(rng, names, 3)}" for name in names)


def _body(rng: Random, names: list[str], depth: int) -> str:
    if depth <= 0 or rng.random() < 0.3:
        return rng.choice((rng.choice(names), f'"{rng.choice("abc,:{}")}"', f"/{_regex(rng, 1)}/", '""'))
    parts = " ".join(_body(rng, names, depth - 1) for _ in range(rng.randint(1, 3)))
    return f"({parts} | {_body(rng, names, depth - 1)}){rng.choice(('', '?', '*', '+'))}"


def _gbnf(rng: Random) -> str:
    names = ["root", *(f"r{i}" for i in range(rng.randint(0, 8)))]
    if rng.random() < 0.2:
        return "root ::= " + "(" * rng.randint(1, 300) + '"a"' + ")" * rng.randint(1, 300)
    lines = (f"{name} ::= {_gbnf_body(rng, names, 3)}" for name in names)
    return "\n".join(lines)


def _gbnf_body(rng: Random, names: list[str], depth: int) -> str:
    if depth <= 0 or rng.random() < 0.3:
        return rng.choice((rng.choice(names), f'"{rng.choice("abc")}"', "[a-z]", "[^\\n]", '"\\u00e9"', "."))
    parts = " ".join(_gbnf_body(rng, names, depth - 1) for _ in range(rng.randint(1, 3)))
    return f"({parts} | {_gbnf_body(rng, names, depth - 1)}){rng.choice(('', '?', '*', '+', '{2,5}'))}"


# --- templates and their options ------------------------------------------------------------------


def _options(rng: Random) -> dict[str, Any]:
    names = (
        "enable_thinking",
        "thinking",
        "reasoning_effort",
        "date_string",
        "messages",
        "tools",
        "self",
        "x" * 300,
    )
    return {rng.choice(names): _junk(rng) for _ in range(rng.randint(0, 4))}


def render(rng: Random) -> None:
    """Generates and renders one template. Typed errors are expected; anything else ends the process."""
    from stretto.text.templates import ChatTemplate

    pieces = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}",
        "{{ messages | tojson }}",
        "{% for i in range(100000) %}{{ i }}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{{ 'a' * 100000000 }}",
        "{{ messages[0].content | upper | replace('a', 'b' * 10000) }}",
        "{% set n = namespace(x='') %}{% for m in messages %}{% set n.x = n.x ~ m.content %}{% endfor %}",
        "{{ raise_exception('no') }}",
        "{{ strftime_now('%Y') }}",
        "{% if tools %}{{ tools[0].function.name }}{% endif %}",
        "{{ bos_token ~ eos_token }}",
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "{{ 2 ** 1000000 }}",
        "{{ '%s' % 'x' }}",
    )
    source = _mutated(rng, "".join(rng.choice(pieces) for _ in range(rng.randint(1, 4))))
    content = rng.choice(("hi", "<|im_end|>", "a" * 20_000, "\U000f0000", "{{ 1 }}"))
    try:
        template = ChatTemplate(source, bos="<s>", eos="</s>")
        template.render([{"role": "user", "content": content}] * rng.randint(1, 6))
    except StrettoError:
        pass


# --- mutation --------------------------------------------------------------------------------------


def _mutated(rng: Random, text: str) -> str:
    """Sometimes with a few characters dropped, doubled or replaced."""
    if rng.random() < 0.7 or not text:
        return text
    letters = list(text[:60_000])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(letters))
        letters[at] = rng.choice(("", letters[at] * 2, rng.choice("()[]{}|*+?\\/\"'\x00\n é")))
    return "".join(letters) or "a"


def _junk(rng: Random) -> Any:
    return rng.choice(
        (None, True, -1, 10**30, 1e308, "", "x" * 5000, [], [[[]]], {}, {"a": {"b": []}}, "\ud7ff", "a")
    )
