"""Loading, the vocabulary, and a log that stays out of the terminal."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stretto.backends.llamacpp import Context, ModelOptions, load
from stretto.errors import InvariantError, ModelError, NotGgufError, ShuttingDownError
from stretto.testing import tiny_models
from tests.unit.backends.llamacpp.rig import options, tiny


def test_text_and_tokens_there_and_back() -> None:
    words = tiny("dense").vocabulary
    text = "Voices enter, one by one: naïve 音楽 🎼\n"
    tokens = words.encode(text, False)
    assert words.detokenize(tokens) == text
    assert b"".join(map(words.token_bytes, tokens)).decode() == text


def test_control_tokens_come_from_special_text_alone() -> None:
    words = tiny("dense").vocabulary
    special = words.encode("<|im_end|>", True)
    assert len(special) == 1
    assert words.is_control(special[0])
    assert special[0] in words.eos
    assert words.token_bytes(special[0]) == b"<|im_end|>"
    assert not any(words.is_control(token) for token in words.encode("<|im_end|>", False))


@pytest.mark.parametrize("text", ["", "\0", "a\0b", "\ud800", "a" * 100_000])
def test_any_text_tokenizes(text: str) -> None:
    assert isinstance(tiny("dense").vocabulary.encode(text, False), list)


def test_tokenizing_from_many_threads_is_the_same() -> None:
    words = tiny("dense").vocabulary
    texts = [f"voice {n} enters after {n * n} bars" for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda t: words.encode(t, False), texts)) == [
            words.encode(t, False) for t in texts
        ]


def test_the_template_is_there() -> None:
    assert "<|im_start|>" in (tiny("dense").template or "")


def test_a_token_outside_the_vocabulary_is_an_index_error() -> None:
    words = tiny("dense").vocabulary
    for token in (-1, words.vocab_size):
        with pytest.raises(IndexError):
            words.token_bytes(token)


def test_progress_is_told_and_a_broken_bar_ends_the_load(tmp_path: Path) -> None:
    path = tiny_models.make("dense")
    seen: list[float] = []
    load(path, ModelOptions(n_gpu_layers=0), cache_dir=None, trial=False, progress=seen.append).close()
    assert seen[-1] == pytest.approx(1.0)

    for failure in (KeyError("bar"), KeyboardInterrupt()):

        def broken(fraction: float, failure: BaseException = failure) -> None:
            raise failure

        with pytest.raises(type(failure)):
            load(path, cache_dir=None, trial=False, progress=broken)


def test_files_that_are_no_models_never_reach_llama_cpp(tmp_path: Path) -> None:
    text = tmp_path / "notes.gguf"
    text.write_text("not a model at all, only words " * 10)
    with pytest.raises(NotGgufError):
        load(text, cache_dir=None)
    with pytest.raises(ModelError):
        load(tmp_path / "missing.gguf", cache_dir=None)


def test_using_what_was_closed_is_an_error_and_no_crash() -> None:
    model = load(tiny_models.make("dense"), cache_dir=None, trial=False)
    context = Context(model, options())
    context.close()
    context.close()
    with pytest.raises(InvariantError):
        context.remove(0, 0)
    model.close()
    with pytest.raises(ShuttingDownError):
        model.vocabulary.encode("text", False)
    with pytest.raises(InvariantError):
        Context(model, options())


def test_what_is_forgotten_is_freed_in_the_right_order() -> None:
    model = load(tiny_models.make("dense"), cache_dir=None, trial=False)
    context = Context(model, options())
    weights = model.weights
    del model
    gc.collect()
    assert not weights.closed
    del context, weights
    gc.collect()


def test_llama_cpp_writes_nothing_to_the_terminal() -> None:
    program = (
        "import sys; from stretto.backends.llamacpp import load, Context, ContextOptions\n"
        "m = load(sys.argv[1], cache_dir=None, trial=False); Context(m, ContextOptions(context_window=256))\n"
    )
    command = [sys.executable, "-c", program, str(tiny_models.make("dense"))]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert done.stdout == b""
    assert done.stderr == b""
