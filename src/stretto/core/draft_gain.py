"""Whether drafts have paid, measured by the number of decoding slots: what no prediction can talk around.

Plain ticks of n slots say what n tokens cost. A tick that verifies drafts has saved the plain time of the
tokens that it gave, less its own; every lookup or draft pass, used or not, is subtracted. Where the sum is
not clearly positive, n slots go without drafts for a number of ticks, which doubles as long as trials end so.
"Clearly", because streams at different speeds have costs that no tick shows: their prompts come one by one.
Lookup and a draft model have sums of their own: what one loses does not end the drafts of the other.
"""

from __future__ import annotations

from enum import Enum

from stretto.core.cost import CostModel

MEMORY = 0.97  # what a verification leaves of the weight of earlier ones
PLAIN_WEIGHT = 0.1  # of a new plain tick
PLAIN_MIN = 3  # plain ticks before drafts are tried
PLAIN_EVERY = 96  # ticks with drafts after which a plain one is due
JUDGED_FROM = 8  # verifications before a loss counts
LOSS_TICKS = 3.0  # … unless it is as much as so many plain ticks
TRUSTED_FROM = 32  # verifications without a loss after which the next loss is the first again
LOSS, WIN = 0.04, 0.08  # seconds saved over seconds spent: less than the first is a loss, see below
REST_MIN, REST_MAX = 64, 4096  # ticks without drafts after a loss
EXACT_SLOTS = 8  # larger numbers of slots share an account with their neighbours


class Kind(Enum):
    """Drafters with an account each. Ticks with drafts of both count for the draft model, the dearer one."""

    LOOKUP = "lookup"
    MODEL = "model"


class _Sums:
    """What drafts of one kind have saved and spent, recently."""

    __slots__ = ("rest", "rest_next", "saved_s", "spent_s", "trials")

    def __init__(self) -> None:
        self.rest = 0  # ticks still to go without drafts
        self.rest_next = REST_MIN
        self.begin()

    def begin(self) -> None:
        self.trials = 0
        self.saved_s = 0.0
        self.spent_s = 0.0

    def pause(self) -> None:
        """One tick less to go without drafts."""
        if self.rest:
            self.rest -= 1
            if not self.rest:
                self.begin()


class _Account:
    """What is known about ticks with one number of decoding slots."""

    __slots__ = ("contexts", "of", "plain_s", "plains", "since", "slots")

    def __init__(self) -> None:
        self.plains = 0
        self.plain_s = 0.0
        self.slots = 0.0  # of the plain ticks
        self.contexts = 0.0  # likewise
        self.since = 0  # ticks since the last plain one
        self.of = {kind: _Sums() for kind in Kind}


class DraftGain:
    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._accounts: dict[int, _Account] = {}
        self.losses = 0

    def allows(self, slots: int, kind: Kind = Kind.LOOKUP) -> bool:
        """Whether a tick of so many decoding slots may have drafts, or make some for the next one."""
        account = self._of(slots)
        return account.plains >= PLAIN_MIN and not account.of[kind].rest and account.since < PLAIN_EVERY

    def begin(self) -> None:
        """What drafts have saved until now was for learning: the sums begin anew."""
        for account in self._accounts.values():
            for sums in account.of.values():
                sums.begin()

    def plain(self, slots: int, contexts: int, seconds: float) -> None:
        """A tick of one row for each slot."""
        account = self._of(slots)
        weight = max(PLAIN_WEIGHT, 1.0 / (account.plains + 1))
        account.plain_s += weight * (seconds - account.plain_s)
        account.slots += weight * (slots - account.slots)
        account.contexts += weight * (contexts - account.contexts)
        account.plains += 1
        account.since = 0
        for sums in account.of.values():
            sums.pause()

    def drafting(self, slots: int, seconds: float, kind: Kind = Kind.LOOKUP) -> None:
        """Time that finding drafts took, beside a pass."""
        self._of(slots).of[kind].saved_s -= seconds

    def verified(
        self, slots: int, contexts: int, *, tokens: int, seconds: float, kind: Kind = Kind.LOOKUP
    ) -> float:
        """A tick with drafts gave so many tokens. `contexts`: the sum of its slots' context lengths.

        Returns the seconds that it has saved.
        """
        account = self._of(slots)
        for other, sums in account.of.items():
            if other is not kind:
                sums.pause()
        sums = account.of[kind]
        moved_s = self._cost.decode_s(slots, contexts) - self._cost.decode_s(account.slots, account.contexts)
        plain_s = max(0.0, account.plain_s + moved_s)
        saved_s = tokens / slots * plain_s - seconds
        if sums.rest:
            return saved_s  # it was planned before
        sums.saved_s = MEMORY * sums.saved_s + saved_s
        sums.spent_s = MEMORY * sums.spent_s + seconds
        account.since += 1
        sums.trials += 1
        if sums.saved_s < -LOSS_TICKS * plain_s or (
            sums.trials >= JUDGED_FROM and sums.saved_s < LOSS * sums.spent_s
        ):
            self.losses += 1
            sums.rest = sums.rest_next
            sums.rest_next = min(REST_MAX, 2 * sums.rest_next)
        elif sums.trials >= TRUSTED_FROM and sums.saved_s > WIN * sums.spent_s:
            sums.rest_next = REST_MIN
        return saved_s

    def _of(self, slots: int) -> _Account:
        unit = 1 if slots <= EXACT_SLOTS else 1 << (slots.bit_length() - 3)
        shared = -(-slots // unit) * unit
        account = self._accounts.get(shared)
        if account is None:
            account = self._accounts[shared] = _Account()
        return account
