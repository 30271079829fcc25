"""Connections that requests are sent over without ever waiting for them."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Iterable

from kerolox.client.calls.outgoing import Outgoing, Target
from kerolox.client.calls.signing import finish_request, goes_plain
from kerolox.client.messages import Queue
from kerolox.client.options import ClientOptions
from kerolox.client.sockets.socket_cluster import RECEIVE_BYTES, Line
from kerolox.errors import ConnectionLost
from kerolox.protocol.command import Command, decode_command

_WAIT = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Parcel(Outgoing, gc=False):
    """A request to send, and how many messages it holds."""

    count: int = 1


class Sending:
    """One request on its way."""

    __slots__ = (
        "began_s",
        "deadline_s",
        "doubtful",
        "is_begun",
        "not_before_s",
        "parcel",
        "queue",
        "target",
        "tried",
    )

    def __init__(self, parcel: Parcel, queue: Queue | None, now_s: float) -> None:
        self.parcel = parcel
        self.queue = queue  # it has to go to
        self.target: Target | None = None
        self.began_s = now_s
        self.deadline_s = 0.0  # of this try
        self.not_before_s = now_s
        self.is_begun = False  # some of its bytes have left
        self.doubtful: Queue | None = None  # where it may lie already
        self.tried: list[tuple[str, Exception]] = []


class SendLine(Line):
    """A connection that is never waited for."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        super().__init__(address, options)
        self._socket.setblocking(False)
        self._goes_plain = goes_plain(options)
        self.waiting: dict[int, Sending] = {}
        self._out: deque[tuple[Sending, memoryview]] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_more(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._out)

    def put(self, sending: Sending, target: Target) -> None:
        """Send a request, now as far as the peer takes it."""
        opaque = next(self._opaques)
        frame = self._frame(target, sending.parcel, opaque)
        sending.is_begun = False
        self.waiting[opaque] = sending
        self._out.append((sending, memoryview(frame)))
        self.push()

    def _frame(self, target: Target, parcel: Parcel, opaque: int) -> bytes:
        command = target.command(parcel, opaque, self._options.encoding, plain=self._goes_plain)
        if not self._goes_plain:
            finish_request(command, self._options)
        return command.encode()

    def push(self) -> None:
        """Write what the peer takes. Raises ConnectionLost."""
        out = self._out
        while out:
            sending, data = out[0]
            try:
                count = self._socket.send(data)
            except _WAIT:
                return
            except OSError as error:
                raise ConnectionLost(self.address, error) from error
            sending.is_begun = True
            if count == len(data):
                out.popleft()
            else:
                out[0] = sending, data[count:]

    def pull(self) -> Iterable[tuple[Sending, Command]]:
        """The answers that have come. Raises ConnectionLost, ProtocolError."""
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except _WAIT:
                return
            except OSError as error:
                raise ConnectionLost(self.address, error) from error
            if not data:
                raise ConnectionLost(self.address, "the peer closed it")
            for frame in self._splitter.feed(data):
                answer = decode_command(*frame)
                # A broker may also ask, and nobody here answers; an answer may come when all gave up.
                if answer.is_answer and answer.opaque in self.waiting:
                    yield self.waiting.pop(answer.opaque), answer
            if self._splitter.error is not None:
                raise self._splitter.error
            if len(data) < RECEIVE_BYTES and not isinstance(self._socket, ssl.SSLSocket):
                return

    def overdue(self, now_s: float) -> list[Sending]:
        """Requests whose time is over, waited for no more."""
        late = [opaque for opaque, sending in self.waiting.items() if sending.deadline_s <= now_s]
        found = [self.waiting.pop(opaque) for opaque in late]
        for sending in found:
            if not sending.is_begun:  # what has begun must be written to its end, or the rest makes no sense
                self._out = deque(item for item in self._out if item[0] is not sending)
        return found
