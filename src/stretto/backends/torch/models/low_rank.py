"""Low-rank products of all adapters of a linear layer in one pass.

The matrices of up to `count` adapters lie side by side: A as [parts · count · rank, in], B as
[out, parts · count · rank]. A row is multiplied by all of A, scaled by what its request asks of each adapter
(0 for those it does not use), then multiplied by all of B. Two dense products serve any mix of requests,
without sorting rows, and their addresses are fixed, as CUDA graphs need. With eight adapters of rank 16 they
add 6 % to the work of a 4096 × 4096 matrix.
"""

from __future__ import annotations

import torch


class LowRank:
    """Tables of one linear layer, whose outputs are the concatenated outputs of its parts."""

    def __init__(
        self,
        parts: dict[str, int],
        columns: int,
        *,
        count: int,
        rank: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._count, self._rank = count, rank
        width = len(parts) * count * rank
        self._a = torch.zeros(width, columns, dtype=dtype, device=device)
        self._b = torch.zeros(sum(parts.values()), width, dtype=dtype, device=device)
        self._places: dict[str, tuple[int, int, int]] = {}  # part -> its number, first output, outputs
        at = 0
        for number, (name, rows) in enumerate(parts.items()):
            self._places[name] = (number, at, rows)
            at += rows
        self._columns = columns

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each part, by its name in the model's file."""
        return {name: (rows, self._columns) for name, (_, _, rows) in self._places.items()}

    def put(self, name: str, place: int, a: torch.Tensor, b: torch.Tensor) -> None:
        """Write the matrices of one adapter for one part: A [rank, in], B [out, rank]."""
        number, first, rows = self._places[name]
        at = (number * self._count + place) * self._rank
        self._a[at : at + a.shape[0]].copy_(a)
        self._b[first : first + rows, at : at + b.shape[1]].copy_(b)

    def clear(self, place: int) -> None:
        for number, first, rows in self._places.values():
            at = (number * self._count + place) * self._rank
            self._a[at : at + self._rank].zero_()
            self._b[first : first + rows, at : at + self._rank].zero_()

    def __call__(self, x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """What the adapters add to the layer's output. `scales` [rows, adapters]."""
        inner = (x @ self._a.T).view(x.shape[0], -1, self._count, self._rank)
        return (inner * scales[:, None, :, None]).view(x.shape[0], -1) @ self._b.T
