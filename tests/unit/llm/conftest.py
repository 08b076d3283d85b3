"""Every test of the SDK that takes `own_process` runs with a model in this process and in a worker."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", params=[False, True], ids=["inside", "child"])
def own_process(request) -> bool:
    return request.param
