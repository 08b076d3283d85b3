"""Sampling parameters of each slot, as columns on the device; rows of logits refer to their slot.

`bind` writes a slot's row for a new request, with two small transfers in the simple case. Token counts and
history for penalties are kept here too; `count_tokens` updates them on the device. Reads nothing back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.core.request import SamplingParams
from stretto.errors import InvalidRequestError

FLOATS = ("temperature", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty")
INTS = ("seed", "top_k", "repeat_last_n", "masked")
TEMPERATURE_MIN = 1e-5  # at or below it sampling is greedy
BIAS_BAN = -100.0  # at or below it a token is banned
ALWAYS = 2**31 - 1
TOP_LOGPROBS_MAX = 20


@dataclass(frozen=True, slots=True)
class SamplingMode:
    """The sampler features that a batch needs, known on the host: features that are off cost nothing.
    `logprobs`: -1 none, 0 the chosen token's, n also the n best."""

    biases: bool = False
    penalties: bool = False
    masks: bool = False
    filters: bool = False
    noise: bool = False
    logprobs: int = -1

    @property
    def edits(self) -> bool:
        return self.biases or self.penalties or self.masks

    def covers(self, other: SamplingMode) -> bool:
        """Whether a pass in this mode samples the same tokens as one in `other`."""
        names = ("biases", "penalties", "masks", "filters", "noise")
        return self.logprobs >= other.logprobs and all(
            getattr(self, name) or not getattr(other, name) for name in names
        )

    @staticmethod
    def of(params: Iterable[SamplingParams], *, biased: bool = False) -> SamplingMode:
        """The minimal mode for these parameters. `biased`: the model itself suppresses tokens."""
        params = list(params)
        drawn = [one for one in params if one.temperature > TEMPERATURE_MIN and one.top_k != 1]
        return SamplingMode(
            biases=biased or any(one.logit_bias or one.ignore_eos or one.min_tokens for one in params),
            penalties=any(penalized(one) for one in params),
            masks=any(one.grammar for one in params),
            filters=any(one.top_k > 0 or one.top_p < 1 or one.min_p > 0 for one in drawn),
            noise=bool(drawn),
            logprobs=max((one.logprobs for one in params), default=-1),
        )


def penalized(params: SamplingParams) -> bool:
    neutral = params.repeat_penalty == 1 and not params.frequency_penalty and not params.presence_penalty
    return not neutral and params.repeat_last_n != 0


@dataclass(frozen=True, slots=True)
class SamplingTable:
    """One row per slot.

    floats [slots, 6] and ints [slots, 4] have the columns FLOATS and INTS; counts [slots, vocab] is the
    number of occurrences of a token in the last `repeat_last_n`, history [slots, context_max] those tokens
    (both of width 0 without penalties); biases are sparse: ids (-1: none) and values, added while output
    index < until; masks are packed grammar bits, least significant first, used if the slot's `masked` is 1.
    """

    floats: Tensor
    ints: Tensor
    counts: Tensor
    history: Tensor
    bias_ids: Tensor
    bias_values: Tensor
    bias_until: Tensor
    masks: Tensor

    @staticmethod
    def allocate(
        slots: int,
        *,
        vocab: int,
        context_max: int,
        device: torch.device | str,
        biases_max: int = 512,
        penalties: bool = True,
    ) -> SamplingTable:
        def integers(columns: int, value: int = 0) -> Tensor:
            return torch.full((slots, columns), value, dtype=torch.int32, device=device)

        floats = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.0], device=device).repeat(slots, 1)
        return SamplingTable(
            floats=floats,
            ints=torch.zeros(slots, len(INTS), dtype=torch.int64, device=device),
            counts=integers(vocab if penalties else 0),
            history=integers(context_max if penalties else 0),
            bias_ids=integers(biases_max, -1),
            bias_values=torch.zeros(slots, biases_max, device=device),
            bias_until=integers(biases_max),
            masks=integers(-(-vocab // 32)),
        )

    def column(self, name: str) -> Tensor:
        """One column, as a view; float32 or int64."""
        if name in FLOATS:
            return self.floats[:, FLOATS.index(name)]
        return self.ints[:, INTS.index(name)]

    def bind(
        self,
        slot: int,
        params: SamplingParams,
        tokens: Sequence[int],
        *,
        eos: frozenset[int] = frozenset(),
        suppressed: frozenset[int] = frozenset(),
    ) -> None:
        """Sets the slot to this request, whose prompt and output so far are `tokens`."""
        floats = torch.tensor([float(getattr(params, name)) for name in FLOATS])
        masked = 1 if params.grammar else 0
        seed = (params.seed + 2**63) % 2**64 - 2**63
        ints = torch.tensor([seed, params.top_k, params.repeat_last_n, masked])
        _send(floats, self.floats[slot])
        _send(ints, self.ints[slot])
        self._bind_biases(slot, _biases(params, eos, suppressed))
        if penalized(params):
            self._bind_history(slot, tokens, params.repeat_last_n)

    def set_mask(self, slot: int, bits: Tensor) -> None:
        """Packed bits for the slot's next row, int32, at most the length of the mask."""
        self.masks[slot, bits.numel() :] = 0
        _send(bits, self.masks[slot, : bits.numel()])

    def _bind_biases(self, slot: int, entries: list[tuple[int, float, int]]) -> None:
        room = self.bias_ids.shape[1]
        if len(entries) > room:
            raise InvalidRequestError(f"logit_bias and banned tokens: {len(entries)} entries, at most {room}")
        self.bias_ids[slot] = -1
        if entries:
            ids, values, until = zip(*entries, strict=True)
            count = len(entries)
            _send(torch.tensor(ids, dtype=torch.int32), self.bias_ids[slot, :count])
            _send(torch.tensor(values, dtype=torch.float32), self.bias_values[slot, :count])
            _send(torch.tensor(until, dtype=torch.int32), self.bias_until[slot, :count])

    def _bind_history(self, slot: int, tokens: Sequence[int], last_n: int) -> None:
        sent = torch.tensor(list(tokens), dtype=torch.int32).to(self.history.device, non_blocking=True)
        self.history[slot, : len(tokens)] = sent
        self.counts[slot] = 0
        window = sent[-last_n:] if last_n > 0 else sent
        ones = torch.ones_like(window)
        self.counts[slot].scatter_add_(0, window.long(), ones)


def _send(source: Tensor, target: Tensor) -> None:
    """Copies through newly allocated pinned memory: no buffer in flight is ever reused."""
    if target.is_cuda:
        source = source.pin_memory()
    target.copy_(source, non_blocking=True)


def _biases(
    params: SamplingParams, eos: frozenset[int], suppressed: frozenset[int]
) -> list[tuple[int, float, int]]:
    """(token, bias, output index until which it applies), one entry per token."""
    entries: dict[int, tuple[float, int]] = {}
    if params.min_tokens > 0:
        entries |= dict.fromkeys(sorted(eos | params.stop_token_ids), (-math.inf, params.min_tokens))
    for token, bias in params.logit_bias.items():
        entries[token] = (bias if bias > BIAS_BAN else -math.inf, ALWAYS)
    banned = sorted(suppressed | eos if params.ignore_eos else suppressed)
    entries |= dict.fromkeys(banned, (-math.inf, ALWAYS))
    return [(token, bias, until) for token, (bias, until) in entries.items()]
