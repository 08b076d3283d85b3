"""What the users ask: edits of code, summaries and chat. Each number has its own prompt.

An edit is a raw completion: a class with a getter for each of its fields, then the same class under a new
name, of which the constructor and the first getter are given. A model of 135 million parameters copies the
rest in about half of the cases; in the others it leaves out or repeats a getter and goes on copying. It does
not copy code that is less regular. A larger model does: for the pair an edit is a rewrite, a chat in which a
class of this project's code is to be answered whole, under a new name. Edits are greedy. Summaries are of a
section of this project's documents, chat is about a few words; both are sampled at a temperature of 0.7,
seeded by the number: the greedy text of so small a model repeats itself, which flatters lookup.

An answer that was given before would be a perfect draft, hence the numbers. The rule is tuned on one half of
the prompts (`tuning=True`), figures are reported of the other.
"""

from __future__ import annotations

import ast
import random
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
KINDS = ("edit", "summary", "chat")
CLASS_CHARACTERS = range(900, 1500)
SECTION_CHARACTERS = range(500, 1300)
NEW_NAMES = ("New{}", "{}Record", "Simple{}")  # one after the other: a file is edited more than once
FIELDS = range(6, 10)  # of a class
WORDS = (
    "account address author balance book buffer button city client color column country customer device "
    "distance driver email engine event folder garden height image invoice item letter library limit "
    "location machine market member message module number office order owner page payment person phone "
    "picture player price product project question record region river road room score season server "
    "session signal speed station status store street student table target teacher ticket title token "
    "tower train tree vehicle version village volume wall water weather weight width window winter worker "
    "zone"
)
TOPICS = (
    "a town by the sea",
    "the first railways",
    "how bread is made",
    "the moons of Jupiter",
    "learning the violin",
    "bees and their hives",
    "old maps",
    "the desert at night",
    "building a small boat",
    "glaciers",
    "libraries",
    "the history of paper",
    "a garden in winter",
    "volcanoes",
    "the rules of chess",
    "lighthouses",
)
QUESTIONS = (
    "Tell me about {topic}. What should a beginner know?",
    "Write a short story about {topic}.",
    "What are the three most important facts about {topic}, and why?",
    "Explain {topic} to a child of eight years.",
    "Which books would you read about {topic}, and what would you look for in them?",
    "I have to give a talk about {topic}. Write its first minute.",
    "Make a list of ten questions about {topic}.",
    "What do people often get wrong about {topic}?",
)


class Prompt(NamedTuple):
    text: str
    options: dict[str, Any]  # of the request
    raw: bool = False  # continued as it is, not as a message of a chat


def prompt(kind: str, number: int, *, tuning: bool = False) -> Prompt:
    """The same one for the same number."""
    if kind == "edit":
        file, version = divmod(number, len(NEW_NAMES))
        return _edit(random.Random(f"{file} {tuning}"), NEW_NAMES[version])
    if kind == "rewrite":
        chosen, version = divmod(number, len(NEW_NAMES))
        return _rewrite(*_chosen(_classes(), chosen, tuning), NEW_NAMES[version])
    sampled = {"temperature": 0.7, "seed": number}
    if kind == "summary":
        text = _chosen(_sections(), number, tuning)
        return Prompt(f"Summarize this text in three sentences:\n\n{text}", sampled)
    return Prompt(_chosen(_questions(), number, tuning), sampled)


def _edit(choices: random.Random, new_name: str) -> Prompt:
    name, *fields = choices.sample(WORDS.split(), 1 + choices.choice(FIELDS))
    before, after = _class(name.title(), fields), _class(new_name.format(name.title()), fields)
    given = after[: after.index("\n\n", after.index("get_"))]
    text = f"```python\n{before}\n```\n\nThe same class with a new name:\n\n```python\n{given}"
    return Prompt(text, {"temperature": 0.0, "stop": ["```"]}, raw=True)


def _rewrite(name: str, code: str, new_name: str) -> Prompt:
    task = (
        f"Rename the class `{name}` to `{new_name.format(name)}`. Answer with the whole class, nothing else."
    )
    return Prompt(f"```python\n{code}\n```\n\n{task}", {"temperature": 0.0})


def _class(name: str, fields: list[str]) -> str:
    lines = [f"class {name}:", f"    def __init__(self, {', '.join(fields)}):"]
    lines += [f"        self.{field} = {field}" for field in fields]
    return "\n".join(
        lines + [f"\n    def get_{field}(self):\n        return self.{field}" for field in fields]
    )


def _chosen(items: tuple[T, ...], number: int, tuning: bool) -> T:
    some = items[int(tuning) :: 2]
    return some[number * 7 % len(some)]


@cache
def _sections() -> tuple[str, ...]:
    """Sections of the documents, without tables, lists and code."""
    found = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for section in re.split(r"^#+ .*$", path.read_text(), flags=re.MULTILINE):
            text = "\n\n".join(part for part in section.strip().split("\n\n") if part[:1].isalpha())
            if len(text) in SECTION_CHARACTERS:
                found.append(text)
    return tuple(found)


@cache
def _classes() -> tuple[tuple[str, str], ...]:
    """Classes of the project's code by name, of about 200 to 350 tokens."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        text = path.read_text()
        for node in ast.parse(text).body:
            code = ast.get_source_segment(text, node) if isinstance(node, ast.ClassDef) else None
            if isinstance(node, ast.ClassDef) and code and len(code) in CLASS_CHARACTERS:
                found.append((node.name, code))
    return tuple(found)


@cache
def _questions() -> tuple[str, ...]:
    return tuple(question.format(topic=topic) for topic, question in product(TOPICS, QUESTIONS))
