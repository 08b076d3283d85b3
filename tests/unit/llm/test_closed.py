"""A closed model says so, whatever it is asked."""

from __future__ import annotations

import pytest

from stretto import LLM
from stretto.errors import ShuttingDownError
from stretto.testing import tiny_models


@pytest.mark.parametrize("ask", [lambda llm: llm.generate("x"), lambda llm: llm.tokenize("x")])
def test_a_closed_model_says_so(ask):
    llm = LLM(tiny_models.make("dense"), n_seq_max=1, context_window=256)
    llm.close()
    with pytest.raises(ShuttingDownError, match="the model is closed"):
        ask(llm)
