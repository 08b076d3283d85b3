"""What the users ask: code edits (the answer repeats most of the prompt), summaries and chat.

Prompts are numbered: an answer that was given before would be a perfect draft.
"""

from __future__ import annotations

CODE = """def mean(values):
    total = 0
    for value in values:
        total = total + value
    return total / len(values)


def variance(values):
    center = mean(values)
    total = 0
    for value in values:
        total = total + (value - center) ** 2
    return total / len(values)
"""
TEXT = (
    "The harbour of the town was built in 1820, when ships brought wool and salt. The railway came in 1871, "
    "and the ships went elsewhere. Today the harbour is a museum, and the museum has a hundred thousand "
    "visitors a year, most of them in summer. "
)
PROMPTS = {
    "edit": "Repeat this file unchanged, but call the function variance spread. File number {at}:\n" + CODE,
    "summary": "Summarize this text in three sentences, for reader {at}:\n" + TEXT * 2,
    "chat": "I am visitor number {at}. Tell me about a town by the sea, its harbour and its people.",
}


def prompt(kind: str, at: int) -> str:
    return PROMPTS[kind].format(at=at)
