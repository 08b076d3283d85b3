"""What a simulation found: a violation, or counts by kind, in an order that does not change."""

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


def print_counts(tally: Tally, *, laws: Iterable[str]) -> None:
    for title, counts in (("faults", tally.faults), ("requests by outcome", tally.outcomes)):
        print(f"\n{title}:")
        for name in sorted(counts):
            print(f"  {counts[name]:>10,}  {name}")
    print("\nsometimes:")
    for law in laws:
        print(f"  {tally.sometimes[law]:>10,}  {law}")


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
