"""The draw among few candidates, in plain Python: what top_k leaves of a vocabulary.

After a pass the processor's caches are cold, and each call into NumPy takes some 10 µs: thirty of them took
longer than the arithmetic on forty numbers. The filters and their order are those of `row.py`, in double
precision. Does not know typical_p and XTC, which are rare.
"""

from __future__ import annotations

from math import exp, isfinite

from stretto.core.request import SamplingParams

MOST = 128  # candidates; with more of them NumPy is faster


def suits(params: SamplingParams) -> bool:
    return 0 < params.top_k <= MOST and params.typical_p >= 1 and params.xtc_probability <= 0


def choose(ids: list[int], logits: list[float], params: SamplingParams, uniform: float) -> int | None:
    """A token among `ids`, ascending, which include the top_k best; None if the best logit is not finite."""
    best = max(logits)
    if not isfinite(best):
        return None
    # Best first; of equal ones the lower id, which a stable sort keeps in front.
    order = sorted(range(len(ids)), key=logits.__getitem__, reverse=True)[: params.top_k]
    weights = [exp(logits[at] - best) for at in order]
    count = _kept(weights, params)
    if params.temperature != 1:
        inverse = 1 / params.temperature
        weights = [exp((logits[at] - best) * inverse) for at in order[:count]]
    aim = uniform * sum(weights[:count])
    last = 0
    for place in sorted(range(count), key=order.__getitem__):  # by ascending id, as over a whole vocabulary
        if weights[place] > 0:
            last = place
        aim -= weights[place]
        if aim < 0:
            break
    return ids[order[last]]  # the last one, if rounding moved `aim` to the very end


def _kept(weights: list[float], params: SamplingParams) -> int:
    """How many of the weights, largest first, top_p and min_p leave."""
    count = len(weights)
    if params.top_p < 1:
        mass = params.top_p * sum(weights)
        for count, weight in enumerate(weights, 1):  # noqa: B007 - the loop ends at the last one kept
            mass -= weight
            if mass <= 0:
                break
    if params.min_p > 0:
        least = min(params.min_p, 1.0)
        while weights[count - 1] < least:
            count -= 1
    return count
