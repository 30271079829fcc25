"""Queues read and written over plain blocking sockets: no event loop, no heartbeat, no membership.

For processes that only move a range: a Spark task, a script, a thread. Progress is the caller's business;
nobody in the group notices a reader. Requests may be sent ahead, so that a broker works on the next one while
an answer is looked at.
"""

from __future__ import annotations

import itertools
import random
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self, TypeVar

from kerolox.client.calls.nameservers import NameServerList
from kerolox.client.calls.retries import QUEUES, Retries
from kerolox.client.calls.routes import MASTER, NO_BROKER, Route, RouteTable, address_of, cluster_info
from kerolox.client.calls.signing import finish_request
from kerolox.client.calls.steps import Ask, Steps, in_turn
from kerolox.client.calls.time_search import ANSWERS, time_search
from kerolox.client.errors import BrokerNotRegistered, failure
from kerolox.client.messages import Queue, Received, decode_received
from kerolox.client.options import ClientOptions
from kerolox.client.sockets.reading import OffsetGone as OffsetGone
from kerolox.client.sockets.reading import Pulled as Pulled
from kerolox.client.sockets.reading import blocks
from kerolox.errors import ConnectFailed, ConnectionLost, KeroloxError, RequestTimeout
from kerolox.net.tls import client_context
from kerolox.protocol.bodies.routes import TopicList
from kerolox.protocol.codes import RequestCode, ResponseCode, request_name
from kerolox.protocol.command import Command, decode_command, request
from kerolox.protocol.frame import FrameSplitter
from kerolox.protocol.header import Header
from kerolox.protocol.headers.offset import (
    MaxOffsetRequest,
    MinOffsetRequest,
    OffsetAnswer,
    QueryOffsetRequest,
    UpdateOffsetRequest,
)
from kerolox.protocol.reserved import TOOLS_GROUP

RECEIVE_BYTES = 1 << 18

T = TypeVar("T")


class Line:
    """One blocking connection. Answers come in any order and are kept until asked for."""

    def __init__(self, address: str, options: ClientOptions) -> None:
        self.address = address
        self._options = options
        self._timeout_s = options.request_timeout_s
        self._opaques = itertools.count(random.randrange(1 << 16))
        self._splitter = FrameSplitter()
        self._answers: dict[int, Command] = {}
        self._forgotten: set[int] = set()
        self._waits_s = -1.0
        host, _, port = address.rpartition(":")
        try:
            plain = socket.create_connection((host.strip("[]"), int(port)), options.connect_timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = (
                plain
                if options.tls is None
                else client_context(options.tls).wrap_socket(plain, server_hostname=host.strip("[]"))
            )
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConnectFailed(address, error) from error

    def send(self, code: int, header: Header | None = None, body: bytes = b"") -> int:
        """Send a request; what it returns is given to :meth:`receive`."""
        options = self._options
        command = request(code, header, body, opaque=next(self._opaques), encoding=options.encoding)
        finish_request(command, options)
        self.send_bytes(command.encode())
        return command.opaque

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
        """Nobody will ask for this answer."""
        if self._answers.pop(opaque, None) is None:
            self._forgotten.add(opaque)

    def receive(self, opaque: int, timeout_s: float, what: str = "request") -> Command:
        deadline_s = time.monotonic() + timeout_s
        while opaque not in self._answers:
            if time.monotonic() >= deadline_s:
                self.close()  # its answer may still come, and would be taken for another's
                raise RequestTimeout(self.address, what, timeout_s)
            try:
                self._wait_for(timeout_s)
                data = self._socket.recv(RECEIVE_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                self.close()
                raise ConnectionLost(self.address, error) from error
            if not data:
                self.close()
                raise ConnectionLost(self.address, "the peer closed it")
            for frame in self._splitter.feed(data):
                answer = decode_command(*frame)
                if answer.is_answer and answer.opaque in self._forgotten:
                    self._forgotten.discard(answer.opaque)
                elif answer.is_answer:  # a broker may also ask; nobody here answers
                    self._answers[answer.opaque] = answer
            if self._splitter.error is not None:
                self.close()
                raise self._splitter.error
        return self._answers.pop(opaque)

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


class Edges(NamedTuple):
    """What a queue holds: from ``first`` up to ``end``, not including it."""

    first: int
    end: int


class SocketCluster:
    """A cluster as seen over plain sockets. Not for several threads at once.

    What may succeed later is done again: ``tries`` times, or for ``patience_s`` where that is given.
    """

    def __init__(
        self,
        where: ClientOptions | str | Sequence[str] | None = None,
        *,
        tries: int = 5,
        patience_s: float | None = None,
    ) -> None:
        self.options = where if isinstance(where, ClientOptions) else ClientOptions(where or "")
        self.tries = tries
        self.patience_s = patience_s
        self.nameservers = NameServerList(self.options.addresses())
        self.routes = RouteTable(self.nameservers)
        self._lines: dict[str, Line] = {}

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def line(self, address: str) -> Line:
        """The connection to an address, opened if need be."""
        line = self._lines.get(address)
        if line is None or line.is_closed:
            line = self._lines[address] = Line(address, self.options)
        return line

    # --- routes ---------------------------------------------------------------------------------------

    def follow(self, steps: Callable[[], Steps[T]]) -> T:
        """What steps find out that ask name servers; again while another try may help."""
        return self.retried(lambda: in_turn(steps(), self._ask_at))

    def _ask_at(self, asked: Ask) -> Command:
        return self.line(asked.address).ask(asked.code, asked.header, asked.body)

    def route(self, topic: str, *, fresh: bool = False, expected: bool = False) -> Route:
        """Who serves a topic. Raises a kind of NoRoute.

        ``expected``: the topic was there before, so a name server does not know it for a while only: it is
        asked again as long as one that does not answer. So is one that knows no broker at all, since it has
        just started. Any other topic is asked about for some seconds.
        """
        known = self.routes.get(topic)
        afresh = fresh or (known is not None and known.assumed)
        return self.follow(lambda: self.routes.find(topic, afresh=afresh, expected=expected))

    def refresh(self, topic: str) -> None:
        """Ask for the route anew, and keep the one there is when that does not help: a broker that restarts
        is gone from the name servers for a while, but not from where it was."""
        with suppress(KeroloxError):
            in_turn(self.routes.refresh(topic), self._ask_at)

    def address(self, queue: Queue, broker_id: int = MASTER) -> str:
        """Where to ask about a queue, looked for once: callers try again. Who names a queue has seen it, so
        its topic was there."""
        route = self.routes.get(queue.topic)
        if route is None:
            route = in_turn(self.routes.find(queue.topic, expected=True), self._ask_at)
        found = address_of(route.brokers.get(queue.broker) or {}, broker_id)
        if found is None:
            raise BrokerNotRegistered(
                queue.topic, self.nameservers.addresses[0], f"no broker {queue.broker!r} is registered"
            )
        return found

    def retries(self) -> Retries:
        """For one call: how often, or how long, it is tried again."""
        return Retries(QUEUES, time.monotonic, patience_s=self.patience_s, tries=self.tries)

    @contextmanager
    def once(self) -> Iterator[None]:
        """Within the block nothing is tried again."""
        before = self.tries, self.patience_s
        self.tries, self.patience_s = 1, None
        try:
            yield
        finally:
            self.tries, self.patience_s = before

    def retried(self, work: Callable[[], T]) -> T:
        """Do it again when another try may help: a broker restarts, a connection breaks."""
        retries = self.retries()
        while True:
            try:
                return work()
            except KeroloxError as error:
                time.sleep(retries.pause_after(error))

    # --- questions ------------------------------------------------------------------------------------

    def ask(self, queue: Queue, code: int, header: Header | None, *, ok: Collection[int] = (0,)) -> Command:
        """A question about a queue, asked of its broker until it answers."""
        retries = self.retries()
        while True:
            try:
                address = self.address(queue)
                answer = self.line(address).ask(code, header)
                if answer.code not in ok:
                    raise failure(answer, address=address, code=code)
                return answer
            except KeroloxError as error:
                time.sleep(retries.pause_after(error))
                self.refresh(queue.topic)

    def ask_all(
        self, asked: Sequence[tuple[Queue, int, Header]], *, ok: Sequence[int] = (0,)
    ) -> list[Command]:
        """Questions about many queues, all sent before the first answer is waited for."""
        retries = self.retries()
        while True:
            try:
                lines = [self.line(self.address(queue)) for queue, _, _ in asked]
                sent = [line.send(code, header) for line, (_, code, header) in zip(lines, asked, strict=True)]
                answers = []
                for line, opaque, (_, code, _) in zip(lines, sent, asked, strict=True):
                    answer = line.receive(opaque, self.options.request_timeout_s, request_name(code))
                    if answer.code not in ok:
                        raise failure(answer, address=line.address, code=code)
                    answers.append(answer)
                return answers
            except KeroloxError as error:
                self.close()  # some answers may still be on their way
                time.sleep(retries.pause_after(error))
                for topic in {queue.topic for queue, _, _ in asked}:
                    self.refresh(topic)

    # --- offsets --------------------------------------------------------------------------------------

    def edges(self, queues: Sequence[Queue]) -> dict[Queue, Edges]:
        """The first offset and the next one to be written, of many queues at once."""
        asked: list[tuple[Queue, int, Header]] = []
        for topic, broker, queue_id in queues:
            queue = Queue(topic, broker, queue_id)
            low = MinOffsetRequest(topic=topic, queue_id=queue_id, broker_name=broker)
            high = MaxOffsetRequest(topic=topic, queue_id=queue_id, broker_name=broker)
            asked += [(queue, RequestCode.GET_MIN_OFFSET, low), (queue, RequestCode.GET_MAX_OFFSET, high)]
        found = iter([answer.header(OffsetAnswer).offset for answer in self.ask_all(asked)])
        # A queue that never had a message may say -1.
        return {queue: Edges(max(0, next(found)), max(0, next(found))) for queue in queues}

    def all_committed(self, queues: Sequence[Queue], group: str) -> dict[Queue, int]:
        """How far a group is; queues in which it has not begun are left out."""
        asked: list[tuple[Queue, int, Header]] = [
            (
                queue,
                RequestCode.QUERY_CONSUMER_OFFSET,
                QueryOffsetRequest(
                    consumer_group=group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    set_zero_if_not_found=False,
                    broker_name=queue.broker,
                ),
            )
            for queue in queues
        ]
        answers = self.ask_all(asked, ok=(0, ResponseCode.QUERY_NOT_FOUND))
        return {
            queue: answer.header(OffsetAnswer).offset
            for queue, answer in zip(queues, answers, strict=True)
            if answer.code == 0
        }

    def commit_all(self, places: Mapping[Queue, int], group: str) -> None:
        """Set how far a group is, in many queues at once."""
        asked: list[tuple[Queue, int, Header]] = [
            (
                queue,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                UpdateOffsetRequest(
                    consumer_group=group,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    commit_offset=offset,
                    broker_name=queue.broker,
                ),
            )
            for queue, offset in places.items()
        ]
        self.ask_all(asked)

    def topics(self) -> list[str]:
        """Every topic the name servers know, without those named after brokers and clusters."""
        return self.follow(self._listed)

    def _listed(self) -> Steps[list[str]]:
        """A name server without brokers has just started, and no topic would be a wrong answer."""
        listed = yield from self.nameservers.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        if not (yield from cluster_info(self.nameservers)).broker_addr_table:
            raise BrokerNotRegistered("*", ";".join(self.nameservers.addresses), NO_BROKER)
        own = yield from self.nameservers.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        hidden = set(TopicList.decode(own.body).topic_list)
        return sorted(set(TopicList.decode(listed.body).topic_list) - hidden)

    def min_offset(self, queue: Queue) -> int:
        asked = MinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker)
        return self.ask(queue, RequestCode.GET_MIN_OFFSET, asked).header(OffsetAnswer).offset

    def max_offset(self, queue: Queue) -> int:
        asked = MaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, broker_name=queue.broker)
        return self.ask(queue, RequestCode.GET_MAX_OFFSET, asked).header(OffsetAnswer).offset

    def offset_at(self, queue: Queue, time_ms: int) -> int:
        """The first offset stored at this time or later."""
        search = time_search(*queue, time_ms, TOOLS_GROUP)
        return in_turn(search, lambda asked: self.ask(queue, asked.code, asked.header, ok=ANSWERS))

    def committed(self, queue: Queue, group: str) -> int | None:
        """How far a group is; None when it has not begun."""
        asked = QueryOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
            broker_name=queue.broker,
        )
        not_begun = ResponseCode.QUERY_NOT_FOUND
        answer = self.ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, asked, ok=(0, not_begun))
        return None if answer.code == not_begun else answer.header(OffsetAnswer).offset

    def commit(self, queue: Queue, group: str, offset: int) -> None:
        """Set how far a group is."""
        asked = UpdateOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker,
        )
        self.ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, asked)

    # --- messages -------------------------------------------------------------------------------------

    def blocks(
        self,
        queue: Queue,
        start: int,
        end: int,
        *,
        group: str,
        count: int = 32,
        expression: str = "*",
        kind: str = "TAG",
        ahead: int = 2,
        broker_id: int = MASTER,
    ) -> Iterator[Pulled]:
        """The records of a queue from ``start`` up to ``end`` (not including it), block by block.

        ``count``: so many at most are asked for in one pull; ``ahead``: so many pulls are on their way at
        once. With a filter a block may hold records behind ``end``, and brokers compare tags by their hashes:
        the caller looks at both again. Raises OffsetGone when the range is not (or no longer) there.
        """
        return blocks(
            self,
            queue,
            start,
            end,
            group=group,
            count=count,
            expression=expression,
            kind=kind,
            ahead=ahead,
            broker_id=broker_id,
        )

    def read(self, queue: Queue, start: int, end: int, *, group: str, **how: object) -> Iterator[Received]:
        """The messages of a range, decoded. ``how`` is what :meth:`blocks` takes."""
        for pulled in self.blocks(queue, start, end, group=group, **how):  # type: ignore[arg-type]
            for message in decode_received(pulled.block, queue.broker):
                if message.queue_offset < end:
                    yield message
