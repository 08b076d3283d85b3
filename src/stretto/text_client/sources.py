"""Builds a model's text side from the source that its worker announces: tokenizer and template, no weights.

Imports a backend's tokenizer only when a source of that kind is read.
"""

from __future__ import annotations

from pathlib import Path

from stretto.rpc.messages import TextSource
from stretto.text.model_text import ModelText, template_of
from stretto.text.tokenizer import Tokenizer


def read_source(source: TextSource) -> ModelText:
    """May take a second: call it on a thread. Raises a StrettoError where the files cannot be read."""
    tokenizer = _tokenizer(source)
    template = None if source.template is None else template_of(source.template, tokenizer)
    return ModelText(tokenizer, window=source.window, template=template, add_bos=source.add_bos)


def _tokenizer(source: TextSource) -> Tokenizer:
    if source.kind == "spelling":
        from stretto.backends.simulated.text import SpellingTokenizer

        return SpellingTokenizer(source.vocab)
    if source.kind == "llamacpp":
        from stretto.backends.llamacpp.vocabulary_only import open_vocabulary

        return open_vocabulary(Path(source.path))
    if source.kind == "gguf":
        from stretto.backends.torch.gguf_tokenizer import gguf_tokenizer
        from stretto.model_files import gguf

        return gguf_tokenizer(gguf.read(Path(source.path)), vocab=source.vocab)
    return _hugging_face(source)


def _hugging_face(source: TextSource) -> Tokenizer:
    from stretto.backends.torch.tokenizer import read_tokenizer
    from stretto.errors import ModelFileError

    found = read_tokenizer(Path(source.path), vocab=source.vocab, bos=source.bos, eos=frozenset(source.eos))
    if found is None:
        raise ModelFileError(f"{source.path} has no tokenizer.json")
    return found
