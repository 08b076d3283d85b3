"""The root of the errors, the error for bugs in Stretto, and the lookup of a class by its code."""

from __future__ import annotations


class StrettoError(Exception):
    """The root. `message` says what happened, `hint` what to do."""

    code = "internal_error"
    http_status = 500
    retryable = False
    hint = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if hint is not None:
            self.hint = hint


class InvariantError(StrettoError):
    """An invariant is broken: a bug in Stretto, never the caller's fault."""

    code = "invariant_broken"
    hint = "this is a bug in Stretto; please report it with the trace"


def _tree(root: type[StrettoError]) -> dict[str, type[StrettoError]]:
    """Codes and the classes that define them; a subclass that inherits its code is not one of them."""
    found: dict[str, type[StrettoError]] = {}
    for child in root.__subclasses__():
        found.update(_tree(child))
    found[root.code] = root
    return found


_known: dict[str, type[StrettoError]] = {}


def by_code(code: str) -> type[StrettoError]:
    """The class behind a code, as it travels in events and over the wire."""
    if code not in _known:
        _known.update(_tree(StrettoError))  # walking the tree costs more than everything else about an error
    return _known.get(code, StrettoError)


def one_line(text: str, *, chars_max: int = 240) -> str:
    """The first non-blank line, without control characters, truncated to `chars_max`."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    line = "".join(character if character.isprintable() else " " for character in line)
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"
