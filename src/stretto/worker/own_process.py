"""Settings of a whole process, made only where the process is Stretto's own.

The worker and the commands that run a model call `claim_process`; the SDK never does, so that a program that
embeds it keeps its own thread switching, its own llama.cpp and its log callback.
"""

from __future__ import annotations

import logging
import os
import sys

from stretto.backends.llamacpp.kernels import support
from stretto.backends.llamacpp.native import library

SWITCH_INTERVAL_S = 1e-4  # at the default of 5 ms a 3.1 ms pass takes 8.1 ms beside one busy Python thread
STATUS_RANK_LOST = 3
_owned: list[int] = []  # this process, once claimed
log = logging.getLogger("stretto.runtime")


def claim_process() -> None:
    """Call it before a model is loaded."""
    _owned[:] = [os.getpid()]
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    support.allow_in_this_process()
    library.claim_process()


def is_claimed() -> bool:
    return _owned == [os.getpid()]


def end_with_rank(reason: str) -> None:
    """Ends the process, as a rank of a model has ended: the ranks cannot go on without each other.

    Requests are then answered as after any death of a worker, and the supervisor starts a new one.
    """
    log.critical("%s; the worker ends with it", reason)
    sys.stderr.flush()
    os._exit(STATUS_RANK_LOST)
