"""The generated pictures, their questions, the tokenizer and the files of the model that sees."""

from __future__ import annotations

import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from tools.eyes import dataset, drawing, scenes, vocabulary
from tools.eyes.scenes import Scene, Thing

MODELS = Path(__file__).resolve().parents[2] / "models"


def red_circle() -> Scene:
    return Scene((Thing(0, 0, (210, 40, 40), 64, 64, 30, 0.0),), (90, 90, 90), (90, 90, 90), 0.0)


def test_a_scene_depends_on_seed_and_number_alone() -> None:
    assert scenes.scene(1, 5) == scenes.scene(1, 5)
    assert scenes.scene(1, 5) != scenes.scene(2, 5)
    assert scenes.question(1, 5) == scenes.question(1, 5)


def test_answers_follow_from_the_scene() -> None:
    counted = 0
    for number in range(200):
        scene, question = scenes.question(3, number)
        if question.topic == "count":
            assert question.answer == str(len(scene.things))
            counted += 1
        elif question.topic == "number":
            assert question.answer == scene.number
        assert question.answer
    assert counted > 5


def test_a_red_circle_is_red_and_round() -> None:
    pixels = drawing.picture(red_circle())
    assert tuple(pixels[64, 64]) == (210, 40, 40)
    assert tuple(pixels[2, 2]) == (90, 90, 90)
    red = (pixels[:, :, 0] > 150).sum()
    assert red == pytest.approx(np.pi * 30**2, rel=0.02)
    assert scenes.description(red_circle()) == "red circle"


def test_numpy_and_torch_draw_the_same() -> None:
    torch = pytest.importorskip("torch")
    things, backgrounds = drawing.columns([scenes.scene(4, number) for number in range(6)])
    noise = np.random.default_rng(0).standard_normal((6, 128, 128, 3)).astype(np.float32)
    one, shown = drawing.draw(np, things, backgrounds, noise, drawing.GLYPHS)
    arrays = [torch.from_numpy(item) for item in (things, backgrounds, noise, drawing.GLYPHS)]
    other, also_shown = drawing.draw(torch, *arrays)
    apart = np.abs(one - other.numpy())
    assert (apart > 1).mean() < 1e-3  # a pixel of a digit's edge may fall to the other side
    assert (shown != also_shown.numpy()).mean() < 1e-2
    assert shown.max() > 0


def test_png_has_the_pixels() -> None:
    pixels = drawing.picture(scenes.scene(5, 0))
    data = drawing.png(pixels)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", data[16:24]) == (128, 128)
    length = int.from_bytes(data[33:37], "big")
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + length]), np.uint8).reshape(128, 385)
    assert np.array_equal(rows[:, 1:].reshape(128, 128, 3), pixels)
    assert not rows[:, 0].any()


def test_conversations_fit_and_their_answers_end() -> None:
    made = dataset.examples(6, range(60))
    assert made.has_picture.sum() > 40
    rows = (made.tokens == dataset.PLACEHOLDER).sum(1)
    assert set(rows[made.has_picture]) == {dataset.PICTURE_ROWS}
    assert not rows[~made.has_picture].any()
    for tokens, answers in zip(made.tokens, made.answers, strict=True):
        said = tokens[answers]
        assert said[-1] == vocabulary.IM_END
        assert not (said == dataset.PLACEHOLDER).any()


def test_counting_needs_no_picture() -> None:
    asked = dataset.counting(random.Random(1))
    first, last = asked.answer.split()[0], asked.answer.split()[-1]
    assert asked.text == f"Count from {first} to {last}."


def test_llama_cpp_reads_the_exported_vocabulary(tmp_path: Path) -> None:
    """A model with random weights: llama.cpp loads it and tokenizes a chat as training did."""
    torch = pytest.importorskip("torch")
    llama_cpp = pytest.importorskip("llama_cpp")
    from tools.eyes import export, train
    from tools.eyes.model import SMALL, Eyes

    torch.manual_seed(0)
    train.save(Eyes(SMALL), tmp_path / "eyes.npz")
    decoder, projector = export.export(tmp_path / "eyes.npz", tmp_path)
    assert projector.name.startswith("mmproj-")
    model = llama_cpp.Llama(str(decoder), vocab_only=True, verbose=False)
    text = "<|im_start|>user\nWie groß? 7 €<|im_end|>\n<|im_start|>assistant\n"
    expected = dataset.prompt("Wie groß? 7 €", picture=False)
    assert model.tokenize(text.encode(), add_bos=False, special=True) == expected
    assert model.detokenize(vocabulary.encode("red circle")) == b"red circle"
    assert model.token_eos() == vocabulary.IM_END
    model.close()


def test_the_shipped_model_counts_without_a_picture() -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(str(MODELS / "sees.gguf"), n_ctx=256, verbose=False)
    prompt = dataset.prompt("Count from 7 to 12.", picture=False)
    said = model.create_completion(prompt, max_tokens=32, temperature=0.0)
    assert said["choices"][0]["text"] == "7 8 9 10 11 12"
    model.close()
