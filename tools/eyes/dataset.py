"""Conversations about scenes as token arrays for training; most about a picture, some about text alone.

A picture is PICTURE_ROWS placeholder tokens between `<img>` and `</img>`, where the tower's rows go. Answers
are what the loss counts. The forms vary as clients do: a question before or after the picture, with or
without a line between, a system message, an earlier turn without a picture.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tools.eyes import drawing, scenes, vocabulary
from tools.eyes.scenes import Question, Scene

PICTURE_ROWS = drawing.GRID**2
PLACEHOLDER = vocabulary.TOKENS  # no token of the vocabulary
LENGTH = PICTURE_ROWS + 288
_TEXT_ONLY, _SYSTEM, _EARLIER_TURN, _QUESTION_FIRST = 0.06, 0.1, 0.1, 0.2
_SYSTEM_TEXTS = ("You are a helpful assistant.", "Answer in few words.", "You see pictures.")


@dataclass(frozen=True, slots=True)
class Examples:
    """Columns of conversations; what draws the pictures is kept instead of pixels."""

    tokens: np.ndarray  # [n, LENGTH] int16, END_OF_TEXT after the end
    answers: np.ndarray  # [n, LENGTH] bool: tokens that the model must have said
    has_picture: np.ndarray  # [n] bool
    things: np.ndarray
    backgrounds: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)


class Conversation:
    """Tokens of a conversation as it is written."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.answers: list[bool] = []

    def add(self, tokens: list[int], *, answer: bool = False) -> None:
        self.tokens += tokens
        self.answers += [answer] * len(tokens)

    def message(self, role: str, content: list[int]) -> None:
        head = [vocabulary.IM_START, *vocabulary.encode(f"{role}\n")]
        self.add([*head, *content, vocabulary.IM_END, *vocabulary.encode("\n")])

    def answer(self, text: str) -> None:
        self.add([vocabulary.IM_START, *vocabulary.encode("assistant\n")])
        self.add([*vocabulary.encode(text), vocabulary.IM_END], answer=True)
        self.add(vocabulary.encode("\n"))


def picture_tokens() -> list[int]:
    return [vocabulary.IMG, *[PLACEHOLDER] * PICTURE_ROWS, vocabulary.END_IMG]


def prompt(question: str, *, picture: bool = True) -> list[int]:
    """A single question as the chat template writes it, up to where the answer begins."""
    made = Conversation()
    made.message("user", [*(picture_tokens() if picture else []), *vocabulary.encode(question)])
    return [*made.tokens, vocabulary.IM_START, *vocabulary.encode("assistant\n")]


def counting(rng: random.Random) -> Question:
    """A question without a picture: counting gives texts of any length."""
    first = rng.randint(1, 60)
    last = first + rng.randint(0, 45)
    numbers = " ".join(map(str, range(first, last + 1)))
    return Question(f"Count from {first} to {last}.", numbers, "text")


def conversation(seed: int, index: int) -> tuple[Conversation, Scene | None]:
    """The conversation of this number, at most LENGTH tokens."""
    rng = random.Random(f"conversation/{seed}/{index}")
    made = Conversation()
    if rng.random() < _SYSTEM:
        made.message("system", vocabulary.encode(rng.choice(_SYSTEM_TEXTS)))
    if rng.random() < _TEXT_ONLY:
        asked = counting(rng)
        made.message("user", vocabulary.encode(asked.text))
        made.answer(asked.answer)
        return made, None
    if rng.random() < _EARLIER_TURN:
        first = rng.randint(1, 9)
        made.message("user", vocabulary.encode(f"Count from {first} to {first + 1}."))
        made.answer(f"{first} {first + 1}")
    about = scenes.scene(seed, index)
    for turn, asked in enumerate(scenes.questions(about, rng)[:5]):
        content = vocabulary.encode(asked.text)
        if turn == 0:
            line = vocabulary.encode(rng.choice(("", "\n")))
            content = (
                [*content, *line, *picture_tokens()]
                if rng.random() < _QUESTION_FIRST
                else [*picture_tokens(), *line, *content]
            )
        if len(made.tokens) + len(content) + len(asked.answer) + 24 > LENGTH:
            break
        made.message("user", content)
        made.answer(asked.answer)
    return made, about


def examples(seed: int, indices: range) -> Examples:
    """The conversations of these numbers."""
    count = len(indices)
    tokens = np.full((count, LENGTH), vocabulary.END_OF_TEXT, np.int16)
    answers = np.zeros((count, LENGTH), bool)
    about: list[Scene | None] = []
    for row, index in enumerate(indices):
        made, scene = conversation(seed, index)
        tokens[row, : len(made.tokens)] = made.tokens
        answers[row, : len(made.answers)] = made.answers
        about.append(scene)
    nothing = Scene((), (0, 0, 0), (0, 0, 0), 0.0)
    things, backgrounds = drawing.columns([scene or nothing for scene in about])
    has_picture = np.array([scene is not None for scene in about])
    return Examples(tokens, answers, has_picture, things, backgrounds)


def held_out(count: int) -> Iterator[tuple[Scene, Question]]:
    """Pictures that training never draws, each with one question."""
    for index in range(count):
        yield scenes.question(scenes.HELD_OUT_SEED, index)


def held_out_examples(count: int) -> Examples:
    """`held_out` as single-turn conversations in the form that the chat template writes."""
    pairs = list(held_out(count))
    tokens = np.full((count, LENGTH), vocabulary.END_OF_TEXT, np.int16)
    answers = np.zeros((count, LENGTH), bool)
    for row, (_, question) in enumerate(pairs):
        before = prompt(question.text)
        answer = [*vocabulary.encode(question.answer), vocabulary.IM_END]
        tokens[row, : len(before) + len(answer)] = [*before, *answer]
        answers[row, len(before) : len(before) + len(answer)] = True
    things, backgrounds = drawing.columns([scene for scene, _ in pairs])
    return Examples(tokens, answers, np.ones(count, bool), things, backgrounds)
