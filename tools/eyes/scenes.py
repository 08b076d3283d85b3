"""What is in a generated picture, and questions about it whose answers follow from that.

A scene is drawn from (seed, index) alone, so that a held-out set is a seed that training does not use. No
pixels here: `drawing` makes them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SIZE = 128  # pixels a side; the input size of the tower, so that llama.cpp does not resize
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "ring")
DIGIT = len(SHAPES)  # kind of a digit d: DIGIT + d
KINDS = DIGIT + 10
COLOURS = {
    "red": (210, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 210),
    "yellow": (232, 212, 50),
    "purple": (145, 60, 170),
    "orange": (240, 130, 30),
    "white": (240, 240, 240),
    "black": (22, 22, 22),
}
NAMES = tuple(COLOURS)
THINGS_MAX = 6
HELD_OUT_SEED = 1_000_003
_JITTER = 14  # of a colour's channels
_CONTRAST_MIN = 70  # largest difference of a channel between a thing and the background
_CELL = SIZE / 3

Rgb = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape or a digit at a place, with the exact colour that it is drawn in."""

    kind: int
    colour: int  # index into NAMES
    rgb: Rgb
    x: float
    y: float
    radius: float
    angle: float

    @property
    def name(self) -> str:
        return f"{NAMES[self.colour]} {SHAPES[self.kind]}"


@dataclass(frozen=True, slots=True)
class Scene:
    """Things in reading order on a background that changes from `top` to `bottom`."""

    things: tuple[Thing, ...]
    top: Rgb
    bottom: Rgb
    noise: float

    @property
    def number(self) -> str:
        """The digits of a picture that shows a number; empty for one that shows shapes."""
        return "".join(str(thing.kind - DIGIT) for thing in self.things if thing.kind >= DIGIT)


@dataclass(frozen=True, slots=True)
class Question:
    text: str
    answer: str
    topic: str  # for accuracy by topic


def scene(seed: int, index: int) -> Scene:
    """The scene of this number; the same for the same arguments, always."""
    rng = random.Random(f"scene/{seed}/{index}")
    if rng.random() < 0.3:
        things = _digits(rng)
    elif rng.random() < 0.3:
        things = (_one_shape(rng),)
    else:
        things = _several_shapes(rng)
    top, bottom = _background(rng, things)
    return Scene(things, top, bottom, rng.uniform(0, 8))


def questions(scene: Scene, rng: random.Random) -> list[Question]:
    """Everything that can be asked about a scene, in random order."""
    asked = [
        Question("Describe the picture.", description(scene), "description"),
        Question("What is in the picture?", description(scene), "description"),
    ]
    asked += _about_number(scene) if scene.number else _about_shapes(scene, rng)
    rng.shuffle(asked)
    return asked


def question(seed: int, index: int) -> tuple[Scene, Question]:
    """A scene with one question, every topic equally often."""
    about = scene(seed, index)
    by_topic: dict[str, list[Question]] = {}
    rng = random.Random(f"question/{seed}/{index}")
    for item in questions(about, rng):
        by_topic.setdefault(item.topic, []).append(item)
    return about, by_topic[rng.choice(sorted(by_topic))][0]


def description(scene: Scene) -> str:
    if scene.number:
        return f"{NAMES[scene.things[0].colour]} number {scene.number}"
    return ", ".join(thing.name for thing in scene.things)


def _about_number(scene: Scene) -> list[Question]:
    return [
        Question("Read the number.", scene.number, "number"),
        Question("Which number is it?", scene.number, "number"),
        Question("What colour is the number?", NAMES[scene.things[0].colour], "colour"),
    ]


def _about_shapes(scene: Scene, rng: random.Random) -> list[Question]:
    shapes = [thing.kind for thing in scene.things]
    colours = [thing.colour for thing in scene.things]
    asked = [Question("How many shapes are there?", str(len(shapes)), "count")]
    for shape in {rng.choice(shapes): None, rng.randrange(len(SHAPES)): None}:
        text = f"How many {_plural(SHAPES[shape])} are there?"
        asked.append(Question(text, str(shapes.count(shape)), "count of a shape"))
    for colour in {rng.choice(colours): None, rng.randrange(len(NAMES)): None}:
        text = f"How many {NAMES[colour]} shapes are there?"
        asked.append(Question(text, str(colours.count(colour)), "count of a colour"))
    for thing in scene.things:
        if shapes.count(thing.kind) == 1:
            text = f"What colour is the {SHAPES[thing.kind]}?"
            asked.append(Question(text, NAMES[thing.colour], "colour"))
        if colours.count(thing.colour) == 1:
            text = f"Which shape is {NAMES[thing.colour]}?"
            asked.append(Question(text, SHAPES[thing.kind], "shape"))
    return asked


def _plural(shape: str) -> str:
    return f"{shape}es" if shape == "cross" else f"{shape}s"


def _one_shape(rng: random.Random) -> Thing:
    radius = rng.uniform(11, 44)
    colour = rng.randrange(len(NAMES))
    return Thing(
        rng.randrange(len(SHAPES)),
        colour,
        _shade(rng, colour),
        rng.uniform(radius + 3, SIZE - radius - 3),
        rng.uniform(radius + 3, SIZE - radius - 3),
        radius,
        rng.uniform(-0.2, 0.2),
    )


def _several_shapes(rng: random.Random) -> tuple[Thing, ...]:
    """Two to six, each in its own cell of a 3 x 3 grid, so that reading order is clear."""
    things = []
    for cell in sorted(rng.sample(range(9), rng.randint(2, THINGS_MAX))):
        radius = rng.uniform(9.5, 17)
        colour = rng.randrange(len(NAMES))
        room = 18.5 - radius
        x = (cell % 3 + 0.5) * _CELL + rng.uniform(-room, room)
        y = (cell // 3 + 0.5) * _CELL + rng.uniform(-room, room)
        shape = rng.randrange(len(SHAPES))
        things.append(Thing(shape, colour, _shade(rng, colour), x, y, radius, rng.uniform(-0.2, 0.2)))
    return tuple(things)


def _digits(rng: random.Random) -> tuple[Thing, ...]:
    """One to four digits of one colour and size side by side; a digit is 10/7 of its radius wide."""
    count = rng.randint(1, 4)
    colour = rng.randrange(len(NAMES))
    rgb = _shade(rng, colour)
    radius = rng.uniform(11, min(40, (SIZE - 8) / (count * 1.7)))
    step = radius * 1.7
    half = step * count / 2
    left = rng.uniform(half + 2, SIZE - half - 2) - half
    y = rng.uniform(radius + 3, SIZE - radius - 3)
    angle = rng.uniform(-0.08, 0.08)
    return tuple(
        Thing(DIGIT + rng.randrange(10), colour, rgb, left + step * (place + 0.5), y, radius, angle)
        for place in range(count)
    )


def _shade(rng: random.Random, colour: int) -> Rgb:
    red, green, blue = (
        min(255, max(0, channel + rng.randint(-_JITTER, _JITTER))) for channel in COLOURS[NAMES[colour]]
    )
    return red, green, blue


def _background(rng: random.Random, things: tuple[Thing, ...]) -> tuple[Rgb, Rgb]:
    """Two dull colours that stand out from everything in the picture."""
    while True:
        ends = [_dull(rng), _dull(rng)]
        apart = (
            max(abs(one - other) for one, other in zip(thing.rgb, end, strict=True)) >= _CONTRAST_MIN
            for thing in things
            for end in ends
        )
        if all(apart):
            return ends[0], ends[1]


def _dull(rng: random.Random) -> Rgb:
    level = rng.randint(70, 195)
    return level + rng.randint(-18, 18), level + rng.randint(-18, 18), level + rng.randint(-18, 18)
