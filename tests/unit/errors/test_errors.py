"""Errors: the drawn tree matches the classes, the package exports all of them, and codes are unique."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stretto import errors
from stretto.backends.sampling.sampler import BadLogits
from stretto.errors import StrettoError, by_code, one_line


def descendants(root: type[StrettoError]) -> Iterator[type[StrettoError]]:
    """Of the package itself: tests may define subclasses of their own."""
    for child in root.__subclasses__():
        if child.__module__.startswith("stretto.errors."):
            yield child
            yield from descendants(child)


def drawn() -> dict[str, str]:
    """Class to parent, as the docstring draws them: four columns of indentation a level."""
    path: list[str] = []
    parents = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│ ]*)[├└]── (\w+)", line)
        if found:
            depth = len(found[1]) // 4
            parents[found[2]] = path[depth - 1] if depth else "StrettoError"
            path[depth:] = [found[2]]
    return parents


def test_the_drawn_tree_is_the_class_tree():
    assert drawn() == {child.__name__: child.__bases__[0].__name__ for child in descendants(StrettoError)}


def test_every_class_is_exported():
    for child in descendants(StrettoError):
        assert getattr(errors, child.__name__) is child
        assert child.__name__ in errors.__all__


def test_codes_are_unique_and_lead_back_to_their_class():
    classes = [StrettoError, *descendants(StrettoError)]
    assert len({child.code for child in classes}) == len(classes)
    assert all(by_code(child.code) is child for child in classes)


def test_a_code_leads_to_the_class_that_defines_it_and_not_to_one_that_inherits_it():
    assert BadLogits.code == errors.BadOutputError.code
    assert by_code(BadLogits.code) is errors.BadOutputError


def test_an_unknown_code_is_a_plain_error():
    assert by_code("from_a_newer_version") is StrettoError


def test_a_message_is_reduced_to_one_printable_line():
    assert one_line("\n\n  first\x1b[0m part \nsecond") == "first [0m part"
    assert one_line("x" * 300, chars_max=10) == "x" * 9 + "…"
