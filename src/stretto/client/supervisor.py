"""Supervisor: decides when to start the worker, when it hangs, and when to kill, restart or give up on it.

A pure state machine without a clock: the shell (`client.host`) reports events and carries out the actions. It
knows nothing about requests. Workers that die soon after their start count towards a crash loop: then
requests are rejected, the error is logged, and one restart is tried every `restart_backoff_max_s`, so the
loop ends once its cause is gone. A hung worker is asked for its stacks, then aborted, then killed; a worker
whose connection broke is killed too, after a short wait for its own exit status.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from stretto.settings import EngineSettings

EXIT_STATUS_S = 0.5  # wait for the exit status after the connection broke


class WorkerState(Enum):
    DOWN = "down"  # not started, or stopped on request
    STARTING = "starting"
    UP = "up"
    HUNG = "hung"
    ENDING = "ending"  # killed, not exited yet
    WAITING = "restarting"
    FAILED = "crash loop"  # a restart is tried later; requests are rejected meanwhile

    @property
    def reason(self) -> str:
        """Why requests are rejected, for callers, who need not know the steps of a restart."""
        if self is WorkerState.DOWN:
            return "not started"
        return "restarting" if self in (WorkerState.STARTING, WorkerState.ENDING) else self.value


class Action(Enum):
    SPAWN = "spawn"
    DUMP = "dump stacks"
    ABORT = "abort"
    KILL = "kill"
    LOST = "lost"  # its work is lost: notify all waiting requests
    GIVE_UP = "give up"


@dataclass(slots=True)
class Deaths:
    """For metrics and for the log."""

    restarts: int = 0
    hangs: int = 0
    in_a_row: int = 0
    last_reason: str = ""


@dataclass(slots=True)
class Supervisor:
    settings: EngineSettings
    jitter: Callable[[], float] = lambda: 0.0  # 0 to 1
    state: WorkerState = WorkerState.DOWN
    deaths: Deaths = field(default_factory=Deaths)
    hang: str = ""  # what hangs, as text
    _since_s: float = 0.0
    _kill_at_s: float | None = None
    _killed: bool = False  # we killed it: its exit status says nothing
    _lost_told: bool = True
    _stopping: bool = False

    # --- events ----------------------------------------------------------------------------------

    def start(self, now_s: float) -> list[Action]:
        self._stopping = False
        self.deaths.in_a_row = 0
        return self._spawn(now_s)

    def connected(self, now_s: float) -> None:
        if self.state is WorkerState.STARTING:
            self._enter(WorkerState.UP, now_s)
            self._lost_told = False

    def connection_lost(self, now_s: float, reason: str = "its connection broke") -> list[Action]:
        """The worker is unreachable: its work is lost and the process is ended.

        Usually it has already died and its exit status, which says more, follows shortly; otherwise it is
        killed.
        """
        if self.state not in {WorkerState.UP, WorkerState.HUNG}:
            return []
        self.deaths.last_reason = reason
        self._note_life(now_s)
        self.state, self._killed = WorkerState.ENDING, False
        self._kill_at_s = now_s + EXIT_STATUS_S
        return self._tell_lost()

    def exited(self, now_s: float, reason: str) -> list[Action]:
        if self.state in {WorkerState.DOWN, WorkerState.WAITING, WorkerState.FAILED}:
            return []
        if self.state is not WorkerState.ENDING or not self._killed:
            self.deaths.last_reason = reason
        actions = self._tell_lost()
        if self._stopping:
            self._enter(WorkerState.DOWN, now_s)
            return actions
        return [*actions, *self._after_death(now_s)]

    def stop(self, now_s: float) -> list[Action]:
        """Stop on request. The shell sends SIGTERM first; the worker is killed if that takes too long."""
        self._stopping = True
        if self.state in {WorkerState.DOWN, WorkerState.WAITING, WorkerState.FAILED}:
            self._enter(WorkerState.DOWN, now_s)
            return []
        self.state, self._killed = WorkerState.ENDING, True
        self._kill_at_s = now_s + self.settings.kill_grace_s
        return []

    # --- time ------------------------------------------------------------------------------------

    def poll(self, now_s: float, hang: Callable[[float], str] = lambda _seconds: "") -> list[Action]:
        """`hang(s)`: which part has made no progress for `s` seconds, as text; empty if none."""
        if self.state in {WorkerState.WAITING, WorkerState.FAILED} and now_s >= self._since_s:
            return self._spawn(now_s)
        if self.state is WorkerState.ENDING and self._kill_at_s is not None and now_s >= self._kill_at_s:
            self._kill_at_s, self._killed = None, True
            return [Action.KILL]
        if self.state is WorkerState.STARTING and now_s - self._since_s > self.settings.start_timeout_s:
            self.deaths.last_reason = f"not up after {self.settings.start_timeout_s:g} s"
            return self._end(now_s, Action.KILL)
        if self.state in {WorkerState.UP, WorkerState.HUNG}:
            return self._watch(now_s, hang)
        return []

    def _watch(self, now_s: float, hang: Callable[[float], str]) -> list[Action]:
        self.hang = hang(self.settings.hang_soft_s)
        if now_s - self._since_s >= self.settings.stable_after_s:
            self.deaths.in_a_row = 0  # stable: the cause of earlier deaths is gone
        if not self.hang:
            self.state = WorkerState.UP  # it recovered
            return []
        actions: list[Action] = []
        if self.state is WorkerState.UP:
            self.state = WorkerState.HUNG
            self.deaths.hangs += 1
            actions.append(Action.DUMP)
        longest = hang(self.settings.hang_hard_s)
        if longest:
            self.deaths.last_reason = longest
            actions += [*self._tell_lost(), *self._end(now_s, Action.ABORT)]
        return actions

    @property
    def restart_at_s(self) -> float | None:
        return self._since_s if self.state in {WorkerState.WAITING, WorkerState.FAILED} else None

    # --- inside ----------------------------------------------------------------------------------

    def _spawn(self, now_s: float) -> list[Action]:
        self._enter(WorkerState.STARTING, now_s)
        return [Action.SPAWN]

    def _end(self, now_s: float, action: Action) -> list[Action]:
        """Record its uptime, then kill it."""
        self._note_life(now_s)
        self.state, self._killed = WorkerState.ENDING, True
        self._kill_at_s = now_s + self.settings.kill_grace_s if action is Action.ABORT else None
        return [action]

    def _after_death(self, now_s: float) -> list[Action]:
        if self.state is not WorkerState.ENDING:
            self._note_life(now_s)
        if self.deaths.in_a_row > self.settings.restarts_max:
            self._enter(WorkerState.FAILED, now_s + self.settings.restart_backoff_max_s)
            return [Action.GIVE_UP]
        self.deaths.restarts += 1
        self._enter(WorkerState.WAITING, now_s + self._backoff_s())
        return []

    def _note_life(self, now_s: float) -> None:
        served_s = now_s - self._since_s if self.state in {WorkerState.UP, WorkerState.HUNG} else 0.0
        self.deaths.in_a_row = 1 if served_s >= self.settings.stable_after_s else self.deaths.in_a_row + 1

    def _backoff_s(self) -> float:
        """No delay before the first restart, then doubling, with a jitter of 25 %."""
        if self.deaths.in_a_row <= 1:
            return 0.0
        doubled = self.settings.restart_backoff_s * 2.0 ** (self.deaths.in_a_row - 2)
        return min(doubled, self.settings.restart_backoff_max_s) * (0.75 + 0.5 * self.jitter())

    def _tell_lost(self) -> list[Action]:
        if self._lost_told:
            return []
        self._lost_told = True
        return [Action.LOST]

    def _enter(self, state: WorkerState, now_s: float) -> None:
        self.state, self._since_s, self._kill_at_s, self.hang = state, now_s, None, ""
