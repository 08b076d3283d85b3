"""A claim with its bound, evaluated by `--check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Bar:
    """One claim, its measured value, and whether it holds. `value` None: not measured."""

    name: str
    value: float | None
    relation: Literal["≥", "≤"]
    bound: float

    @property
    def held(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.bound if self.relation == "≥" else self.value <= self.bound

    def line(self) -> str:
        shown = "not measured" if self.value is None else f"{self.value:.3f}"
        return f"  {'ok  ' if self.held else 'MISS'} {self.name}: {shown} ({self.relation} {self.bound:g})"
