from stretto.backends.torch.ops.decode_work import decode_work_reference
from stretto.backends.torch.work_list import RUN_TOKENS_MIN


def test_spans_of_similar_length_are_whole_and_the_longest_comes_first():
    items, run = decode_work_reference([900, 1400, 0, 1100], shares=2, runs_max=16)
    assert items == [(1, 0), (3, 0), (0, 0), (2, 0)]
    assert run == 1728


def test_a_span_that_is_much_longer_than_the_others_is_divided():
    items, run = decode_work_reference([700, 9000, 600, 700], shares=8, runs_max=16)
    assert run == 1408
    assert items[:6] == [(1, number) for number in range(6)]
    assert items[6:] == [(0, 0), (3, 0), (2, 0), (1, 6)]


def test_no_list_is_longer_than_its_spans_and_shares():
    for lengths in ([1] * 300, [5000] * 64, [131_072, *[100] * 63], [512] * 40):
        items, run = decode_work_reference(lengths, shares=66, runs_max=16)
        assert len(items) <= len(lengths) + 66
        assert run >= RUN_TOKENS_MIN
        assert max(number for _, number in items) < 16
