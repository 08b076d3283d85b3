"""One connection to the worker: its calls, streams and subscriptions.

Every call is answered exactly once. An accepted `generate` ends exactly once, in a `stream.batch`; a rejected
one has no stream. Closing the connection cancels all its streams.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Protocol

from stretto.errors import (
    CapacityError,
    DuplicateRequestError,
    FrameError,
    InvalidRequestError,
    PeerRefusedError,
    ReplyTooLargeError,
    TooLargeError,
)
from stretto.rpc.connection import Connection
from stretto.rpc.envelope import Call, Malformed, Received, Reply
from stretto.rpc.messages import AuthParams, Empty, Error, Message, error_from
from stretto.rpc.sockets import token_matches
from stretto.text.model_text import Prompt
from stretto.worker.model import ModelRuntime, PreparedRequest
from stretto.worker.outbox import Mailbox
from stretto.worker.pool import PoolEntry

STREAM_ID_CHARS_MAX = 256
AUTH_TIMEOUT_S = 5.0
AUTHENTICATE = "runtime/authenticate"
OWNERS_METHODS = frozenset({"drain", "routing", "shutdown"})
log = logging.getLogger("stretto.runtime")
_numbers = itertools.count(1)


def logged(error: BaseException, method: str) -> Error:
    """The error to answer with. Errors not caused by the caller are logged with their traceback."""
    message = error_from(error)
    if message.code == "internal_error":
        log.error("%s failed", method, exc_info=error)
    return message


@dataclass(slots=True, eq=False)
class StreamRecord:
    """One generation of this connection, from its call to its end."""

    id: str
    request_id: str
    forks: bool = False  # it reuses the prompt of another stream
    entry: PoolEntry | None = None
    model: ModelRuntime | None = None  # once submitted
    cancelled: bool = False
    preparing: asyncio.Future[PreparedRequest] | None = None  # until submitted
    held: object = None  # its compiled grammar
    prompt: asyncio.Future[Prompt] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class SessionHandler(Protocol):
    """What a session needs from the worker: the methods, and notification of ends."""

    def handler(self, session: Session, method: str, params: Message) -> Awaitable[Message] | Message: ...
    def stream_over(self, record: StreamRecord) -> None: ...
    def session_over(self, session: Session) -> None: ...


class Session:
    def __init__(
        self,
        connection: Connection,
        dispatcher: SessionHandler,
        *,
        calls_pending_max: int,
        unread_bytes_max: int,
        token: str | None = None,
        owner: bool = True,
    ) -> None:
        self.connection = connection
        self.streams: dict[str, StreamRecord] = {}
        self.watching = False
        self.mailbox = Mailbox(
            connection, unread_bytes_max=unread_bytes_max, on_end=self.forget, on_cut=self.cancel
        )
        self._dispatcher = dispatcher
        self._calls_pending_max = calls_pending_max
        self._token = token  # until the peer has authenticated
        self._owner = owner  # whether it may stop the worker
        self._number = next(_numbers)
        self._tasks: set[asyncio.Future[Message]] = set()
        self._named: dict[str, asyncio.Future[Message]] = {}  # calls that can be cancelled by id
        connection.open(self._receive, self._closed)
        if token is not None:
            asyncio.get_running_loop().call_later(AUTH_TIMEOUT_S, self._check_authenticated)

    @property
    def trusted(self) -> bool:
        return self._token is None

    # --- streams ---------------------------------------------------------------------------------

    def register(self, stream_id: str, *, forks: bool = False) -> StreamRecord:
        """Register a new stream; raises if its id is in use."""
        if not 1 <= len(stream_id) <= STREAM_ID_CHARS_MAX:
            raise InvalidRequestError(
                f"a stream id has {len(stream_id)} characters", hint=f"send 1 to {STREAM_ID_CHARS_MAX}"
            )
        if stream_id in self.streams:
            raise DuplicateRequestError(f"stream id {stream_id!r} is in use")
        record = StreamRecord(stream_id, self.request_id(stream_id), forks)
        self.streams[stream_id] = record
        return record

    def has(self, record: StreamRecord) -> bool:
        return self.streams.get(record.id) is record

    def request_id(self, stream_id: str) -> str:
        return f"{self._number}/{stream_id}"

    def forget(self, stream_id: str) -> None:
        record = self.streams.pop(stream_id, None)
        if record is not None:
            if not record.prompt.done():
                record.prompt.cancel()
            self._dispatcher.stream_over(record)

    def cancel(self, stream_id: str) -> None:
        """Unknown ids are ignored: the stream may just have ended."""
        record = self.streams.get(stream_id)
        if record is None:
            if (named := self._named.get(stream_id)) is not None:
                named.cancel()
            return
        record.cancelled = True
        if record.model is not None:
            record.model.cancel(record.request_id)
        elif record.preparing is not None:
            record.preparing.cancel()  # leaves its lane, or kills its grammar trial

    def stop(self, stream_id: str, tokens_kept: int) -> None:
        """A stop string ended a stream's text. Unknown ids are ignored, as in `cancel`."""
        record = self.streams.get(stream_id)
        if record is not None and record.model is not None and tokens_kept >= 0:
            record.model.stop(record.request_id, tokens_kept)

    # --- calls -----------------------------------------------------------------------------------

    def _receive(self, received: Received) -> None:
        if isinstance(received, Malformed):
            self.connection.send(received.reply())
        elif not isinstance(received, Call):
            self.connection.close(FrameError("only calls are expected on this connection"))
        elif self._token is not None:
            self._authenticate(received, self._token)
        elif len(self._tasks) >= self._calls_pending_max:
            self._refuse(received, CapacityError(f"{len(self._tasks)} calls are already pending"))
        else:
            self._start(received)

    def _start(self, call: Call) -> None:
        """Fast methods are answered immediately, others by a task."""
        if call.method in OWNERS_METHODS and not self._owner:
            self._refuse(call, PeerRefusedError(f"{call.method} is for the supervisor of this worker alone"))
            return
        try:
            answer = self._dispatcher.handler(self, call.method, call.params)
        except Exception as error:
            self._refuse(call, error)
            return
        if isinstance(answer, Message):
            self._reply(call, answer)
            return
        task = asyncio.ensure_future(answer)
        self._tasks.add(task)
        if name := getattr(call.params, "call_id", ""):
            self._named[name] = task
            task.add_done_callback(lambda _: self._named.pop(name, None))
        task.add_done_callback(lambda done: self._answer(call, done))

    def _answer(self, call: Call, done: asyncio.Future[Message]) -> None:
        self._tasks.discard(done)
        if done.cancelled():  # by its caller, or because the connection closed (then nothing is sent)
            self.connection.send(Reply(call.id, error=Error(code="cancelled", message="call cancelled")))
            return
        error = done.exception()
        if error is not None:
            self._refuse(call, error)
        else:
            self._reply(call, done.result())

    def _reply(self, call: Call, result: Message) -> None:
        """A result that cannot be sent fails only its call; the connection and its streams continue."""
        try:
            self.connection.send(Reply(call.id, result=result))
        except TooLargeError as error:
            self._refuse(
                call, ReplyTooLargeError(f"the answer to {call.method} is too large: {error.message}")
            )
        except Exception as error:
            self._refuse(call, error)

    def _refuse(self, call: Call, error: BaseException) -> None:
        self.connection.send(Reply(call.id, error=logged(error, call.method)))

    def _authenticate(self, call: Call, token: str) -> None:
        given = call.params.token if isinstance(call.params, AuthParams) else ""
        if call.method == AUTHENTICATE and token_matches(given, token):
            self._token = None
            self.connection.send(Reply(call.id, result=Empty()))
            return
        self._refuse(call, PeerRefusedError("the first call must authenticate with the correct token"))
        self.connection.close()

    def _check_authenticated(self) -> None:
        if self._token is not None:
            self.connection.close(PeerRefusedError("the peer did not authenticate in time"))

    # --- the end ---------------------------------------------------------------------------------

    def _closed(self, error: Exception | None) -> None:
        if error is not None:
            log.info("connection closed: %s", error)
        for stream_id in list(self.streams):
            self.cancel(stream_id)
            self.forget(stream_id)
        for task in list(self._tasks):
            task.cancel()
        self._dispatcher.session_over(self)
