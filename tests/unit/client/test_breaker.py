"""The circuit breaker, and its opening time."""

from __future__ import annotations

from stretto.client.breaker import Circuit, CircuitBreaker


def opened(now_s: float) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(5):
        assert breaker.admit(now_s)
        breaker.failure(now_s)
    return breaker


def test_it_opens_after_failures_in_a_row_only():
    breaker = CircuitBreaker()
    for _ in range(20):
        for _ in range(4):
            breaker.failure(1.0)
        breaker.success()
    assert breaker.state is Circuit.CLOSED
    assert opened(1.0).state is Circuit.OPEN


def test_open_time_starts_at_the_failure_not_at_the_start_of_the_call():
    """The original stamped the start of the call: after a 30 s time-out its 10 s were over at once."""
    breaker = opened(now_s=130.0)  # calls that began at 100 and timed out 30 s later
    assert breaker.opened_s == 130.0
    assert not breaker.admit(130.1)
    assert not breaker.admit(139.9)
    assert breaker.retry_after_s(139.0) == 1.0
    assert breaker.admit(140.0)


def test_half_open_lets_one_probe_through_and_closes_after_two():
    breaker = opened(0.0)
    assert breaker.admit(10.0)
    assert not breaker.admit(10.0)
    breaker.success()
    assert breaker.state is Circuit.HALF_OPEN
    assert breaker.admit(10.1)
    breaker.success()
    assert breaker.state is Circuit.CLOSED
    assert breaker.admit(10.2)


def test_a_failed_probe_reopens_the_circuit_for_the_full_time():
    breaker = opened(0.0)
    assert breaker.admit(10.0)
    breaker.failure(12.0)
    assert not breaker.admit(21.9)
    assert breaker.admit(22.0)
    assert breaker.times_opened == 2


def test_an_abandoned_probe_does_not_block_the_circuit():
    breaker = opened(0.0)
    assert breaker.admit(10.0)
    breaker.abandoned()
    assert breaker.admit(10.1)
