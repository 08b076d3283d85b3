"""Options that contradict each other, are slow, or would end the process: refused, or warned about."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.backends.llamacpp import Context, ContextError
from stretto.backends.llamacpp.calibration import rows_for
from stretto.backends.llamacpp.plan import resolve
from tests.unit.backends.llamacpp.rig import options, tiny


def codes(kind: str, **more) -> list[str]:
    return [
        w.code for w in resolve(tiny(kind), options(**more)).warnings if w.code != "special_kernels_broken"
    ]


def test_the_window_is_what_each_slot_gets() -> None:
    context = Context(tiny("dense"), options(n_seq_max=3, context_window=512))
    assert (context.window, context.n_ctx_seq, context.pool_tokens) == (512, 512, 0)
    context.close()


def test_a_window_that_llama_cpp_pads_stays_the_one_asked_for() -> None:
    context = Context(tiny("dense"), options(n_seq_max=2, context_window=300))
    assert context.window == 300
    assert context.n_ctx_seq >= 300
    context.close()


def test_rope_scaling_is_given_by_name_and_changes_what_is_computed() -> None:
    def logits(**more) -> np.ndarray:
        context = Context(tiny("dense"), options(**more))
        assert context.decode(rows_for([(0, 0, 12)], vocab=context.vocab)) == 0
        found = context.logits().copy()
        context.close()
        return found

    scaled = logits(rope={"rope_scaling_type": "linear", "rope_freq_scale": 0.5})
    assert not np.allclose(scaled, logits())


def test_a_pool_is_shared_by_all() -> None:
    context = Context(tiny("dense"), options(unified=True, pool_tokens=512, context_window=4096))
    assert (context.window, context.pool_tokens) == (512, 512)
    context.close()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"n_seq_max": 0}, "n_seq_max"),
        ({"n_seq_max": 300, "n_batch": 512}, "n_seq_max"),
        ({"n_seq_max": 8, "n_batch": 4}, "n_batch"),
        ({"cache_type_k": "q3_k"}, "cache type"),
        ({"cache_type_v": "q8_0", "flash_attention": "off"}, "flash attention"),
        ({"context_window": 1 << 27, "n_seq_max": 64}, "does not fit"),
        ({"rope": {"speed": 1.0}}, "rope"),
        ({"rope": {"rope_scaling_type": "cubic"}}, "rope_scaling_type"),
    ],
)
def test_what_cannot_be_is_refused_before_llama_cpp_sees_it(more, says) -> None:
    with pytest.raises(ContextError, match=says):
        resolve(tiny("dense"), options(**more))


@pytest.mark.parametrize("kind", ["embedding", "reranker"])
def test_a_model_that_does_not_generate_is_refused(kind: str) -> None:
    with pytest.raises(ContextError, match="does not generate"):
        resolve(tiny(kind), options())


@pytest.mark.parametrize("kind", ["hybrid-lfm2", "recurrent"])
def test_hybrids_keep_an_f16_cache_and_no_flash_attention(kind: str) -> None:
    plan = resolve(tiny(kind), options(cache_type_k="q8_0", cache_type_v="q8_0", flash_attention="on"))
    assert (plan.cache_type_k, plan.cache_type_v, plan.flash_attention) == ("f16", "f16", False)
    assert codes(kind, cache_type_k="q8_0", flash_attention="on") == [
        "cache_type_forced",
        "flash_attention_off",
    ]


def test_slow_cache_types_are_named() -> None:
    assert codes("dense", cache_type_k="bf16", cache_type_v="bf16") == ["slow_cache_type"]
    assert codes("dense") == []


def test_a_window_beyond_training_is_named() -> None:
    assert codes("dense", context_window=4096) == ["window_beyond_training"]


def test_a_cache_type_that_does_not_fit_the_heads_says_so() -> None:
    """Its reason is the block size: a smaller window would not help."""
    with pytest.raises(ContextError, match="multiples of 32") as caught:
        resolve(tiny("moe"), options(cache_type_k="q8_0"))
    assert "f16" in caught.value.hint
    assert "context_window" not in caught.value.hint


@pytest.mark.parametrize(("slots", "drafts", "outputs"), [(1, 0, 32), (8, 8, 80), (4, 8, 48), (33, 0, 48)])
def test_rows_with_logits_are_a_multiple_of_sixteen(slots, drafts, outputs):
    """Else the tensors of all passes begin in the middle of cache lines."""
    asked = options(n_seq_max=slots, drafts_max=drafts, context_window=64, n_batch=512)
    assert resolve(tiny("dense"), asked).n_outputs_max == outputs


def test_there_are_no_more_rows_with_logits_than_a_batch_has():
    asked = options(n_seq_max=8, drafts_max=8, context_window=64, n_batch=64)
    assert resolve(tiny("dense"), asked).n_outputs_max == 64
