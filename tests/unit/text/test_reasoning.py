"""Reasoning and answer are separated however the text is split."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.text.reasoning import ReasoningSplitter, Tags, opened_by_prompt, tags_for


def run(pieces: list[str], *, opened: bool = False, tags: Tags | None = None) -> tuple[str, str]:
    splitter = ReasoningSplitter(tags or Tags(), opened=opened)
    parts = [splitter.push(piece) for piece in pieces] + [splitter.flush()]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


CASES = [
    ("<think>\nhm\n</think>\n\nyes", False, ("hm", "yes")),
    ("  <think>hm</think>yes", False, ("hm", "yes")),
    ("yes", False, ("", "yes")),
    ("  yes", False, ("", "  yes")),
    ("yes <think>no</think>", False, ("", "yes <think>no</think>")),
    ("\nhm</think> yes", True, ("hm", "yes")),
    ("hm", True, ("hm", "")),
    ("<think>hm", False, ("hm", "")),
    ("<thi", False, ("", "<thi")),
    ("<think>a</thin b", False, ("a</thin b", "")),
    ("<think></think>yes", False, ("", "yes")),
    ("<think>a\n\nb</think>c\nd </think>", False, ("a\n\nb", "c\nd </think>")),
    ("", False, ("", "")),
]


@pytest.mark.parametrize(("text", "opened", "wanted"), CASES)
@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_examples(text: str, opened: bool, wanted: tuple[str, str], step: int) -> None:
    assert run([text[start : start + step] for start in range(0, len(text), step)], opened=opened) == wanted


@settings(deadline=None)
@given(
    pieces=st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", "\n", " ", "a"])),
    opened=st.booleans(),
)
def test_the_cut_does_not_matter(pieces: list[str], opened: bool) -> None:
    assert (
        run(pieces, opened=opened)
        == run(["".join(pieces)], opened=opened)
        == run(list("".join(pieces)), opened=opened)
    )


def test_other_tags() -> None:
    tags = tags_for("… [THINK]{{ x }}[/THINK]")
    assert tags == Tags("[THINK]", "[/THINK]")
    assert run(["[THINK]a[/THINK]b"], tags=tags) == ("a", "b")
    assert tags_for("nothing of the kind") is None


def test_a_template_may_open_the_reasoning() -> None:
    assert opened_by_prompt("<|Assistant|><think>\n")
    assert not opened_by_prompt("<|Assistant|><think>\n\n</think>\n\n")
    assert not opened_by_prompt("<|im_start|>assistant\n")


@pytest.mark.parametrize("piece", ["\n", " ", "<", "</think", "a"])
@pytest.mark.parametrize("opened", [True, False])
def test_endless_output_is_processed_in_bounded_memory_and_time(piece: str, opened: bool) -> None:
    started = time.thread_time()
    run([piece] * 50_000, opened=opened)
    assert time.thread_time() - started < 1.5
