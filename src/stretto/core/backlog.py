"""How long a request that came now would wait: for routing, scaling and the metric of the same name.

Predicted from the cost model and from how long requests have held their slots; a guess until one has ended.
"""

from __future__ import annotations

from typing import NamedTuple

from stretto.core.state import State


class Backlog(NamedTuple):
    """Work ahead of a newcomer. `service_s` is how long a request holds its slot, on average."""

    slots: int
    occupied: int  # requests that run or wait
    prefill_s: float  # to compute what running requests' prompts still lack
    service_s: float

    @property
    def wait_s(self) -> float:
        """Predicted seconds until the prompt of a request that came now would be computed."""
        return slot_wait_s(self.slots, self.occupied, self.service_s) + self.prefill_s


def slot_wait_s(slots: int, occupied: float, service_s: float) -> float:
    """Until a newcomer has a slot: those before it leave at the rate `slots / service_s`."""
    ahead = occupied - slots + 1
    return ahead * service_s / slots if ahead > 0 and slots else 0.0


def predict(state: State) -> Backlog:
    rows = contexts = prompt_tokens = 0
    for slot in state.active:
        missing = max(0, len(slot.known) - 1 - slot.computed)
        prompt_tokens += missing
        rows += not missing
        contexts += slot.computed
    service_s = state.service_s
    if service_s is None:
        token_s = max(state.cost.decode_s(max(1, rows), contexts), state.cost.prefill_s_per_token)
        service_s = state.accounts.output_mean * token_s
    return Backlog(
        slots=len(state.slots),
        occupied=len(state.jobs),
        prefill_s=prompt_tokens * state.cost.prefill_s_per_token,
        service_s=service_s,
    )
