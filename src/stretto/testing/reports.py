"""What a simulation found: a violation, or a file of counts by kind, in an order that does not change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol


class Violation(Exception):
    """A violated invariant; the message says how to replay it and is ready to print."""


class Tally(Protocol):
    faults: Counter[str]
    outcomes: Counter[str]
    sometimes: Counter[str]


def write_report(path: str, tally: Tally, *, laws: Iterable[str], **figures: Any) -> None:
    value = {
        **figures,
        "faults": dict(sorted(tally.faults.items())),
        "outcomes": dict(sorted(tally.outcomes.items())),
        "sometimes": {law: tally.sometimes[law] for law in laws},
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
