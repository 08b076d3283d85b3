"""A worker process that looks like an older build to the client: it does not announce `batch_generate`."""

from __future__ import annotations

import msgspec

from stretto.client.process import ProcessChild, ProcessLauncher
from stretto.rpc.connection import Closed, Connection, Receive
from stretto.rpc.envelope import Envelope, Received, Reply
from stretto.rpc.messages import WorkerInfo


class WithoutBatching:
    """A connection that removes a capability from the first answer, which is always `runtime/info`'s."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._first = True
        self.counters = connection.counters

    def open(self, receive: Receive, closed: Closed) -> None:
        self._connection.open(lambda envelope: receive(self._seen(envelope)), closed)

    def _seen(self, envelope: Received) -> Received:
        if not self._first or not isinstance(envelope, Reply):
            return envelope
        self._first = False
        assert isinstance(envelope.result, msgspec.Raw)
        info = msgspec.json.decode(envelope.result, type=WorkerInfo)
        info.capabilities.remove("batch_generate")
        return Reply(envelope.id, result=info)

    def send(self, envelope: Envelope) -> None:
        self._connection.send(envelope)

    def close(self, error: Exception | None = None) -> None:
        self._connection.close(error)

    @property
    def is_closed(self) -> bool:
        return self._connection.is_closed

    @property
    def unsent_bytes(self) -> int:
        return self._connection.unsent_bytes

    def send_now(self, envelope: Envelope) -> bool:
        return self._connection.send_now(envelope)


class OldChild(ProcessChild):
    async def connect(self) -> Connection:
        return WithoutBatching(await super().connect())


class OldLauncher(ProcessLauncher):
    child = OldChild
