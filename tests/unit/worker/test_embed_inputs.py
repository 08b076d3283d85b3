"""From what callers send to tokens: marks, cuts and refusals, over a vocabulary of letters."""

from __future__ import annotations

import pytest

from stretto.backends.simulated.text import SpellingTokenizer
from stretto.errors import EmptyPromptError, InvalidRequestError, InvalidTokenError, PromptTooLongError
from stretto.worker.embed_inputs import Frame, InputReader

CLS, SEP = 300, 301
TOKENIZER = SpellingTokenizer()


def spelled(text: str) -> list[int]:
    return TOKENIZER.encode(text, False)


def reader(window: int = 10, inputs_max: int = 4, **frame) -> InputReader:
    marks = Frame(before=(CLS,), after=(SEP,), between=(SEP,), **frame)
    return InputReader(TOKENIZER, marks, window=window, inputs_max=inputs_max)


def test_text_gets_the_models_marks_and_token_ids_do_not():
    assert reader().texts(["abc", [7, 8]], "") == [[CLS, *spelled("abc"), SEP], [7, 8]]


def test_a_cut_keeps_the_marks():
    text = "abcdefghijkl"
    assert reader(window=6).texts([text], "right") == [[CLS, *spelled("abcd"), SEP]]
    assert reader(window=6).texts([text], "left") == [[CLS, *spelled("ijkl"), SEP]]
    assert reader(window=3).texts([[1, 2, 3, 4]], "left") == [[2, 3, 4]]


def test_a_pair_keeps_its_query():
    pair = [CLS, *spelled("ab"), SEP, *spelled("cd"), SEP]
    assert reader().pairs("ab", ["cd"], "") == [pair]
    assert reader(window=7).pairs("ab", ["cdefg"], "right") == [pair]
    with pytest.raises(PromptTooLongError, match="document 0 has 13 tokens, the model's maximum is 10"):
        reader().pairs("abcdefgh", ["cd"], "")
    with pytest.raises(PromptTooLongError):
        reader(window=5).pairs("abcdefgh", ["cd"], "right")


def test_a_files_own_template_takes_the_place_of_marks():
    made = reader(window=40, rerank_template="Q:{query} D:{document}!").pairs("ab", ["cd", "{query}"], "")
    assert made == [spelled("Q:ab D:cd!"), spelled("Q:ab D:{query}!")]
    cut = reader(window=9, rerank_template="Q:{query} D:{document}!").pairs("ab", ["cdefgh"], "right")
    assert cut == [spelled("Q:ab D:c!")]
    with pytest.raises(PromptTooLongError, match=r"15 tokens.*9"):
        reader(window=9, rerank_template="Q:{query} D:{document}!").pairs("ab", ["cdefghi"], "")


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ([], EmptyPromptError),
        ([""], EmptyPromptError),
        ([[]], EmptyPromptError),
        (["a"] * 5, InvalidRequestError),
        ([[512]], InvalidTokenError),
        ([[-1]], InvalidTokenError),
        ([[True]], InvalidTokenError),
        ([["a"]], InvalidTokenError),
        ([3.5], InvalidRequestError),
        ([b"ab"], InvalidRequestError),
        (["abcdefghi"], PromptTooLongError),
    ],
)
def test_refusals(inputs, kind):
    with pytest.raises(kind) as caught:
        reader().texts(inputs, "")
    assert caught.value.http_status == 400


def test_an_unknown_cut_is_refused():
    with pytest.raises(InvalidRequestError, match="left or right"):
        reader().texts(["a"], "middle")
