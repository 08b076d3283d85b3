"""The documents of the two tasks, generated here so that nothing is downloaded."""

from __future__ import annotations

from typing import Any

import datasets

CHOICES = [
    ("The capital of France is", ["Paris", "purple"], 0),
    ("Two plus two is", ["seldom", "four"], 1),
    ("The sun rises in the", ["east", "soup"], 0),
    ("Water is made of hydrogen and", ["oxygen", "trousers"], 0),
]


def choices(**_: Any) -> dict[str, datasets.Dataset]:
    rows = [{"question": question, "choices": given, "answer": right} for question, given, right in CHOICES]
    return {"test": datasets.Dataset.from_list(rows)}


def openings(**_: Any) -> dict[str, datasets.Dataset]:
    return {"test": datasets.Dataset.from_list([{"text": "Once upon a time", "answer": ""}])}
