"""What becomes of the requests of a dead replica."""

from __future__ import annotations

import pytest

from stretto.cluster.policy.failover import LOSSES_MAX, AfterLoss, after_loss


@pytest.mark.parametrize(
    ("delivered", "losses", "determined", "expected"),
    [
        (0, 1, False, AfterLoss.RESEND),
        (0, 1, True, AfterLoss.RESEND),
        (7, 1, True, AfterLoss.CONTINUE),
        (7, 1, False, AfterLoss.FAIL),
        (100, 1, False, AfterLoss.COMPLETE),
        (0, LOSSES_MAX + 1, True, AfterLoss.FAIL),
        (7, LOSSES_MAX, True, AfterLoss.CONTINUE),
    ],
)
def test_after_a_loss(delivered, losses, determined, expected):
    found = after_loss(delivered=delivered, losses=losses, determined=determined, max_tokens=100)
    assert found is expected


def test_a_cancelled_request_is_not_sent_again():
    found = after_loss(delivered=0, losses=1, determined=True, max_tokens=100, cancelled=True)
    assert found is AfterLoss.COMPLETE
