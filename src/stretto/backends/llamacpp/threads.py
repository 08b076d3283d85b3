"""How many threads compute a pass: all of them on a free machine, fewer beside other busy processes.

llama.cpp's threads meet at a barrier after every operation, some hundred times a pass. When one of them is
descheduled, the others spin until it runs again: beside one busy process on two cores, two threads decoded at
0.4 of one thread's speed. So threads that wait for a processor are given up, and taken back once
processors are free. A return that had to be undone at once makes the next one wait longer.

In a crowd, where each thread waits for more than half of the time, two threads are better than one: they get
two shares of the processors (beside four busy processes on two cores 1.3 times the speed of one).

An encoder of pictures takes processors, too. When it has ended, all threads are taken back at once; also when
one begins that leaves ticks the processors (`encoder_time`): decoding its picture took some shortly before.
Beside such a one each thread has a processor of its own (`bound_threads`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from stretto.backends.llamacpp.context import Context
from stretto.backends.llamacpp.encoder_time import EncoderTime
from stretto.backends.llamacpp.native.bound_threads import BoundThreads
from stretto.backends.llamacpp.native.cpu_pressure import Pressure, Pressures, open_pressure
from stretto.backends.llamacpp.native.openmp_team import release_team

DROP_AFTER_S = 0.08  # passes are watched at least this long before a thread is given up
WAITED_SHARE = 0.42  # of that time: what computing threads may wait for a processor
RETURN_AFTER_S = 0.3  # processors are watched at least this long before a thread is taken back
RETURN_AFTER_MAX_S = 5.0
FREE_PER_THREAD = 0.5  # of a processor, for each thread that is taken back
UNDONE_S = 2.0  # a return that lasts less was a mistake
OTHERS_S = 0.5  # threads that are given up so long ago were so because of other processes
HELD_S = 2.0  # after an encoder, while the rows of its picture are computed
CROWDED_SHARE = 0.55  # of the time: where each thread waits so long, a second one gets a second share


class ThreadGovernor:
    """Decides after each pass. `count` is how many threads the next one gets."""

    def __init__(
        self, threads_max: int, pressures: Pressures, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.count = self.threads_max = threads_max
        self.changes = 0
        self.busy: tuple[int, ...] = ()  # threads that compute passes, as seen last
        self._pressures = pressures
        self._clock = clock
        self._computing_s = 0.0
        self._begun_s = clock()
        self._return_after_s = RETURN_AFTER_S
        self._returned_s = self._lowered_s = float("-inf")

    @property
    def reduced_s(self) -> float:
        """For how long passes have had fewer threads."""
        return self._clock() - self._lowered_s if self.count < self.threads_max else 0.0

    def after_pass(self, pass_s: float) -> bool:
        """Whether `count` changed."""
        self._computing_s += pass_s
        reduced = self.count < self.threads_max
        if self._computing_s < DROP_AFTER_S:
            return False
        if reduced and self._clock() - self._begun_s < self._return_after_s:
            return False
        seen = self._pressures.since(computing_s=self._computing_s)
        self.busy = seen.busy
        count = self._raised(seen) if reduced else self.count
        if count == self.count:
            count = self._lowered(seen)
        self._computing_s, self._begun_s = 0.0, self._clock()
        if count == self.count:
            return False
        self._note(count)
        return True

    def restore(self) -> None:
        """What took processors away is known to be over: all threads again."""
        if self.count == self.threads_max:
            return
        self._pressures.since(computing_s=self._computing_s)  # how it was until now says nothing any more
        self._computing_s, self._begun_s = 0.0, self._clock()
        self._return_after_s = RETURN_AFTER_S
        self.count = self.threads_max
        self.busy = ()
        self.changes += 1

    def close(self) -> None:
        self._pressures.close()

    def _lowered(self, seen: Pressure) -> int:
        """As many threads as there are processors for; short bursts of other work leave enough of them."""
        if self.count == 1 or seen.waited_s < WAITED_SHARE * min(self._computing_s, seen.wall_s):
            return self.count
        fewest = min(2, self.count) if self._crowded(seen) else 1
        return max(fewest, min(self.count, round(seen.free_cores)))

    def _raised(self, seen: Pressure) -> int:
        if self.count == 1 and self._crowded(seen):
            return min(2, self.threads_max)
        more = int((seen.free_cores - self.count) / FREE_PER_THREAD)
        return min(self.threads_max, self.count + max(0, more))

    def _crowded(self, seen: Pressure) -> bool:
        return seen.waited_s >= CROWDED_SHARE * self.count * min(self._computing_s, seen.wall_s)

    def _note(self, count: int) -> None:
        now = self._clock()
        if self.count == self.threads_max:
            self._lowered_s = now
        if count > self.count:
            self._returned_s = now
        elif now - self._returned_s < UNDONE_S:
            self._return_after_s = min(RETURN_AFTER_MAX_S, 2 * self._return_after_s)
        else:
            self._return_after_s = RETURN_AFTER_S
        self.count = count
        self.changes += 1


class PassThreads:
    """How many threads the next pass of a context gets: other numbers for decode passes and for prompts.

    llama.cpp itself distinguishes passes of one row from all others, so both of its numbers are set before
    a pass of the other kind.
    """

    def __init__(
        self,
        *,
        decode: int,
        prefill: int,
        governor: ThreadGovernor | None,
        encoder: EncoderTime | None = None,
    ) -> None:
        """`encoder`: the time of an encoder of this process."""
        self._decode, self._prefill = decode, prefill
        self._bound = BoundThreads()
        self._binding = threading.Lock()  # encoders have threads of their own
        self._held_until_s = 0.0
        self._governor = governor
        self._encoder = encoder
        if encoder is not None:
            encoder.is_crowded, encoder.begins, encoder.ends = (
                self._is_crowded,
                self._bind,
                self._hold,
            )
        self._encoded = False  # it did, before the last pass
        self._pass_s = 0.0  # of the last tick
        self._set: dict[int, int] = {}  # of each context

    @property
    def count(self) -> int:
        """For the next decode pass."""
        return self._limited(self._decode)

    @property
    def reduced(self) -> bool:
        """Whether other processes take processors away."""
        return self._governor is not None and self._governor.count < self._governor.threads_max

    def before_tick(self) -> None:
        """Leave processors to an encoder that needs many ticks' time."""
        if self._encoder is not None:
            self._encoder.leave(self._pass_s)

    def before_pass(self, context: Context, *, decode: bool) -> None:
        if self._encoder is not None and self._governor is not None:
            encodes = self._encoder.is_encoding
            if self._encoded != encodes and (self._encoded or self._encoder.is_left_time):
                self._governor.restore()
            self._encoded = encodes
            self._release(self._governor)
        count = self._limited(self._decode if decode else self._prefill)
        if self._set.get(id(context)) != count:
            context.set_threads(count, count)
            self._set[id(context)] = count

    def rest(self) -> None:
        """Give up the team. The next one inherits the processors of this thread, which must be all."""
        with self._binding:
            if self._governor is not None:
                self._governor.busy = ()
            self._bound.release()
            release_team()

    def _bind(self) -> None:
        governor = self._governor
        with self._binding:
            if governor is not None and governor.count == self._decode == self._prefill == len(governor.busy):
                self._bound.bind(governor.busy)

    def _hold(self) -> None:
        self._held_until_s = time.perf_counter() + HELD_S

    def _release(self, governor: ThreadGovernor) -> None:
        """Bound threads, after a while, or as soon as there are fewer of them."""
        if self._encoder is None or self._encoder.is_left_time:
            return
        if governor.count < governor.threads_max or time.perf_counter() >= self._held_until_s:
            with self._binding:
                self._bound.release()

    def _is_crowded(self) -> bool:
        return self._governor is not None and self._governor.reduced_s >= OTHERS_S

    def after_pass(self, pass_s: float) -> None:
        self._pass_s = pass_s
        left = self._encoder is not None and self._encoder.is_left_time  # it takes nothing from passes
        if self._governor is not None and not left:
            self._governor.after_pass(pass_s)

    def forget(self) -> None:
        """Contexts were made anew."""
        self._set.clear()

    def close(self) -> None:
        if self._governor is not None:
            self._governor.close()

    def _limited(self, count: int) -> int:
        return count if self._governor is None else min(count, self._governor.count)


def open_governor(threads_max: int) -> ThreadGovernor | None:
    """None where there is nothing to decide, or where the system does not say how busy it is."""
    if threads_max < 2:
        return None
    pressures = open_pressure()
    return None if pressures is None else ThreadGovernor(threads_max, pressures)


def pass_threads(
    context: Context, *, decode: int, prefill: int, encoder: EncoderTime | None = None
) -> PassThreads:
    """As the options say, else as many as were measured to be best (0: not measured), else all.

    A governor only where the number of threads was left to us and processors do the work.
    """
    options = context.options
    decode = options.n_threads or decode or context.plan.n_threads
    prefill = options.n_threads_batch or options.n_threads or prefill or context.plan.n_threads
    governed = not options.n_threads and not context.model.on_gpu
    governor = open_governor(max(decode, prefill)) if governed else None
    return PassThreads(decode=decode, prefill=prefill, governor=governor, encoder=encoder)
