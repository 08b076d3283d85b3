"""What happens to a request whose replica died: sent again, continued elsewhere, or ended with an error.

A request that has delivered nothing is sent again as it is. One that has is continued from its prompt and the
tokens so far, if the rest is determined by them: greedy or seeded requests, because their text does not
depend on the batch. Any other would become a different text in the middle, and ends with `runtime_lost`.
"""

from __future__ import annotations

from enum import Enum

LOSSES_MAX = 3  # replicas that one request may lose: a request that kills replicas must not go on for ever


class AfterLoss(Enum):
    RESEND = "resend"  # to another replica, as it was
    CONTINUE = "continue"  # to another replica, from prompt + delivered tokens
    COMPLETE = "complete"  # nothing is left to do: every token was delivered, or the client has left
    FAIL = "fail"


def after_loss(
    *, delivered: int, losses: int, determined: bool, max_tokens: int, cancelled: bool = False
) -> AfterLoss:
    """`losses` includes this one; `delivered` tokens have reached the client; `determined` as above.

    `cancelled`: the client left before the loss was noticed, so there is nothing to send again.
    """
    if cancelled or delivered >= max_tokens:
        return AfterLoss.COMPLETE
    if losses > LOSSES_MAX:
        return AfterLoss.FAIL
    if delivered == 0:
        return AfterLoss.RESEND
    return AfterLoss.CONTINUE if determined else AfterLoss.FAIL
