"""Connections over sockets: one that waits for its answers, and one that never waits."""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections import deque
from collections.abc import Iterable
from sys import getrefcount
from typing import cast

from kerolox.client.calls.outgoing import Outgoing, SendCommand, Target
from kerolox.client.calls.send_attempts import SendAttempt
from kerolox.client.calls.signing import adds_no_fields, finish_request, frame_signer
from kerolox.client.messages import Queue
from kerolox.client.options import ClientOptions
from kerolox.client.stamps import next_stamp, stamps_of
from kerolox.errors import ConnectFailed, ConnectionLost, RequestTimeout
from kerolox.net.tls import client_context
from kerolox.protocol.codes import Language, request_name
from kerolox.protocol.command import Command, decode_command, language_of, request
from kerolox.protocol.frame import Frame, FrameSplitter, LongFrame
from kerolox.protocol.header import Header

RECEIVE_BYTES = 1 << 18
# A body as long as this is received where it stays, in one piece; what comes before it in small ones, since
# all that is received with it has to be copied.
LONG_BYTES = 1 << 17
PIECE_BYTES = 1 << 14
ROOM_BYTES = 1 << 20
ROOMS_MAX = 4
UNUSED = 2  # references: the list's, and the one that is handed over to be counted

_WAIT: tuple[type[OSError], ...] = (BlockingIOError, InterruptedError)


class Rooms:
    """Memory for long bodies, used again when nobody looks at what lay in it: the system takes longer to
    give new memory than to fill it."""

    def __init__(self) -> None:
        self._rooms: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """So many bytes, with anything in them."""
        for number in range(len(self._rooms)):
            # A view of it counts, and so does all that was made of the view.
            if len(self._rooms[number]) >= size and getrefcount(self._rooms[number]) == UNUSED:
                return memoryview(self._rooms[number])[:size]
        if len(self._rooms) == ROOMS_MAX:
            del self._rooms[0]  # whoever looks at it keeps it
        self._rooms.append(bytearray(max(size, ROOM_BYTES)))
        return memoryview(self._rooms[-1])[:size]


class Line:
    """One blocking connection. Answers come in any order and are kept until asked for."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self.address = address
        self._options = options
        self._stamps = stamps_of(options)
        self._timeout_s = options.request_timeout_s
        self._opaques = itertools.count(random.randrange(1 << 16))
        self._splitter = FrameSplitter()
        self._long: LongFrame | None = None  # that is being received
        self._rooms = Rooms()
        self._receive_bytes = RECEIVE_BYTES
        self.language: Language | None = None  # of who answers, when it has
        self._answers: dict[int, Command] = {}
        self._forgotten: set[int] = set()
        self._waits_s = -1.0
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), options.connect_timeout_s)
        except (OSError, ValueError) as error:
            raise ConnectFailed(address, error) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if options.tls is not None:
                context = client_context(options.tls)
                self._socket = context.wrap_socket(self._socket, server_hostname=host.strip("[]"))
        except (OSError, ValueError) as error:  # errors of TLS are of the first kind
            self._socket.close()
            raise ConnectFailed(address, error) from error

    def send(self, code: int, header: Header | None = None, body: bytes = b"") -> int:
        """Send a request; what it returns is given to :meth:`receive`."""
        opaque, frame = self.prepare(code, header, body)
        self.send_bytes(frame)
        return opaque

    def prepare(self, code: int, header: Header | None = None, body: bytes = b"") -> tuple[int, bytes]:
        """A request that goes out by :meth:`send_bytes`, with others perhaps; its opaque, and its bytes."""
        options = self._options
        command = request(code, header, body, opaque=next(self._opaques), encoding=options.encoding)
        finish_request(command, options, next_stamp(self._stamps))
        return command.opaque, command.encode()

    def next_opaque(self) -> int:
        """The number of a request that is made elsewhere and goes out by :meth:`send_bytes`."""
        return next(self._opaques)

    def send_bytes(self, frame: bytes) -> None:
        try:
            self._wait_for(self._timeout_s)
            self._socket.sendall(frame)
        except OSError as error:
            self.close()
            raise ConnectionLost(self.address, error) from error

    def _wait_for(self, seconds: float) -> None:
        if seconds != self._waits_s:  # setting it is a call to the system
            self._socket.settimeout(seconds)
            self._waits_s = seconds

    def forget(self, opaque: int) -> None:
        """Discard the response to a request."""
        if self._answers.pop(opaque, None) is None:
            self._forgotten.add(opaque)

    def receive(self, opaque: int, timeout_s: float, what: str = "request") -> Command:
        """The answer to a request. A long body is a memoryview: nobody has copied it."""
        deadline_s = time.monotonic() + timeout_s
        while opaque not in self._answers:
            if time.monotonic() >= deadline_s:
                self.close()  # its answer may still come, and would be taken for another's
                raise RequestTimeout(self.address, what, timeout_s)
            try:
                self._wait_for(timeout_s)
                frames = self._received()
            except TimeoutError:
                continue
            except OSError as error:
                self.close()
                raise ConnectionLost(self.address, error) from error
            for frame in frames:
                answer = decode_command(*frame)
                if not answer.is_answer:  # a broker may also ask; nobody here answers
                    continue
                if self.language is None:
                    self.language = language_of(answer)
                if answer.opaque in self._forgotten:
                    self._forgotten.discard(answer.opaque)
                else:
                    self._answers[answer.opaque] = answer
            if self._splitter.error is not None:
                self.close()
                raise self._splitter.error
        return self._answers.pop(opaque)

    def _received(self) -> list[Frame]:
        """The frames that are whole after one more call to the system. Raises OSError."""
        long = self._long
        if long is not None:
            count = self._socket.recv_into(long.room)
            if not count:
                raise ConnectionResetError("the peer closed it")
            long.filled += count
            if not long.is_whole:
                return []
            self._long = None
            return [(long.encoding, long.header, cast(bytes, long.body))]
        data = self._socket.recv(self._receive_bytes)
        if not data:
            raise ConnectionResetError("the peer closed it")
        frames = self._splitter.feed(data)
        self._long = self._splitter.take_long(LONG_BYTES, self._rooms.take)
        if self._long is not None:
            self._receive_bytes = PIECE_BYTES
        elif len(data) == self._receive_bytes:  # many small ones wait
            self._receive_bytes = RECEIVE_BYTES
        return frames

    def ask(
        self, code: int, header: Header | None = None, body: bytes = b"", *, timeout_s: float | None = None
    ) -> Command:
        opaque = self.send(code, header, body)
        return self.receive(opaque, timeout_s or self._timeout_s, request_name(code))

    def close(self) -> None:
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0


class Parcel(Outgoing, gc=False):
    """A request to send, and how many messages it holds. Its body may lie in pieces, and ``body`` is empty
    then: they are sent from where they lie."""

    count: int = 1
    pieces: tuple[memoryview | bytes, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of the body."""
        return len(self.body) + sum(map(len, self.pieces))

    def join(self) -> bytes:
        """The body, in one piece from now on."""
        if self.pieces:
            self.body, self.pieces = b"".join(self.pieces), ()
        return self.body


class Sending:
    """One request on its way."""

    __slots__ = (
        "attempt",
        "began_s",
        "deadline_s",
        "is_begun",
        "maybe_stored_in",
        "not_before_s",
        "parcel",
        "queue",
        "target",
    )

    def __init__(self, parcel: Parcel, queue: Queue | None, now_s: float) -> None:
        self.parcel = parcel
        self.queue = queue  # it has to go to
        self.target: Target | None = None
        self.began_s = now_s
        self.deadline_s = 0.0  # of this try
        self.not_before_s = now_s
        self.is_begun = False  # some of its bytes have left
        self.maybe_stored_in: Queue | None = None  # queue of an attempt without a response
        self.attempt: SendAttempt | None = None  # failed attempts


def followed_by(frame: bytes, size_bytes: int) -> bytes:
    """The frame of a request without a body as the beginning of one that has so much of it."""
    return (int.from_bytes(frame[:4]) + size_bytes).to_bytes(4) + frame[4:]


class SendLine(Line):
    """A connection that is never waited for."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        super().__init__(address, options)
        self._socket.setblocking(False)
        self._wait, self._is_plain = _WAIT, options.tls is None
        if options.tls is not None:
            import ssl

            self._wait = (*_WAIT, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        self._signer = frame_signer(options)
        self._uses_templates = self._signer is not None or adds_no_fields(options)
        # A signature is over the whole body, and TLS takes one piece at a time.
        self._takes_pieces = (
            not options.access_key and options.tls is None and hasattr(self._socket, "sendmsg")
        )
        self.waiting: dict[int, Sending] = {}
        self._out: deque[tuple[Sending, list[memoryview]]] = deque()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def has_more(self) -> bool:
        """True if data waits to be written."""
        return bool(self._out)

    def put(self, sending: Sending, target: Target) -> None:
        """Send a request, now as far as the peer takes it."""
        opaque = next(self._opaques)
        parcel = sending.parcel
        if not self._takes_pieces:
            parcel.join()
        frame = self._frame(target, parcel, opaque)
        views = [memoryview(frame)]
        if parcel.pieces:
            views = [memoryview(followed_by(frame, parcel.size_bytes))]
            views += [memoryview(piece) for piece in parcel.pieces]
        sending.is_begun = False
        self.waiting[opaque] = sending
        self._out.append((sending, views))
        self.push()

    def _frame(self, target: Target, parcel: Parcel, opaque: int) -> bytes:
        command = target.command(
            parcel, opaque, self._options.encoding, from_template=self._uses_templates, signer=self._signer
        )
        if not isinstance(command, SendCommand):
            finish_request(command, self._options, next_stamp(self._stamps))
        return command.encode()

    def push(self) -> None:
        """Write what the peer takes. Raises ConnectionLost."""
        out = self._out
        while out:
            sending, views = out[0]
            try:
                count = self._socket.send(views[0]) if len(views) == 1 else self._socket.sendmsg(views)
            except self._wait:
                return
            except OSError as error:
                raise ConnectionLost(self.address, error) from error
            sending.is_begun = True
            while views and count >= len(views[0]):
                count -= len(views.pop(0))
            if views:
                views[0] = views[0][count:]
            else:
                out.popleft()

    def pull(self) -> Iterable[tuple[Sending, Command]]:
        """The answers that have come. Raises ConnectionLost, ProtocolError."""
        while True:
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except self._wait:
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
            if len(data) < RECEIVE_BYTES and self._is_plain:
                return

    def overdue(self, now_s: float) -> list[Sending]:
        """Requests whose time is over, waited for no more."""
        late = [opaque for opaque, sending in self.waiting.items() if sending.deadline_s <= now_s]
        found = [self.waiting.pop(opaque) for opaque in late]
        for sending in found:
            if not sending.is_begun:  # what has begun must be written to its end, or the rest makes no sense
                self._out = deque(item for item in self._out if item[0] is not sending)
        return found
