"""When a worker is started, told to show its stacks, ended, replaced, given up on."""

from __future__ import annotations

from stretto.client.supervisor import Action, Supervisor, WorkerState
from stretto.settings import EngineSettings

SETTINGS = EngineSettings(
    hang_soft_s=10,
    hang_hard_s=20,
    kill_grace_s=2,
    restarts_max=3,
    restart_backoff_s=1,
    restart_backoff_max_s=3,
    stable_after_s=5,
    start_timeout_s=30,
)


def up(now_s: float = 0.0) -> Supervisor:
    supervisor = Supervisor(SETTINGS)
    assert supervisor.start(now_s) == [Action.SPAWN]
    supervisor.connected(now_s)
    return supervisor


def silent_for(seconds: float):
    return lambda limit_s: f"silent for {seconds} s" if seconds > limit_s else ""


def test_a_death_is_reported_once_and_the_first_restart_is_immediate():
    supervisor = up()
    assert supervisor.exited(100.0, "SIGSEGV") == [Action.LOST]
    assert supervisor.exited(100.0, "SIGSEGV") == []
    assert supervisor.state is WorkerState.WAITING
    assert supervisor.poll(100.0) == [Action.SPAWN]
    assert supervisor.deaths.restarts == 1
    assert supervisor.deaths.last_reason == "SIGSEGV"


def test_a_broken_connection_kills_and_the_exit_that_follows_is_not_a_second_loss():
    supervisor = up()
    assert supervisor.connection_lost(100.0) == [Action.LOST]
    assert supervisor.connection_lost(100.0) == []
    assert supervisor.poll(100.4) == []
    assert supervisor.poll(100.5) == [Action.KILL]
    assert supervisor.exited(100.6, "SIGKILL") == []
    assert supervisor.deaths.last_reason == "its connection broke"
    assert supervisor.poll(100.6) == [Action.SPAWN]


def test_the_exit_status_of_a_killed_worker_replaces_the_broken_connection():
    supervisor = up()
    assert supervisor.connection_lost(100.0) == [Action.LOST]
    assert supervisor.exited(100.1, "it was killed by SIGKILL") == []
    assert supervisor.deaths.last_reason == "it was killed by SIGKILL"
    assert supervisor.poll(100.1) == [Action.SPAWN]


def test_deaths_soon_after_the_start_wait_longer_and_longer_and_then_it_gives_up():
    supervisor = up()
    now_s, waits = 0.0, []
    while True:
        actions = supervisor.exited(now_s, "status 1")
        if Action.GIVE_UP in actions:
            break
        assert supervisor.restart_at_s is not None
        waits.append(supervisor.restart_at_s - now_s)
        assert supervisor.poll(supervisor.restart_at_s - 0.01) == []
        now_s = supervisor.restart_at_s + 0.01
        assert supervisor.poll(now_s) == [Action.SPAWN]
    assert waits == [0.0, 0.75, 1.5]  # without jitter: a quarter less than 1, 2, …
    assert supervisor.state is WorkerState.FAILED
    assert supervisor.poll(now_s + 2.9) == []


def test_a_crash_loop_is_tried_again_and_ends_when_its_cause_is_gone():
    supervisor = up()
    now_s = 0.0
    while Action.GIVE_UP not in supervisor.exited(now_s, "status 1"):
        now_s = supervisor.restart_at_s + 0.01
        supervisor.poll(now_s)
    for _ in range(3):  # the cause is still there
        now_s = supervisor.restart_at_s
        assert supervisor.state is WorkerState.FAILED
        assert supervisor.poll(now_s) == [Action.SPAWN]
        assert supervisor.exited(now_s, "status 1") == [Action.GIVE_UP]
        assert supervisor.restart_at_s - now_s == SETTINGS.restart_backoff_max_s
    now_s = supervisor.restart_at_s
    assert supervisor.poll(now_s) == [Action.SPAWN]
    supervisor.connected(now_s)
    assert supervisor.state is WorkerState.UP
    assert supervisor.deaths.in_a_row > 0
    assert supervisor.poll(now_s + SETTINGS.stable_after_s) == []
    assert supervisor.deaths.in_a_row == 0
    assert supervisor.exited(now_s + 10, "SIGSEGV") == [Action.LOST]
    assert supervisor.poll(now_s + 10) == [Action.SPAWN]  # at once: it is the first death in a row


def test_a_life_that_lasted_forgives_the_deaths_before_it():
    supervisor = up()
    now_s = 0.0
    for _ in range(20):
        now_s += 5.1
        assert supervisor.exited(now_s, "kill") == [Action.LOST]
        assert supervisor.poll(now_s) == [Action.SPAWN]
        supervisor.connected(now_s)
    assert supervisor.state is WorkerState.UP


def test_a_hang_is_noticed_dumped_aborted_and_killed():
    supervisor = up()
    assert supervisor.poll(1.0, silent_for(0)) == []
    assert supervisor.poll(11.0, silent_for(11)) == [Action.DUMP]
    assert supervisor.state is WorkerState.HUNG
    assert supervisor.poll(12.0, silent_for(12)) == []
    assert supervisor.poll(21.0, silent_for(21)) == [Action.LOST, Action.ABORT]
    assert supervisor.poll(22.0) == []
    assert supervisor.poll(23.1) == [Action.KILL]
    assert supervisor.exited(23.2, "SIGKILL") == []
    assert "silent" in supervisor.deaths.last_reason
    assert supervisor.poll(23.2) == [Action.SPAWN]


def test_a_hang_that_passes_is_forgiven():
    supervisor = up()
    supervisor.poll(11.0, silent_for(11))
    assert supervisor.poll(12.0, silent_for(0)) == []
    assert supervisor.state is WorkerState.UP
    assert supervisor.deaths.hangs == 1


def test_a_worker_that_does_not_start_in_time_is_killed():
    supervisor = Supervisor(SETTINGS)
    supervisor.start(0.0)
    assert supervisor.poll(29.0) == []
    assert supervisor.poll(30.1) == [Action.KILL]
    assert supervisor.exited(30.2, "SIGKILL") == []
    assert supervisor.deaths.last_reason == "not up after 30 s"


def test_stopping_is_polite_then_not_and_nothing_is_restarted():
    supervisor = up()
    assert supervisor.stop(10.0) == []
    assert supervisor.poll(11.0) == []
    assert supervisor.poll(12.1) == [Action.KILL]
    supervisor.exited(12.2, "SIGKILL")
    assert supervisor.state is WorkerState.DOWN
    assert supervisor.poll(1000.0) == []
