"""Formats numbers and untrusted text for a terminal. Standard library only."""

from __future__ import annotations

LINE_CHARS_MAX = 400


def clean(text: str) -> str:
    """Replace control characters: models and file metadata must not control the terminal."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in text
    )


def one_line(text: str) -> str:
    line = clean(" ".join(text.split()))
    return line if len(line) <= LINE_CHARS_MAX else line[: LINE_CHARS_MAX - 1] + "…"


def size(count: int) -> str:
    """Bytes in decimal units, as on disks and model cards."""
    number, units = float(count), ("B", "kB", "MB", "GB", "TB", "PB")
    for unit in units:
        if number < 999.5 or unit == units[-1]:
            return f"{number:.0f} {unit}" if unit in {"B", "kB"} else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError("unreachable")


def parse_size(text: str) -> int:
    """`24GB`, `1.5GiB`: parsed like sizes in settings."""
    from pydantic import TypeAdapter, ValidationError

    from stretto.settings import SettingsError
    from stretto.settings.values import Bytes

    try:
        return int(TypeAdapter(Bytes).validate_python(text))
    except ValidationError:
        raise SettingsError(f"{text[:40]!r} is not a size", hint="write it like 24GB or 1.5GiB") from None
