"""Trial contexts: written contexts are as long as computed ones, and passes leave nothing behind."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.backends.llamacpp.choices.trials import Trial, sizes_for
from stretto.backends.llamacpp.native.state_format import repeated
from tests.unit.backends.llamacpp.rig import options, tiny


@pytest.mark.parametrize("slots", ["plain", "rows", "tiles"])
def test_contexts_are_written_and_passes_leave_nothing(slots):
    model = tiny("dense")
    asked = options(n_seq_max=3, context_window=512, n_batch=256, n_ubatch=256)
    sizes = sizes_for(model, asked)
    seed = Trial(model, asked, sizes, slots="tiles", sequences=1)
    trial = Trial(model, asked, sizes, slots=slots, sequences=3)
    trial.fill(seed.seed(), sizes.long)
    for run in (lambda: trial.decode_s(3, 1), lambda: trial.chunk_s(112, 1)):
        assert run() > 0
        assert [trial.context.positions(at)[1] + 1 for at in range(3)] == [sizes.long] * 3
    assert trial.context.flash_attention == (slots != "plain")
    ours = model.machine.own_attention_rows_max >= 64  # our kernel computes passes of any size row by row
    assert (trial.context.n_ubatch < 64) == (slots == "rows" and not ours)
    seed.close()
    trial.close()


def test_sizes_are_bounded_by_slots_window_and_memory():
    model = tiny("dense")
    assert sizes_for(model, options(n_seq_max=2, context_window=256)) == (2, 256, 128)
    assert sizes_for(model, options(n_seq_max=64, context_window=8192)).sequences == 8
    assert sizes_for(model, options(n_seq_max=64, context_window=128)).long == 0


def test_only_a_state_of_one_stream_by_token_is_repeated():
    with pytest.raises(ValueError, match="state"):
        repeated(np.zeros(64, dtype=np.uint8), 32)
