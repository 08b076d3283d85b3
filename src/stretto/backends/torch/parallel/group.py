"""The ranks of one model, and the two things they do together: sum a tensor, and take rank 0's.

A process group of its own for each model, NCCL on GPUs and gloo on CPUs. It meets through a file in a private
directory, listens on the loopback interface alone, and carries tensors only: nothing is pickled.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(minutes=30)  # a rank that died is noticed at once; this is for one that hangs


class RankGroup:
    """This process's place among the ranks. `join` comes before the first pass."""

    def __init__(self, rank: int, count: int, device: torch.device) -> None:
        self.rank, self.count, self.device = rank, count, device
        self._group: Any = None
        self._from_first: Any = None

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def join(self, meeting: Path) -> None:
        """Returns when all ranks have joined. `meeting` is the same new file for all."""
        from torch import distributed

        make: Any = distributed
        store = make.FileStore(str(meeting), self.count)
        self._from_first = make.BroadcastOptions()
        self._from_first.rootRank = 0
        if self.device.type == "cuda":
            os.putenv("NCCL_SOCKET_IFNAME", "lo")  # all ranks are on this machine
            torch.cuda.set_device(self.device)
            options = make.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            self._group = make.ProcessGroupNCCL(store, self.rank, self.count, options)
        else:
            options = make.ProcessGroupGloo._Options()
            options._devices = [make.ProcessGroupGloo.create_device(hostname=LOOPBACK, lazy_init=False)]
            options._timeout = TIMEOUT
            self._group = make.ProcessGroupGloo(store, self.rank, self.count, options)
        self.sum(torch.zeros(1, device=self.device))

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place: the same bits on each."""
        self._group.allreduce([x]).wait()
        return x

    def broadcast(self, x: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor, in place on the others."""
        self._group.broadcast([x], self._from_first).wait()
        return x

    def leave(self) -> None:
        self._group = None
