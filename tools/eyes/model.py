"""The model in torch: a vision transformer with a projector, and a llama decoder that reads its rows.

Computes what llama.cpp computes for projector type `internvl` and architecture `llama`, in the same order:
the class embedding comes last in the tower, GELU is the tanh form, rotary pairs are neighbours. Pictures are
normalised with mean and deviation 0.5. Parameter names are those of the GGUFs, with `_` for `.`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.eyes import dataset, drawing, scenes, vocabulary


@dataclass(frozen=True, slots=True)
class Sizes:
    """Hyperparameters; heads are `head` wide."""

    tower_layers: int = 4
    tower_width: int = 256
    layers: int = 4
    width: int = 256
    feed_forward: int = 704
    heads: int = 4
    kv_heads: int = 2
    head: int = 64
    tower_eps: float = 1e-6
    eps: float = 1e-5
    rope_base: float = 10000.0
    context: int = 4096


SMALL = Sizes(
    tower_layers=2, tower_width=64, layers=2, width=64, feed_forward=192, heads=2, kv_heads=1, head=32
)


class TowerLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.tower_width
        self.heads = width // sizes.head
        self.ln1 = nn.LayerNorm(width, eps=sizes.tower_eps)
        self.attn_qkv = nn.Linear(width, 3 * width)
        self.attn_out = nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width, eps=sizes.tower_eps)
        self.ffn_up = nn.Linear(width, 4 * width)
        self.ffn_down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        qkv = self.attn_qkv(self.ln1(x)).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = x + self.attn_out(mixed.transpose(1, 2).reshape(batch, rows, width))
        hidden = functional.gelu(self.ffn_up(self.ln2(x)), approximate="tanh")
        added: Tensor = x + self.ffn_down(hidden)
        return added


class Tower(nn.Module):
    """Pictures to rows of the decoder's width, one a patch."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.tower_width
        self.patch_embd = nn.Conv2d(3, width, drawing.PATCH, stride=drawing.PATCH)
        self.class_embd = nn.Parameter(torch.randn(width) * 0.02)
        self.position_embd = nn.Parameter(torch.randn(dataset.PICTURE_ROWS + 1, width) * 0.02)
        self.blk = nn.ModuleList(TowerLayer(sizes) for _ in range(sizes.tower_layers))
        self.mlp_norm = nn.LayerNorm(width, eps=1e-5)
        self.mlp_up = nn.Linear(width, sizes.width)
        self.mlp_down = nn.Linear(sizes.width, sizes.width)

    def features(self, pictures: Tensor) -> Tensor:
        """Of pictures [n, SIZE, SIZE, 3] with values 0 to 255."""
        pixels = (pictures.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
        patches = self.patch_embd(pixels).flatten(2).transpose(1, 2)
        last = self.class_embd.expand(len(patches), 1, -1)
        x = torch.cat([patches, last.to(patches.dtype)], 1) + self.position_embd
        for layer in self.blk:
            x = layer(x)
        return x[:, :-1]

    def rows(self, features: Tensor) -> Tensor:
        hidden = functional.gelu(self.mlp_up(self.mlp_norm(features)), approximate="tanh")
        projected: Tensor = self.mlp_down(hidden)
        return projected


class DecoderLayer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = sizes.heads, sizes.kv_heads, sizes.head
        width = sizes.width
        self.attn_norm = nn.RMSNorm(width, eps=sizes.eps)
        self.attn_q = nn.Linear(width, sizes.heads * sizes.head, bias=False)
        self.attn_k = nn.Linear(width, sizes.kv_heads * sizes.head, bias=False)
        self.attn_v = nn.Linear(width, sizes.kv_heads * sizes.head, bias=False)
        self.attn_output = nn.Linear(sizes.heads * sizes.head, width, bias=False)
        self.ffn_norm = nn.RMSNorm(width, eps=sizes.eps)
        self.ffn_gate = nn.Linear(width, sizes.feed_forward, bias=False)
        self.ffn_up = nn.Linear(width, sizes.feed_forward, bias=False)
        self.ffn_down = nn.Linear(sizes.feed_forward, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, rows, _ = x.shape
        normed = self.attn_norm(x)
        q = rotate(self.attn_q(normed).view(batch, rows, self.heads, self.head), cos, sin)
        k = rotate(self.attn_k(normed).view(batch, rows, self.kv_heads, self.head), cos, sin)
        v = self.attn_v(normed).view(batch, rows, self.kv_heads, self.head).transpose(1, 2)
        share = self.heads // self.kv_heads
        keys, values = (item.repeat_interleave(share, 1) for item in (k, v))
        mixed = functional.scaled_dot_product_attention(q, keys, values, is_causal=True)
        x = x + self.attn_output(mixed.transpose(1, 2).reshape(batch, rows, -1))
        normed = self.ffn_norm(x)
        added: Tensor = x + self.ffn_down(functional.silu(self.ffn_gate(normed)) * self.ffn_up(normed))
        return added


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions over neighbouring pairs; [batch, rows, heads, head] to [batch, heads, rows, head]."""
    x = x.transpose(1, 2)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return turned.flatten(-2).to(x.dtype)


class Eyes(nn.Module):
    """Tower and decoder; during training also a head that names what each patch shows."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.tower = Tower(sizes)
        self.token_embd = nn.Embedding(vocabulary.TOKENS, sizes.width)
        self.blk = nn.ModuleList(DecoderLayer(sizes) for _ in range(sizes.layers))
        self.output_norm = nn.RMSNorm(sizes.width, eps=sizes.eps)
        self.output = nn.Linear(sizes.width, vocabulary.TOKENS, bias=False)
        self.patch_kind = nn.Linear(sizes.tower_width, scenes.KINDS + 1)
        self.patch_colour = nn.Linear(sizes.tower_width, len(scenes.NAMES) + 1)
        self.apply(_initialise)
        for name, weights in self.named_parameters():
            if name.startswith("blk.") and name.endswith(("ffn_down.weight", "attn_output.weight")):
                nn.init.normal_(weights, std=0.02 / math.sqrt(2 * sizes.layers))

    def forward(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Logits for tokens [n, length], with `rows` [pictures, PICTURE_ROWS, width] at the placeholders."""
        is_picture = tokens == dataset.PLACEHOLDER
        x = self.token_embd(tokens.masked_fill(is_picture, 0))
        x = x.masked_scatter(is_picture[..., None], rows.to(x.dtype))
        cos, sin = self._angles(tokens.shape[1], x.device)
        for layer in self.blk:
            x = layer(x, cos, sin)
        logits: Tensor = self.output(self.output_norm(x))
        return logits

    def _angles(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        half = torch.arange(0, self.sizes.head, 2, device=device).float()
        speed = self.sizes.rope_base ** (-half / self.sizes.head)
        angles = torch.arange(length, device=device).float()[:, None] * speed
        return angles.cos(), angles.sin()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
