from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from stretto.server.openai.prompts import prompts


class Subject(BaseModel):
    prompt: prompts(items_max=3, empty_text=False)  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3, 4, 5], [[1, 2, 3, 4, 5]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([0], [[0]]),
        ("\x00", ["\x00"]),
    ],
)
def test_prompts_become_a_list(sent: Any, found: Any) -> None:
    assert Subject(prompt=sent).prompt == found


@pytest.mark.parametrize(
    "sent", ["", [], [[]], [1, "a"], [True], [[1], 2], ["a"] * 4, [[1]] * 4, [1.0], None]
)
def test_invalid_prompts(sent: Any) -> None:
    with pytest.raises(ValidationError):
        Subject(prompt=sent)
