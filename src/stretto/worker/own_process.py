"""Settings of a whole process, made only where the process is Stretto's own.

The worker and the commands that run a model call `claim_process`; the SDK never does, so that a program that
embeds it keeps its own thread switching, its own llama.cpp and its log callback.
"""

from __future__ import annotations

import sys

from stretto.backends.llamacpp.kernels import support
from stretto.backends.llamacpp.native import library

SWITCH_INTERVAL_S = 1e-4  # at the default of 5 ms a 3.1 ms pass takes 8.1 ms beside one busy Python thread


def claim_process() -> None:
    """Call it before a model is loaded."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    support.allow_in_this_process()
    library.claim_process()
