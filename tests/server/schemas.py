"""A hundred JSON schemas of the kinds that people send: records, lists, choices, references, formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]


def record(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    properties = {**required, **(optional or {})}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def text(most: int, least: int = 0) -> Schema:
    return {"type": "string", "minLength": least, "maxLength": most}


def whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def listing(items: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def choice(*values: Any) -> Schema:
    return {"enum": list(values)}


def person(n: int) -> Schema:
    return record(
        {"name": text(16 + n, 1), "age": whole(0, 100 + n)},
        {"email": {"type": "string", "format": "email", "maxLength": 40}},
    )


def place(n: int) -> Schema:
    number = {"type": "number", "minimum": -180 + n, "maximum": 180 - n}
    return record({"city": text(20 + n), "latitude": number, "longitude": number})


def verdict(n: int) -> Schema:
    return record({"sentiment": choice("positive", "neutral", "negative"), "score": whole(1, 5 + n)})


def tags(n: int) -> Schema:
    return listing(choice("red", "green", "blue", "black", "white"), 1, 3 + n)


def numbers(n: int) -> Schema:
    return listing(whole(0, 10 ** (n + 1)), n + 1, n + 4)


def order(n: int) -> Schema:
    item = record(
        {"product": text(24), "count": whole(1, 9), "price": {"type": "number", "minimum": 0, "maximum": 99}}
    )
    return record({"id": whole(1, 9999), "items": listing(item, 1, 1 + n)})


def event(n: int) -> Schema:
    kind = ("date", "date-time", "time", "date")[n]
    return record({"title": text(24, 1), "when": {"type": "string", "format": kind}})


def reference(n: int) -> Schema:
    definitions = {"point": record({"x": whole(0, 9 + n), "y": whole(0, 9 + n)})}
    return record(
        {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}, **{"$defs": definitions}
    )


def either(n: int) -> Schema:
    circle = record({"kind": {"const": "circle"}, "radius": whole(1, 10 + n)})
    square = record({"kind": {"const": "square"}, "side": whole(1, 10 + n)})
    return {"anyOf": [circle, square]}


def nullable(n: int) -> Schema:
    return record({"name": {"type": ["string", "null"], "maxLength": 12 + n}, "known": {"type": "boolean"}})


def deep(n: int) -> Schema:
    schema = record({"leaf": whole(0, 9)})
    for level in range(n + 1):
        schema = record({f"level{level}": schema})
    return schema


def code(n: int) -> Schema:
    pattern = ("^[A-Z]{2}-[0-9]{4}$", "^#[0-9a-f]{6}$", "^[0-9]{3}-[0-9]{4}$", "^v[0-9]+\\.[0-9]+$")[n]
    return record({"code": {"type": "string", "pattern": pattern, "maxLength": 16}})


def settings(n: int) -> Schema:
    switches = {f"switch_{at}": {"type": "boolean"} for at in range(n + 2)}
    return record(switches, {"mode": choice("slow", "fast")})


def pair(n: int) -> Schema:
    parts = [choice("a", "b"), whole(0, 9 + n)]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": 2, "maxItems": 2}


def identity(n: int) -> Schema:
    kind = ("uuid", "ipv4", "uuid", "ipv4")[n]
    return record({"id": {"type": "string", "format": kind}, "level": whole(0, n + 1)})


def recipe(n: int) -> Schema:
    step = record({"do": text(30 + n), "minutes": whole(1, 60)})
    return record({"dish": text(20), "steps": listing(step, 1, 3), "vegan": {"type": "boolean"}})


def quiz(n: int) -> Schema:
    return record({"question": text(60 + n), "answers": listing(text(16), 2, 3), "right": whole(0, 2)})


def money(n: int) -> Schema:
    amount = {"type": "number", "exclusiveMinimum": 0, "maximum": 1000 * (n + 1)}
    return record({"amount": amount, "currency": choice("EUR", "USD", "GBP", "JPY")})


def matrix(n: int) -> Schema:
    return listing(listing(whole(0, 9), n + 1, n + 1), 2, 2)


def contact(n: int) -> Schema:
    phone = record({"type": choice("home", "work"), "digits": {"type": "string", "pattern": "^[0-9]{5,8}$"}})
    return record({"name": text(16), "phones": listing(phone, 0, 1 + n)})


def review(n: int) -> Schema:
    return record(
        {"stars": whole(1, 5), "title": text(20 + n), "text": text(80 + 10 * n)}, {"helpful": whole(0, 9)}
    )


def tree(n: int) -> Schema:
    leaf = record({"name": text(8), "children": listing(record({"name": text(8 + n)}), 0, 2)})
    return record({"root": leaf})


def extraction(n: int) -> Schema:
    entity = record({"text": text(16), "type": choice("person", "place", "thing")})
    return record({"entities": listing(entity, 0, 2 + n), "language": choice("en", "de", "fr")})


def command(n: int) -> Schema:
    move = record({"action": {"const": "move"}, "steps": whole(1, 9 + n)})
    say = record({"action": {"const": "say"}, "words": text(20)})
    return record({"commands": listing({"anyOf": [move, say]}, 1, 2)})


def free(n: int) -> Schema:
    """Long strings, and short words without any limit: whether those end is up to the model."""
    field: Schema = {"type": "string"} if n % 2 else text(120 + 40 * n)
    return record({("summary", "name", "title", "city")[n]: field, "done": {"type": "boolean"}})


FAMILIES: tuple[Callable[[int], Schema], ...] = (
    person, place, verdict, tags, numbers, order, event, reference, either, nullable, deep, code, settings,
    pair, identity, recipe, quiz, money, matrix, contact, review, tree, extraction, command, free,
)  # fmt: skip


def all_schemas() -> list[tuple[str, Schema]]:
    return [(f"{family.__name__}-{n}", family(n)) for n in range(4) for family in FAMILIES]
