"""Our WordPiece against the reference implementation, over scripts that are easy to get wrong."""

from __future__ import annotations

import itertools
import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece as ReferenceModel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from stretto.text.wordpiece import WordPiece

JAMO = [
    chr(code) for code in itertools.chain(range(0x1100, 0x1113), range(0x1161, 0x1176), range(0x11A8, 0x11C3))
]
LETTERS = [*string.ascii_lowercase, *string.digits, *"αβγδσςωабвгдёहिन्दीभाषा東京中文日本かカが", *JAMO]
WORDS = ["the", "token", "##ize", "##r", "un", "##aff", "##able", ",", ".", "!", "[", "]", "¡", "。"]
VOCABULARY = [
    "[PAD]",
    "[UNK]",
    *dict.fromkeys([*LETTERS, *WORDS, *(f"##{letter}" for letter in LETTERS), "School", "É"]),
]


def _is_settled(letter: str) -> bool:
    """Letters on which all Unicode tables agree: the reference's are older than Python's."""
    return unicodedata.category(letter) == unicodedata.ucd_3_2_0.category(letter)


SCRIPTS = st.one_of(
    st.text(
        st.sampled_from([*LETTERS, *"ABCÉÜİΣ ،、？!,.[]()\t\n\u00a0\u200b\u2028\x00\x1c\x85\ufffd한국어장다"])
    ),
    st.text(st.characters(max_codepoint=0x3000, categories=["L", "P", "Zs", "N"]).filter(_is_settled)),
)


def ours(*, lowercase: bool = True) -> WordPiece:
    pieces = {word[2:] if word.startswith("##") else f"\u2581{word}": n for n, word in enumerate(VOCABULARY)}
    return WordPiece(pieces, unknown=1, lowercase=lowercase, strip_accents=lowercase)


def reference(*, lowercase: bool = True) -> Tokenizer:
    model = ReferenceModel({word: n for n, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


@given(SCRIPTS)
def test_tokens_are_the_references(text):
    assert ours().encode(text) == reference().encode(text).ids


@given(SCRIPTS)
def test_a_cased_vocabulary_keeps_case_and_accents(text):
    assert ours(lowercase=False).encode(text) == reference(lowercase=False).encode(text).ids


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Tokenizer, unaffable!", ["token", "##ize", "##r", ",", "un", "##aff", "##able", "!"]),
        ("東京the", ["東", "京", "the"]),
        ("ÉCOLE", ["e", "##c", "##o", "##l", "##e"]),
        ("x" * 101, ["[UNK]"]),
        ("☃", ["[UNK]"]),
        ("ΣΣ", ["σ", "##σ"]),
        (" \t\n", []),
    ],
)
def test_by_hand(text, words):
    assert ours().encode(text) == [VOCABULARY.index(word) for word in words]
