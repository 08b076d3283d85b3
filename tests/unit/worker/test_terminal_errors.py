"""How a request ended, in the words of its caller."""

from __future__ import annotations

import pytest

from stretto.core.request import Priority
from stretto.core.tick import End, Preempted, PreemptReason, Terminal
from stretto.errors import PreemptedError
from stretto.worker.terminal_errors import error_of


def preempted(*, same_tenant: bool) -> Terminal:
    record = Preempted(
        request_id="7/victim",
        slot=0,
        reason=PreemptReason.TIMEOUT,
        resumes=False,
        held_s=41.25,
        tokens=600,
        waiter_id="9/waiter",
        waiter_priority=Priority.URGENT,
        waited_s=30.04,
        same_tenant=same_tenant,
    )
    return Terminal("7/victim", End.FAILED, "preempted", 0, 9, 0, 600, 0, 42.0, 0.0, 0.1, record)


def test_a_preempted_request_names_the_other_request_and_the_wait():
    error = error_of(preempted(same_tenant=True))
    assert isinstance(error, PreemptedError)
    assert error.message == (
        "preempted by queued request waiter (priority urgent), which had waited 30.0 s for a slot; "
        "this request had held it for 41.2 s"
    )
    assert (error.retryable, error.http_status) == (True, 503)


def test_another_tenants_request_is_not_named():
    error = error_of(preempted(same_tenant=False))
    assert error is not None
    assert error.message.startswith(
        "preempted by a queued request (priority urgent), which had waited 30.0 s"
    )
    assert "waiter" not in error.message


@pytest.mark.parametrize(("end", "reason"), [(End.FINISHED, "stop"), (End.CANCELLED, "client")])
def test_cancellation_by_the_caller_is_not_an_error(end, reason):
    assert error_of(Terminal("r", end, reason, 1, 1, 0, 1, 0, 1.0, 0.0, 0.1)) is None
