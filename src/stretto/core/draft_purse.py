"""What drafts may cost: a small share of the time, and a part of what they have saved.

Measured losses end drafts (`draft_gain`), but each number of slots, each kind of text and each loaded model
has to lose first; and asking for proposals takes time whether or not one is verified. So there are purses,
one for each drafter and about so many slots, with two sums: what verifications may still lose, and what
looking for proposals may take. Ticks pay a share of their time into both, drafts that pay a part of what they
save. While a sum is below zero, nothing is verified, or nothing is looked for. So drafts never cost more than
these shares, beside what a purse holds when it is new, whatever is predicted.
"""

from __future__ import annotations

from math import sqrt

from stretto.core.draft_gain import Kind

LOSS_SHARE, LOOK_SHARE = 0.004, 0.002  # of the time of ticks
LOSS_TICKS, LOOK_TICKS = 3.0, 0.1  # what a new purse holds, in ticks; no more is saved up but from savings
SAVED_SHARE = 0.1  # of what drafts save
SAVED_MEMORY = 0.98  # what a verification leaves of earlier savings
LOST_MAX = 1.5  # ticks that one verification may lose: more is noise
MEAN_WEIGHT = 0.1  # of a new tick
DECIDING = 2.0  # times what looking takes, for deciding about it


class _Purse:
    """Of a drafter. It is paid when it is looked at: most ticks have nothing to do with drafts."""

    __slots__ = ("looks_s", "losses_s", "paid_s", "saved_s")

    def __init__(self) -> None:
        self.losses_s = self.looks_s = float("inf")  # full
        self.saved_s = 0.0  # by drafts, recently
        self.paid_s = 0.0  # time of ticks until it was paid


class _Ticks:
    """Of about so many slots: their time until now and its mean, and the purses."""

    __slots__ = ("loss_ticks", "mean_s", "purses", "time_s")

    def __init__(self, slots: int, seconds: float) -> None:
        self.loss_ticks = LOSS_TICKS / sqrt(slots)  # the more slots, the less their luck differs
        self.mean_s = seconds
        self.time_s = 0.0
        self.purses = {kind: _Purse() for kind in Kind}

    def paid(self, kind: Kind) -> _Purse:
        purse = self.purses[kind]
        owed_s, purse.paid_s = self.time_s - purse.paid_s, self.time_s
        self.pay(purse, LOSS_SHARE * owed_s, LOOK_SHARE * owed_s)
        return purse

    def pay(self, purse: _Purse, losses_s: float, looks_s: float) -> None:
        held_s = self.loss_ticks * self.mean_s + SAVED_SHARE * purse.saved_s
        purse.losses_s = min(purse.losses_s + losses_s, held_s)
        purse.looks_s = min(purse.looks_s + looks_s, LOOK_TICKS * self.mean_s)


class DraftPurses:
    def __init__(self, *, unlimited: bool = False) -> None:
        self._unlimited = unlimited
        self._ticks: dict[int, _Ticks] = {}

    def may_lose(self, slots: int, kind: Kind = Kind.LOOKUP) -> bool:
        """Whether a tick of so many slots may verify drafts."""
        ticks = self._ticks.get(_size(slots))
        return ticks is None or ticks.paid(kind).losses_s >= 0.0

    def may_look(self, slots: int) -> bool:
        ticks = self._ticks.get(_size(slots))
        return ticks is None or ticks.paid(Kind.LOOKUP).looks_s >= 0.0

    def plain(self, slots: int, seconds: float) -> None:
        """A tick without drafts."""
        if self._unlimited:
            return
        ticks = self._ticks.get(_size(slots))
        if ticks is None:
            ticks = self._ticks[_size(slots)] = _Ticks(slots, seconds)
        ticks.time_s += seconds
        ticks.mean_s += MEAN_WEIGHT * (seconds - ticks.mean_s)

    def verified(self, slots: int, kind: Kind, saved_s: float) -> None:
        """A tick with drafts saved so much, or lost it."""
        ticks = self._ticks.get(_size(slots))
        if ticks is None:
            return
        purse = ticks.paid(kind)
        purse.saved_s = SAVED_MEMORY * purse.saved_s + max(0.0, saved_s)
        if saved_s < 0.0:
            purse.losses_s += max(saved_s, -LOST_MAX * ticks.mean_s)
        else:
            ticks.pay(purse, saved_s, SAVED_SHARE * saved_s)

    def looked(self, slots: int, seconds: float) -> None:
        """Proposals were looked for, for so long, in a tick of so many slots."""
        ticks = self._ticks.get(_size(slots))
        if ticks is not None:
            ticks.paid(Kind.LOOKUP).looks_s -= (1.0 + DECIDING) * seconds


def _size(slots: int) -> int:
    """1, 2, 3 to 4, 5 to 8, …: the slots of so many users, of which some compute prompts."""
    return (slots - 1).bit_length()
