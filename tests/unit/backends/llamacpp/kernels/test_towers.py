"""Our ARM kernels for the towers that encode pictures and sounds."""

from __future__ import annotations

from tests.unit.backends.llamacpp.kernels.rig import compute, on_arm


@on_arm
def test_attention_of_towers(tmp_path):
    """Many rows without a mask, as near the truth as half precision; llama.cpp computes fewer rows."""
    script = """
used = ctypes.c_int.in_dll(ours, "stretto_attended_tiles")
for size, rows, tokens, sequences in (
    (72, 257, 257, 2), (64, 1025, 1025, 1), (128, 64, 300, 2), (64, 63, 63, 1)
):
    given = AttentionInputs(
        rng.normal(0, 1, (sequences, 6, rows, size)).astype(np.float32),
        rng.normal(0, 1, (sequences, 2, tokens, size)).astype(np.float16),
        rng.normal(0, 1, (sequences, 2, tokens, size)).astype(np.float16),
        None,
    )
    keys, values = (np.repeat(value.astype(np.float64), 3, axis=1) for value in given[1:3])
    scores = given.query.astype(np.float64) @ keys.swapaxes(2, 3) * size**-0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    right = (weights / weights.sum(-1, keepdims=True)) @ values
    used.value = 0
    found = np.frombuffer(attention(ggml, given), np.float32).reshape(sequences, rows, 6, size)
    error = found.swapaxes(1, 2) - right
    print(used.value, np.abs(error).max() < 1e-2, np.sqrt((error**2).mean() / (right**2).mean()) < 2.5e-3)
"""
    assert compute(script, tmp_path) == ["''", *["1 True True"] * 3, "0 True True"]


@on_arm
def test_gelu_and_copies_of_towers_keep_their_bits(tmp_path):
    script = """
names = ("stretto_looked_up", "stretto_halved")
used = [ctypes.c_int.in_dll(ours, name) for name in names]
copied = lambda context, given: verify._turned_halves(ggml, context, given)
for width in (8, 64, 72, 100, 256):
    shape = (3, 5, 7, width)
    values = (rng.normal(0, 1, shape) * 10.0 ** rng.integers(-8, 3, shape)).astype(np.float32)
    for operation in (ggml.gelu, ggml.gelu_quick, copied):
        found = []
        for own.value in (0, 1):
            for flag in used:
                flag.value = 0
            context = ggml.context()
            given = ggml.tensor(context, F32, values.shape[::-1])
            found.append(ggml.computed(context, {given: values.tobytes()}, operation(context, given)))
        ours_did = bool(used[operation is copied].value)
        if found[0] != found[1] or ours_did != (operation is not copied or width % 8 == 0):
            print("differs", width, operation, ours_did)
print("done")
"""
    assert compute(script, tmp_path) == ["''", "done"]
