"""The tokenizer: one token a byte and a few special ones, in the form that llama.cpp calls gpt2; ChatML.

Bytes have the numbers 0 to 255. There is one merge, of two bytes that no UTF-8 text contains, because
llama.cpp does not load a vocabulary of this form without any.
"""

from __future__ import annotations

IM_START, IM_END, IMG, END_IMG, END_OF_TEXT = range(256, 261)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<img>", "</img>", "<|endoftext|>")
UNUSED_PAIR = (0xFE, 0xFF)
TOKENS = 256 + len(SPECIAL) + 1

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def encode(text: str) -> list[int]:
    """Token ids of a text without special tokens."""
    return list(text.encode())


def byte_names() -> list[str]:
    """The printable character that stands for each byte in vocabularies of the gpt2 form."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    names, spare = [], 256
    for byte in range(256):
        if byte in printable:
            names.append(chr(byte))
        else:
            names.append(chr(spare))
            spare += 1
    return names


def token_names() -> list[str]:
    """Every token of the vocabulary, in the order of its number."""
    names = byte_names()
    return [*names, *SPECIAL, "".join(names[byte] for byte in UNUSED_PAIR)]


def merges() -> list[str]:
    names = byte_names()
    return [" ".join(names[byte] for byte in UNUSED_PAIR)]
