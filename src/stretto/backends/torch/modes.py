"""The few sampling modes for which passes are compiled and captured in advance.

A mode may cover more than the requests need: features that a row does not use leave it unchanged. So a
short list, cheapest first, serves every request, and no combination of parameters is compiled while a
request waits.
"""

from __future__ import annotations

from functools import cache

from stretto.backends.torch.sampling_table import TOP_LOGPROBS_MAX, SamplingMode

EVERYTHING = {"biases": True, "penalties": True, "masks": True, "filters": True, "noise": True}
PREPARED = (
    SamplingMode(),
    SamplingMode(biases=True),
    SamplingMode(noise=True),
    SamplingMode(noise=True, biases=True),
    SamplingMode(noise=True, filters=True),
    SamplingMode(noise=True, filters=True, biases=True),
    SamplingMode(**EVERYTHING),
    SamplingMode(**EVERYTHING, logprobs=0),
    SamplingMode(**EVERYTHING, logprobs=TOP_LOGPROBS_MAX),
)


@cache
def prepared_mode(mode: SamplingMode) -> SamplingMode:
    """The first prepared mode that covers `mode`; `mode` itself if none does."""
    return next((one for one in PREPARED if one.covers(mode)), mode)
