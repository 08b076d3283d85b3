"""What holds for all tests: the same examples each time, so that a failure can be met again.

New examples are for `make prove` (STRETTO_PROVE=1), where somebody looks at what they find.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from stretto.backends.llamacpp.kernels import support

support.allow_in_this_process()  # tests compute with the kernels of the worker

settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,  # machines are shared: time is measured in benchmarks/
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
if not os.environ.get("STRETTO_PROVE"):
    settings.load_profile("repeatable")
