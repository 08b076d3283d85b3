"""Stateless random numbers, a function of (seed, output index, token id): Philox4x32-10.

A token uses word `token & 3` of the block with counter (token >> 2, index, 0, 0) and the seed as key, so
neither the batch nor the order of computation changes a draw. The Triton kernels compute the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF


def gumbel(seeds: Tensor, indices: Tensor, vocab: int) -> Tensor:
    """Standard Gumbel noise, float32 [rows, vocab]; `seeds` and `indices` are int64 [rows]."""
    words = philox(seeds, indices, -(-vocab // 4)).flatten(1)[:, :vocab]
    return -torch.log(exponential(words))


def exponential(words: Tensor) -> Tensor:
    """Standard exponential variates, float32, with fine resolution near 0 (the smallest wins)."""
    share = (words.to(torch.float64) + 0.5).mul(2.0**-32)
    return (-torch.log1p(-share)).to(torch.float32)


def philox(seeds: Tensor, indices: Tensor, blocks: int) -> Tensor:
    """32-bit words as int64 [rows, blocks, 4]."""
    seeds, indices = seeds.long().unsqueeze(1), indices.long().unsqueeze(1)
    zero = torch.zeros_like(seeds)
    key0, key1 = seeds & WORD, (seeds >> 32) & WORD
    c0 = torch.arange(blocks, device=seeds.device).unsqueeze(0) + zero
    c1, c2, c3 = (indices & WORD) + torch.zeros_like(c0), zero, zero
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + WEYL[0]) & WORD, (key1 + WEYL[1]) & WORD
    return torch.stack([c0, c1, c2, c3], dim=-1)


def _multiply(value: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 × 32 bit product, in signed 64-bit arithmetic."""
    high = ((value >> 16) * factor + ((value & 0xFFFF) * factor >> 16)) >> 16
    return high & WORD, (value * factor) & WORD
