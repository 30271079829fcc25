"""Queues read and asked about over plain blocking sockets: no event loop, no heartbeat, no membership.

For processes that only move a range: a Spark task, a script, a thread. Progress is the caller's business;
nobody in the group notices a reader. Requests may be sent ahead, so that a broker works on the next one while
an answer is looked at. Names of topics and groups are those of the wire: with their namespace.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self, TypeVar

from kerolox.client.calls.nameservers import NameServerList
from kerolox.client.calls.offsets import (
    PROGRESS_CODES,
    ask_commit,
    ask_end,
    ask_first,
    ask_progress,
    read_edge,
    read_progress,
)
from kerolox.client.calls.offsets import Edges as Edges
from kerolox.client.calls.pull_answers import PULL_CODES, Pulled, read_pull, within_range
from kerolox.client.calls.pulls import SCAN_COUNT_MAX, Pace, PullFrames, ScanPace
from kerolox.client.calls.readers import LEADER, LEADER_ALONE, Reader, Replica, check_read_from
from kerolox.client.calls.retries import QUEUES, Retries
from kerolox.client.calls.routes import MASTER, NO_BROKER, Route, RouteTable, cluster_info
from kerolox.client.calls.steps import Ask, Steps, in_turn
from kerolox.client.calls.time_search import time_search
from kerolox.client.errors import BrokerNotRegistered, FollowerLacks, failure
from kerolox.client.errors import OffsetGone as OffsetGone
from kerolox.client.messages import Queue, Received, iter_received
from kerolox.client.options import ClientOptions
from kerolox.client.sockets.lines import Line
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.routes import TopicList
from kerolox.protocol.codes import Language, RequestCode, request_name
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.reserved import TOOLS_GROUP

SCANS_AHEAD = 3  # large answers on their way at once: more would only lie in memory
RESETS_MAX = 8  # pulls answered with another place, though the one asked for is there

T = TypeVar("T")


class SocketCluster:
    """A cluster as seen over plain sockets. Not for several threads at once.

    What may succeed later is done again: ``tries`` times, or for ``patience_s`` where that is given.
    ``read_from="follower"``: messages, and where queues begin and end, come from followers where there are
    some. They do so anyway while the leader is gone.
    """

    def __init__(
        self,
        where: ClientOptions | str | Sequence[str] | None = None,
        *,
        tries: int = 5,
        patience_s: float | None = None,
        read_from: str = LEADER,
    ) -> None:
        self.options = where if isinstance(where, ClientOptions) else ClientOptions(where or "")
        self.tries = tries
        self.patience_s = patience_s
        if read_from != LEADER_ALONE:
            check_read_from(read_from)
        self._read_from = read_from
        self._asked_of = LEADER_ALONE if read_from == LEADER_ALONE else LEADER  # what is not read
        self._readers: dict[str, Reader] = {}  # by broker name
        self._asked_s: dict[str, float] = {}  # by topic, when its route was asked for
        self._spread = random.randrange(1 << 16)
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
        """Run steps that ask name servers, with retries, and return their result."""
        return self.retried(lambda: in_turn(steps(), self._ask_at))

    def _ask_at(self, asked: Ask) -> Command:
        return self.line(asked.address).ask(asked.code, asked.header, asked.body)

    def route(self, topic: str, *, fresh: bool = False, expected: bool = False) -> Route:
        """Return the route of a topic. Raises a subclass of NoRoute.

        ``expected``: the topic existed before, so a name server without it is asked again, like one that does
        not answer. So is a name server without any broker, which has just started. For any other topic, the
        retries end after some seconds.
        """
        known = self.routes.get(topic)
        afresh = fresh or (known is not None and known.assumed)
        return self.follow(lambda: self.routes.find(topic, afresh=afresh, expected=expected))

    def refresh(self, topic: str) -> None:
        """Ask for the route anew, and keep the one there is when that does not help: a broker that restarts
        is gone from the name servers for a while, but not from where it was."""
        self._asked_s[topic] = time.monotonic()
        with suppress(KeroloxError):
            in_turn(self.routes.refresh(topic), self._ask_at)

    def address(self, queue: Queue) -> str:
        """Return the broker address for requests about a queue: its leader, else a follower.

        Without retries: callers retry.
        """
        return self._replica(queue, reads=False).address

    def _replica(self, queue: Queue, *, reads: bool) -> Replica:
        """Return the replica to ask or to read from. The caller has seen the queue, so its topic existed."""
        now_s = time.monotonic()
        asked_s = self._asked_s.setdefault(queue.topic, now_s)
        route = self.routes.get(queue.topic)
        if route is None:
            route = in_turn(self.routes.find(queue.topic, expected=True), self._ask_at)
        members = route.brokers.get(queue.broker) or {}
        if MASTER not in members and now_s - asked_s >= self.options.route_refresh_s:
            self.refresh(queue.topic)  # a leader that returned takes over from its followers
            return self._replica(queue, reads=reads)
        # A leader that briefly does not answer is not replaced for requests that only it answers reliably.
        reader = self._reader(queue) if reads else Reader(self._asked_of)
        found = reader.choose(members, now_s)
        if found is None:
            what = "no leader of broker" if members else "no broker"
            raise BrokerNotRegistered(
                queue.topic, self.nameservers.addresses[0], f"{what} {queue.broker!r} is registered"
            )
        return found

    def _reader(self, queue: Queue) -> Reader:
        found = self._readers.get(queue.broker)
        if found is None:
            found = self._readers[queue.broker] = Reader(self._read_from, self._spread)
        return found

    def _failed(self, queue: Queue, replica: Replica, error: KeroloxError) -> None:
        self._reader(queue).failed(replica, error, time.monotonic())

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

    def ask(
        self,
        queue: Queue,
        code: int,
        header: Header | None,
        *,
        ok: Collection[int] = (0,),
        reads: bool = False,
    ) -> Command:
        """A question about a queue, asked of its broker until it answers; ``reads``: of who is read from."""
        retries = self.retries()
        while True:
            replica: Replica | None = None
            try:
                replica = self._replica(queue, reads=reads)
                answer = self.line(replica.address).ask(code, header)
                if answer.code not in ok:
                    raise failure(answer, address=replica.address, code=code)
                return answer
            except KeroloxError as error:
                if reads and replica is not None:
                    self._failed(queue, replica, error)
                time.sleep(retries.pause_after(error))
                self.refresh(queue.topic)

    def ask_all(
        self, asked: Sequence[tuple[Queue, Ask]], *, ok: Collection[int] = (0,), reads: bool = False
    ) -> list[tuple[Replica, Command]]:
        """Questions about many queues, all sent before the first answer is waited for; who answered, and
        what."""
        retries = self.retries()
        while True:
            asking: tuple[Queue, Replica] | None = None
            try:
                sent = []
                frames: dict[Line, list[bytes]] = {}  # what goes to one address goes at once
                for queue, ask in asked:
                    replica = self._replica(queue, reads=reads)
                    asking = queue, replica
                    line = self.line(replica.address)
                    opaque, frame = line.prepare(ask.code, ask.header)
                    frames.setdefault(line, []).append(frame)
                    sent.append((asking, line, opaque))
                for line, together in frames.items():
                    asking = next(whom for whom, its_line, _ in sent if its_line is line)
                    line.send_bytes(b"".join(together))
                answers = []
                for (_, ask), (asking, line, opaque) in zip(asked, sent, strict=True):
                    answer = line.receive(opaque, self.options.request_timeout_s, request_name(ask.code))
                    if answer.code not in ok:
                        raise failure(answer, address=line.address, code=ask.code)
                    answers.append((asking[1], answer))
                return answers
            except KeroloxError as error:
                self.close()  # some answers may still be on their way
                if reads and asking is not None:
                    self._failed(*asking, error)
                time.sleep(retries.pause_after(error))
                for topic in {queue.topic for queue, _ in asked}:
                    self.refresh(topic)

    # --- offsets --------------------------------------------------------------------------------------

    def edges(self, queues: Sequence[Queue], *, of_leaders: bool = False) -> dict[Queue, Edges]:
        """The first offset and the next one to be written, of many queues at once. ``of_leaders``: by what
        leaders say, of those that are there."""
        asked = [(queue, ask(*queue)) for queue in queues for ask in (ask_first, ask_end)]
        answers = self.ask_all(asked, reads=not of_leaders)
        found = {}
        for queue, (_, first), (replica, end) in zip(queues, answers[::2], answers[1::2], strict=True):
            follower = "" if replica.leads else replica.address
            found[queue] = Edges(read_edge(first), read_edge(end), follower)
        return found

    def all_committed(self, queues: Sequence[Queue], group: str) -> dict[Queue, int]:
        """Return a group's offsets. Queues without progress are omitted."""
        asked = [(queue, ask_progress(*queue, group)) for queue in queues]
        answers = self.ask_all(asked, ok=PROGRESS_CODES)
        found = {queue: read_progress(answer) for queue, (_, answer) in zip(queues, answers, strict=True)}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def commit_all(self, places: Mapping[Queue, int], group: str) -> None:
        """Set how far a group is, in many queues at once."""
        self.ask_all([(queue, ask_commit(*queue, group, offset)) for queue, offset in places.items()])

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
        """The first offset still there."""
        return read_edge(self._ask(queue, ask_first(*queue), reads=True))

    def max_offset(self, queue: Queue) -> int:
        """The offset the next message will have."""
        return read_edge(self._ask(queue, ask_end(*queue), reads=True))

    def offset_at(self, queue: Queue, time_ms: int) -> int:
        """The first offset stored at this time or later."""
        search = time_search(*queue, time_ms, TOOLS_GROUP)
        return in_turn(search, lambda asked: self._ask(queue, asked, ok=PULL_CODES, reads=True))

    def committed(self, queue: Queue, group: str) -> int | None:
        """Return a group's offset in a queue; None without progress."""
        return read_progress(self._ask(queue, ask_progress(*queue, group), ok=PROGRESS_CODES))

    def commit(self, queue: Queue, group: str, offset: int) -> None:
        """Set how far a group is."""
        self._ask(queue, ask_commit(*queue, group, offset))

    def _ask(self, queue: Queue, asked: Ask, *, ok: Collection[int] = (0,), reads: bool = False) -> Command:
        return self.ask(queue, asked.code, asked.header, ok=ok, reads=reads)

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
        scan_bytes: int = 0,
        scan_count: int = SCAN_COUNT_MAX,
    ) -> Iterator[Pulled]:
        """The records of a queue from ``start`` up to ``end`` (not including it), block by block.

        ``count``: so many at most are asked for in one pull; ``ahead``: so many pulls are on their way at
        once. ``scan_bytes``: of brokers of ours blocks of about this size are asked for, of ``scan_count``
        messages at most, and fewer at once. With a filter a block may hold records behind ``end``, and
        brokers compare tags by their hashes: the caller looks at both again. Raises OffsetGone when the range
        is not (or no longer) there; what a follower lacks is asked of others, and waited for when there are
        none: then it is FollowerLacks.
        """
        pulls = PullFrames(self.options, queue, group, expression, kind)
        scans = PullFrames(self.options, queue, group, expression, kind, scan_bytes=scan_bytes)
        pull_pace, scan_pace = Pace(count), ScanPace(scan_bytes, scan_count)
        is_filtered = expression not in ("*", "")  # then nobody knows how far a pull comes
        guesses: deque[_Guess] = deque()
        retries: Retries | None = None
        offset = start
        resets = 0
        try:
            while offset < end:
                replica: Replica | None = None
                try:
                    replica = self._replica(queue, reads=True)
                    line = self.line(replica.address)
                    if guesses and (guesses[0].offset != offset or guesses[0].line is not line):
                        _forget(guesses)
                    is_scan = bool(scan_bytes) and line.language is Language.PYTHON
                    requests = scans if is_scan else pulls
                    pace = scan_pace if is_scan else pull_pace
                    lanes = ahead if pace.is_known and not is_filtered else 1
                    if is_scan:
                        lanes = min(lanes, SCANS_AHEAD)
                    if len(guesses) <= lanes // 2:  # several at once: what costs is the call, not the bytes
                        following = guesses[-1].offset + guesses[-1].asked if guesses else offset
                        wanted: list[tuple[int, int]] = []
                        while len(guesses) + len(wanted) < lanes and following < end:
                            wanted.append((following, min(pace.ask, end - following)))
                            following += wanted[-1][1]
                        if wanted:
                            for each, opaque in zip(wanted, _send(line, requests, wanted), strict=True):
                                guesses.append(_Guess(*each, opaque, line))
                    guess = guesses.popleft()
                    answer = line.receive(guess.opaque, self.options.request_timeout_s, "PULL_MESSAGE")
                    pulled = within_range(read_pull(answer, offset, line.address), queue, offset)
                    if is_scan and guesses and pulled is not None:
                        upto = min(guess.offset + guess.asked, guesses[0].offset)
                        if (
                            offset < pulled.next_offset < upto
                        ):  # the rest of it, before what was asked for then
                            rest = pulled.next_offset, upto - pulled.next_offset
                            guesses.appendleft(_Guess(*rest, _send(line, requests, [rest])[0], line))
                except KeroloxError as error:
                    _forget(guesses)
                    if replica is not None:
                        self._failed(queue, replica, error)
                    if isinstance(error, OffsetGone) and replica is not None and not replica.leads:
                        if self._replica(queue, reads=True) != replica:
                            continue
                        error = FollowerLacks(error, replica.address)
                    retries = retries or self.retries()
                    time.sleep(retries.pause_after(error))
                    self.refresh(queue.topic)
                    continue
                self._reader(queue).answered(replica)
                if pulled is None:
                    resets += 1
                    if resets > RESETS_MAX:
                        raise OffsetGone(queue, offset, offset, end)
                    continue
                retries = None
                if not is_filtered:
                    got = pulled.next_offset - offset
                    if not is_scan:
                        pull_pace.saw(guess.asked, got)
                    scan_pace.saw(guess.asked if is_scan else 0, got, len(pulled.block))
                offset = pulled.next_offset
                yield pulled
        finally:
            _forget(guesses)

    def read(self, queue: Queue, start: int, end: int, *, group: str, **how: object) -> Iterator[Received]:
        """The messages of a range, decoded. ``how`` is what :meth:`blocks` takes."""
        for pulled in self.blocks(queue, start, end, group=group, **how):  # type: ignore[arg-type]
            for message in iter_received(bytes(pulled.block), queue.broker):
                if message.queue_offset < end:
                    yield message


class _Guess(NamedTuple):
    """A pull on its way, from where the one before it is going to end."""

    offset: int
    asked: int
    opaque: int
    line: Line


def _send(line: Line, requests: PullFrames, wanted: Sequence[tuple[int, int]]) -> list[int]:
    """Ask from these offsets for so many each. What it returns is given to ``line.receive``."""
    if not requests.has_template:
        return [line.send(RequestCode.PULL_MESSAGE, requests.header(*each)) for each in wanted]
    opaques = [line.next_opaque() for _ in wanted]
    line.send_bytes(requests.frames((opaque, *each) for opaque, each in zip(opaques, wanted, strict=True)))
    return opaques


def _forget(guesses: deque[_Guess]) -> None:
    for guess in guesses:
        guess.line.forget(guess.opaque)
    guesses.clear()
