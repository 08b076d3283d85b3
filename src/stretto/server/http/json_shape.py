"""Size and nesting depth of a JSON text, determined from its bytes before parsing.

Parsing and validating block the event loop and cost about a microsecond per string and less per other value:
their number is limited, so that the largest body costs tens of milliseconds. Works on the brackets and commas
outside strings, extracted with a handful of scans in C.
"""

from __future__ import annotations

from stretto.errors import InvalidJsonError

STRINGS_MAX = 1 << 16  # including keys
CONTAINERS_MAX = 1 << 15  # objects and lists
VALUES_MAX = 1 << 18  # long lists of token ids
LARGE_BYTES = 4 << 20  # larger bodies are for pictures and sounds, whose base64 has no structure
LARGE_MARKS_MAX = 1 << 17  # quotes, brackets and backslashes of such a body
_OUTSIDE_STRUCTURE = bytes(sorted(set(range(256)) - set(b'[]{},"')))
_OUTSIDE_BRACKETS = bytes(sorted(set(range(256)) - set(b'[]{}"')))
_OPENING = {ord("]"): ord("["), ord("}"): ord("{")}


def check_shape(body: bytes, nesting_max: int) -> None:
    """Raises InvalidJsonError if a body has too many values or is nested too deeply."""
    if len(body) > LARGE_BYTES and sum(map(body.count, (b'"', b"\\", b"[", b"{"))) > LARGE_MARKS_MAX:
        raise InvalidJsonError(
            f"the body has more than {LARGE_BYTES:,} bytes and more than {LARGE_MARKS_MAX:,} quotes, "
            "brackets and backslashes",
            hint="send less text in one request",
        )
    if _may_be_wide(body):
        _check_width(body)
    if nesting(body, nesting_max) > nesting_max:
        raise InvalidJsonError(f"the body nests deeper than {nesting_max} levels")


def _may_be_wide(body: bytes) -> bool:
    """Fast pre-check; may be true for texts with many commas or brackets in strings."""
    if len(body) <= STRINGS_MAX:
        return False
    containers = body.count(b"{") + body.count(b"[")
    return body.count(b'"') > 2 * STRINGS_MAX or containers > CONTAINERS_MAX or body.count(b",") > VALUES_MAX


def _check_width(body: bytes) -> None:
    plain = _without_escapes(body).translate(None, _OUTSIDE_STRUCTURE)
    if plain.count(b'"') > 2 * STRINGS_MAX:
        raise _too_many(STRINGS_MAX, "strings and keys")
    structure = _without_strings(plain)
    if structure.count(b"{") + structure.count(b"[") > CONTAINERS_MAX:
        raise _too_many(CONTAINERS_MAX, "objects and lists")
    if structure.count(b",") > VALUES_MAX:
        raise _too_many(VALUES_MAX, "values")


def _too_many(count: int, what: str) -> InvalidJsonError:
    return InvalidJsonError(f"the body has more than {count:,} {what}", hint="send fewer in one request")


def _without_escapes(body: bytes) -> bytes:
    return body.replace(b"\\\\", b"").replace(b'\\"', b"")


def _without_strings(plain: bytes) -> bytes:
    """Every second part between quotes is outside a string. Adjacent quotes are an empty string."""
    return b"".join(plain.replace(b'""', b"").split(b'"')[::2])


def nesting(body: bytes, enough: int) -> int:
    """Nesting depth of a JSON text; stops above `enough`, or where the text is not valid JSON.

    Removes matching pairs from the inside out, so that four megabytes of brackets cost milliseconds.
    """
    if body.count(b"[") + body.count(b"{") <= enough:
        return 0
    plain = _without_escapes(body).translate(None, _OUTSIDE_BRACKETS)
    brackets = _without_strings(plain)
    depth = 0
    while brackets and depth <= enough:
        peeled = _peel(brackets)
        if len(peeled) == len(brackets):
            return depth + _open_depth(brackets, enough)
        brackets = peeled
        depth += 1
    return depth


def _peel(brackets: bytes) -> bytes:
    """Without its innermost pairs. A marker lets `[` and `{` pairs of one level go in one step."""
    return brackets.replace(b"[]", b" ").replace(b"{}", b" ").replace(b" ", b"")


def _open_depth(brackets: bytes, enough: int) -> int:
    """Depth of the rest without pairs: unclosed brackets, up to the first mismatch."""
    stack: list[int] = []
    deepest = 0
    for bracket in brackets:
        if bracket in _OPENING:
            if not stack or stack.pop() != _OPENING[bracket]:
                break
        else:
            stack.append(bracket)
            deepest = max(deepest, len(stack))
            if deepest > enough:
                break
    return deepest
