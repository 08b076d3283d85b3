"""The same questions to `stretto serve --backend torch`, with the same model from a GGUF in F16, on a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest

pytest.importorskip("torch")

from stretto.testing.tiny_models import default_directory
from tests.server import test_smollm2
from tests.server.process import served
from tests.server.test_smollm2 import Clients
from tests.system.torch_parity import f16_file

pytestmark = pytest.mark.slow

# Questions about what a backend computes; what only the server decides is asked of llama.cpp's.
test_greedy_is_the_same_streamed_and_whole = test_smollm2.test_greedy_is_the_same_streamed_and_whole
test_every_dialect_gives_the_same_words = test_smollm2.test_every_dialect_gives_the_same_words
test_a_prefix_is_computed_once = test_smollm2.test_a_prefix_is_computed_once
test_the_same_seed_gives_the_same_text = test_smollm2.test_the_same_seed_gives_the_same_text
test_several_answers = test_smollm2.test_several_answers
test_stop_strings_are_left_out = test_smollm2.test_stop_strings_are_left_out
test_token_ids_and_text_are_the_same_prompt = test_smollm2.test_token_ids_and_text_are_the_same_prompt
test_logprobs_agree_with_greedy = test_smollm2.test_logprobs_agree_with_greedy
test_logit_bias_forbids_a_token = test_smollm2.test_logit_bias_forbids_a_token
test_regex = test_smollm2.test_regex


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    model = str(f16_file(default_directory()))
    flags = ("--backend", "torch", "--n-threads", "1", "--context-window", "1024")
    with (
        served(model, *flags) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as first,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as second,
    ):
        yield Clients(url, first.models.list().data[0].id, first, second)
