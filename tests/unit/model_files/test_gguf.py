"""The header reader: valid files are read, all others raise a one-line error."""

from __future__ import annotations

import os
import struct
import time

import gguf as reference
import pytest

from stretto.errors import (
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    NotGgufError,
    TruncatedModelError,
    UnsupportedModelError,
)
from stretto.model_files import gguf, tensor_types
from stretto.testing.tiny_models import key_value

ARCH = key_value("general.architecture", "llama")


def info(name, dims=(32,), kind=0, offset=0):
    raw = name.encode()
    return (
        struct.pack("<Q", len(raw)) + raw + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    )


def array(key, kind, count, body):
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<IIQ", 9, kind, count) + body


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def refused(path, error, *words):
    with pytest.raises(error) as caught:
        gguf.read(path)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    for word in words:
        assert word in caught.value.message


def test_smollm2_header_is_read_quickly_and_correctly(smollm2):
    started = time.thread_time()
    file = gguf.read(smollm2)
    assert time.thread_time() - started < 0.5
    assert file.architecture == "llama"
    assert file.metadata["llama.block_count"] == 30
    assert file.vocabulary_size == 49_152
    assert file.template is not None
    assert file.template.startswith("{% for message in messages %}")
    assert file.identity.size == smollm2.stat().st_size
    assert file.metadata["tokenizer.ggml.tokens"].read()[:3] == (
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
    )
    assert set(file.metadata["tokenizer.ggml.token_type"].read()) <= {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize("kind", ["dense", "reranker"])
def test_agrees_with_the_reference_reader_on_tensors(tiny, kind):
    path = tiny(kind)
    ours, theirs = gguf.read(path), reference.GGUFReader(path)
    assert [t.name for t in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.dims == tuple(tensor.shape)
        assert mine.size == tensor.n_bytes
        assert ours.data_start + mine.offset == tensor.data_offset


def test_type_table_equals_gguf_py_except_q8_1():
    for number, (elements, size) in reference.GGML_QUANT_SIZES.items():
        ours = tensor_types.BY_NUMBER[int(number)]
        expected = 36 if number.name == "Q8_1" else size
        assert (ours.name, ours.block_elements, ours.block_bytes) == (number.name.lower(), elements, expected)
    assert tensor_types.row_bytes(tensor_types.BY_NAME["q8_0"], 128) == 136


def test_a_small_file(build):
    file = gguf.read(
        build([ARCH, key_value("x.y", [1, 2, 3]), key_value("x.f", 0.5), key_value("x.b", True)])
    )
    assert file.metadata["x.y"] == (1, 2, 3)
    assert file.metadata["x.f"] == 0.5
    assert file.metadata["x.b"] is True
    assert file.weights_bytes == 128
    assert gguf.read(build(version=2)).version == 2


def test_missing_directory_pipe_and_unreadable(tmp_path):
    refused(tmp_path / "none.gguf", ModelNotFoundError, "no such file")
    refused(tmp_path, NotGgufError, "directory")
    os.mkfifo(tmp_path / "pipe.gguf")
    refused(tmp_path / "pipe.gguf", NotGgufError, "regular")
    refused("bad\0name.gguf", ModelNotFoundError)


def test_other_files(tmp_path, build):
    text = tmp_path / "text.gguf"
    text.write_text("This is a letter, not a model.\n")
    refused(text, NotGgufError, "not a GGUF")
    text.write_bytes(b"")
    refused(text, NotGgufError)
    text.write_bytes(b"GGUF\3")
    refused(text, TruncatedModelError)
    refused(build(version=1), UnsupportedModelError, "version 1")
    refused(build(version=4), UnsupportedModelError, "version 4")
    refused(build(version=3 << 24), UnsupportedModelError, "big-endian")
    refused(build(magic=b"FUGG"), UnsupportedModelError, "big-endian")


@pytest.mark.parametrize("counts", [(1 << 40, 1), (1, 1 << 40), (2**64 - 1, 2**64 - 1), (65_537, 1)])
def test_absurd_counts(build, counts):
    refused(build(counts=counts), ModelFileError, "claims")


def test_counts_beyond_the_file(build):
    refused(build(counts=(1, 60_000)), ModelFileError)
    refused(build(counts=(60_000, 1), data=0), ModelFileError)


def test_every_truncation_of_a_valid_file_is_rejected(build):
    path = build([ARCH, key_value("a.names", ["x", "y"]), key_value("a.n", 3)])
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(path, ModelFileError)


def test_truncated_model(tiny, tmp_path):
    whole = tiny("embedding").read_bytes()
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(whole[: len(whole) // 2])
    refused(truncated, TruncatedModelError, "the file at")


@pytest.mark.parametrize(
    ("tensors", "error", "word"),
    [
        ([info("a", offset=64)], TruncatedModelError, "ends at byte"),
        ([info("a", offset=2**63 - 32)], TruncatedModelError, "ends at byte"),
        ([info("a", offset=2**64 - 32)], TruncatedModelError, "ends at byte"),
        ([info("a", offset=8)], ModelFileError, "aligned"),
        ([info("a", (16,)), info("b", (16,), offset=32)], ModelFileError, "overlaps"),
        ([info("a", (8,)), info("a", (8,), offset=32)], ModelFileError, "twice"),
        ([info("a", (2**40, 2**40, 2**40))], ModelFileError, "absurd"),
        ([info("a", (2**63, 2))], ModelFileError, "absurd"),
        ([info("a", (0, 4))], ModelFileError, "absurd"),
        ([info("a", (32, 0))], ModelFileError, "absurd"),
        ([info("a", ())], ModelFileError, "dimensions"),
        ([info("a", (1, 1, 1, 1, 1))], ModelFileError, "dimensions"),
        ([info("a", (33,), kind=8)], ModelFileError, "blocks"),
        ([info("a", kind=4)], UnsupportedModelError, "unknown type 4"),
        ([info("a", kind=2**32 - 1)], UnsupportedModelError, "unknown type"),
        ([info("n" * 64)], ModelFileError, "longer than 63"),
        ([info("")], ModelFileError, "tensor name"),
        ([info("a\nb")], ModelFileError, "tensor name"),
    ],
)
def test_hostile_tensor_tables(build, tensors, error, word):
    refused(build(tensors=tensors), error, word)


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ([], "architecture"),
        ([key_value("general.architecture", "")], "architecture"),
        ([key_value("general.architecture", 3)], "architecture"),
        ([key_value("general.architecture", "a\nb")], "architecture"),
        ([ARCH, ARCH], "twice"),
        ([ARCH, key_value("bad key", 1)], "key name"),
        ([ARCH, key_value("", 1)], "key name"),
        ([ARCH, key_value("k" * 1_025, 1)], "longer than"),
        ([ARCH, key_value("general.alignment", 0)], "alignment"),
        ([ARCH, key_value("general.alignment", 48)], "alignment"),
        ([ARCH, key_value("general.alignment", 1 << 30)], "alignment"),
        ([ARCH, key_value("general.alignment", "32")], "alignment"),
        ([ARCH, key_value("tokenizer.chat_template", "x" * ((1 << 20) + 1))], "longer than"),
        ([ARCH, array("a.a", 4, 1 << 40, b"")], "claims"),
        ([ARCH, array("a.a", 9, 1, b"\0" * 32)], "unknown type 9"),
        ([ARCH, array("a.a", 8, 1, struct.pack("<Q", 2**64 - 1))], "string of"),
        ([ARCH, array("a.a", 7, 2, b"\1\2")], "boolean"),
        ([ARCH, struct.pack("<Q", 1) + b"b" + struct.pack("<IB", 7, 9)], "boolean"),
        ([ARCH, struct.pack("<Q", 1) + b"b" + struct.pack("<I", 99)], "unknown value type 99"),
        ([ARCH, struct.pack("<Q", 1) + b"b" + struct.pack("<IQ", 8, 1 << 60)], "longer than"),
        ([ARCH, key_value("tokenizer.ggml.tokens", "no")], "not an array"),
        ([ARCH, key_value("tokenizer.ggml.tokens", [1, 2])], "wrong type"),
        (
            [
                ARCH,
                key_value("tokenizer.ggml.tokens", ["a", "b"]),
                key_value("tokenizer.ggml.token_type", [1]),
            ],
            "1 items for 2 tokens",
        ),
        ([ARCH, key_value("tokenizer.ggml.scores", [1])], "1 items for 0 tokens"),
    ],
)
def test_hostile_keys(build, keys, word):
    refused(build(keys), ModelFileError, word)


def test_a_long_array_is_read_on_demand(build):
    path = build([ARCH, array("a.many", 8, 5_000, string("word") * 5_000)])
    many = gguf.read(path).metadata["a.many"]
    assert isinstance(many, gguf.LazyArray)
    assert len(many) == 5_000
    assert many.read() == ("word",) * 5_000
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelError, match="changed"):
        many.read()


def test_identity_tells_files_apart(build):
    path = build()
    before = gguf.read(path).identity
    assert gguf.read(path).identity == before
    os.utime(path, ns=(1, 1))
    assert gguf.read(path).identity != before
