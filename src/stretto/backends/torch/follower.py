"""A follower: `python -m stretto.backends.torch.follower --parent PID`, started by `followers`.

Orders come on stdin, replies go to stdout, logs to stderr. It loads its part of the model, joins the ranks,
and runs the layers of each pass that rank 0 runs. It knows no tokens, requests or sampling. It ends when its
stdin does, when its parent does, and with an error when a pass fails: then rank 0 ends the model.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch

from stretto.backends.torch.compile_count import use_kernel_cache
from stretto.backends.torch.inputs import decode_inputs
from stretto.backends.torch.loading import build_part
from stretto.backends.torch.models import CausalModel
from stretto.backends.torch.parallel import messages as m
from stretto.backends.torch.parallel.group import RankGroup
from stretto.backends.torch.pool import KvPool, pages_that_fit
from stretto.backends.torch.ragged import Ragged, ragged_inputs
from stretto.backends.torch.runner import decode_step
from stretto.backends.torch.staging import Ints, Staging
from stretto.backends.torch.tables import Tables
from stretto.core.tick import TableUpdate
from stretto.errors import StrettoError, TorchError, one_line

PR_SET_PDEATHSIG = 1
STAGING_INTS = 1 << 16


class Follower:
    """The device state of a rank that follows."""

    def __init__(self, model: CausalModel, setup: m.Setup, pages: int) -> None:
        device = model.place.device
        self._model, self._device = model, device
        self._pool = KvPool(model.shape, model.place, pages=pages, page_tokens=setup.page_tokens)
        self._staging = Staging(device, STAGING_INTS)
        self._tables = Tables(
            slots=setup.slots,
            window=setup.window,
            page_tokens=setup.page_tokens,
            pages=pages,
            device=device,
            staging=self._staging,
        )

    def run(self, order: m.Pass) -> None:
        self._tables.update(
            [TableUpdate(slot, offset, tuple(pages)) for slot, offset, pages in order.tables], ()
        )
        self._tables.flush()
        for copy in order.copies:
            self._pool.copy_page(*copy)
        slots, starts = _ints(order.slots), _ints(order.starts)
        if order.counts:
            self._ragged(slots, starts, _ints(order.counts))
        else:
            self._decode(slots, starts)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # nothing is read back that would keep it in step

    def _decode(self, slots: Ints, starts: Ints) -> None:
        columns = torch.stack(self._staging.send(slots, starts, np.zeros_like(slots)))
        found = decode_inputs(columns, self._tables)
        steps = torch.arange(len(slots) + 1, dtype=torch.int32, device=self._device)
        self._model.hidden(found.tokens, decode_step(found, steps), self._pool.layers)

    def _ragged(self, slots: Ints, starts: Ints, counts: Ints) -> None:
        rows, none = int(counts.sum()), np.zeros(len(counts), dtype=np.int32)
        batch = Ragged(slots, starts, counts, outputs=none, tokens=np.zeros(rows, dtype=np.int32))
        found = ragged_inputs(batch, self._tables, self._staging)
        self._model.hidden(found.tokens, found.step, self._pool.layers)


def _ints(column: Sequence[int]) -> Ints:
    return np.array(column, dtype=np.int32)


@torch.inference_mode()
def follow(orders: IO[bytes], replies: IO[bytes]) -> int:
    """Exit status, once there are no more orders."""
    setup = m.read_order(orders)
    if setup is None:
        return 0
    assert isinstance(setup, m.Setup)
    device = torch.device(setup.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(setup.threads)
    use_kernel_cache(Path(setup.kernel_cache) if setup.kernel_cache else None, device)
    group = RankGroup(setup.rank, setup.ranks, device)
    try:
        model = build_part(setup, group)
        pages = _pages(model, setup)
    except StrettoError as error:
        m.write(replies, m.Failed(error.code, error.message, error.hint or ""))
        return 2
    except torch.OutOfMemoryError as error:
        m.write(replies, m.Failed(TorchError.code, str(error), "use more ranks, or a smaller model"))
        return 2
    m.write(replies, m.Loaded(pages))
    begin = m.read_order(orders)
    if begin is None:
        return 0
    assert isinstance(begin, m.Begin)
    follower = Follower(model, setup, begin.pages)
    group.join(Path(setup.meeting))
    m.write(replies, m.Ready())
    while (order := m.read_order(orders)) is not None:
        assert isinstance(order, m.Pass)
        follower.run(order)
    return 0


def _pages(model: CausalModel, setup: m.Setup) -> int:
    return pages_that_fit(
        model.shape,
        model.place,
        slots=setup.slots,
        window=setup.window,
        rows_max=setup.rows_max,
        page_tokens=setup.page_tokens,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description="A rank of a model.")
    parser.add_argument("--parent", type=int, required=True, metavar="PID")
    _die_with(parser.parse_args().parent)
    faulthandler.enable()
    for number in (signal.SIGINT, signal.SIGTERM):  # both are rank 0's to answer: a follower ends with it
        signal.signal(number, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no reply
    try:
        code = follow(sys.stdin.buffer, replies)
    except RuntimeError as error:  # of a collective: another rank has ended
        print(f"a rank ends: {one_line(str(error))}", file=sys.stderr)
        code = 1
    except Exception:  # reported here, because `os._exit` skips what Python would print
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the other ranks are not waited for


def _die_with(parent: int) -> None:
    """By the kernel's signal on Linux; elsewhere by the end of stdin."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    main()
