"""BatchCall and BatchEntry: an RPC to the worker and the requests it carries."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stretto.rpc.messages import GenerateParams, PriorityName

PartitionKey = tuple[str, str, str]  # model, draft model, guidance mode


class EntryState(Enum):
    QUEUED = "queued"
    TAKEN = "taken"  # in a call that has not been sent yet
    SENT = "sent"
    DROPPED = "dropped"


@dataclass(slots=True, eq=False)
class BatchEntry:
    """One request that waits to be sent."""

    params: GenerateParams
    priority: PriorityName
    enqueued_s: float
    deadline_s: float | None
    request_id: str
    held: bool = False
    state: EntryState = EntryState.QUEUED


@dataclass(slots=True, eq=False)
class BatchCall:
    """Entries that are sent together. `GenerateBatcher.seal` decides which of them are still sent."""

    id: int
    key: PartitionKey
    entries: list[BatchEntry]
    single: bool = False  # send as `generate`
    sent_s: float = 0.0
    aborted: int = 0  # entries cancelled between forming and sending the batch
