"""Ranges of queues pulled over plain connections, with several pulls on their way at once.

A pull says how many messages it wants, and a broker gives as many as its limits allow: 32, unless it was set
otherwise. Reading ahead is guessing where the next pull begins, so it pays to ask for exactly what the broker
is going to give; that also spares it from looking at what it does not give.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kerolox.client.calls.retries import Retries
from kerolox.client.calls.signing import goes_plain
from kerolox.client.errors import failure
from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command, request
from kerolox.protocol.flags import PULL_SUBSCRIPTION
from kerolox.protocol.frame import JSON, pack_frame
from kerolox.protocol.headers.pull import PullAnswer, PullRequest

if TYPE_CHECKING:
    from kerolox.client.sockets.socket_cluster import Line, SocketCluster

TRY_AFTER: Final = 64  # pulls
RESETS_MAX: Final = 8  # pulls answered with another place, though the one asked for is there
_ANSWERS: Final = frozenset({
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
})  # fmt: skip


class Pulled(NamedTuple):
    """What one pull brought: records as the broker keeps them, and where to go on."""

    block: bytes
    next_offset: int
    min_offset: int
    max_offset: int


class OffsetGone(KeroloxError):
    """The messages asked for are not there any more, or not there yet."""

    def __init__(self, queue: Queue, asked: int, first: int, end: int) -> None:
        self.queue, self.asked, self.first, self.end = queue, asked, first, end
        super().__init__(
            f"queue {queue.topic}/{queue.broker}/{queue.queue_id} has offsets {first} to {end}, not {asked}"
        )


class Pace:
    """How many messages to ask for: what the broker gives, found out by asking for a little more.

    When that brings the same number again it is a limit, and is kept to. Yet it may be a limit on bytes, and
    messages may get smaller: more is asked for now and then, ever more rarely, since every such try is a bad
    guess for the pulls behind it.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.ask = count_max
        self.is_known = False  # until then a guess would be a bad one
        self._cut = 0  # what came when less came than asked for
        self._is_fixed = False
        self._kept = 0  # pulls that brought what is fixed
        self._try_after = TRY_AFTER

    def saw(self, asked: int, got: int) -> None:
        self.is_known = True
        if got < asked:
            self._is_fixed = got == self._cut
            self._cut = got
            self.ask = max(1, got)
            return
        if asked != self.ask:
            return  # at the end of the range, or asked before the pace changed
        if self._is_fixed:
            self._kept += 1
            if self._kept < self._try_after:
                return
            self._is_fixed = False
            self._kept = 0
            self._try_after *= 2
        self.ask = min(self._count_max, asked + asked // 8 + 1)


class Pulls:
    """Makes the requests for one queue. All but three numbers in them are always the same."""

    def __init__(self, cluster: SocketCluster, queue: Queue, group: str, expression: str, kind: str) -> None:
        self._queue, self._group, self._expression, self._kind = queue, group, expression, kind
        options = cluster.options
        # A signature is over all fields; and the binary form has lengths.
        self._is_plain = goes_plain(options) and options.encoding == JSON
        self._pieces: list[bytes] = []

    def _header(self, offset: int, count: int) -> PullRequest:
        return PullRequest(
            consumer_group=self._group,
            topic=self._queue.topic,
            queue_id=self._queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=self._expression,
            expression_type=self._kind,
            broker_name=self._queue.broker,
        )

    def send(self, line: Line, wanted: Sequence[tuple[int, int]]) -> list[int]:
        """Ask from these offsets for so many each. What it returns is given to ``line.receive``."""
        if not self._is_plain:
            return [line.send(RequestCode.PULL_MESSAGE, self._header(*each)) for each in wanted]
        opaques = [line.next_opaque() for _ in wanted]
        line.send_bytes(
            b"".join(
                pack_frame(JSON, self._filled(opaque, offset, count))
                for opaque, (offset, count) in zip(opaques, wanted, strict=True)
            )
        )
        return opaques

    def _filled(self, opaque: int, offset: int, count: int) -> bytes:
        if not self._pieces:
            self._pieces = self._template()
        values = {b"opaque": opaque, b"offset": offset, b"count": count}
        return b"".join(b"%d" % values[piece] if piece in values else piece for piece in self._pieces)

    def _template(self) -> list[bytes]:
        """The header of a request cut at its three numbers, found by numbers nothing else has."""
        opaque, offset, count = 1_313_131_313, 7_272_727_272_727_272_727, 1_868_686_868
        command = request(RequestCode.PULL_MESSAGE, self._header(offset, count), opaque=opaque)
        text = command.encode()[8:]
        pieces = [text]
        for number, name in ((opaque, b"opaque"), (offset, b"offset"), (count, b"count")):
            mark = b"%d" % number
            at = next(place for place, piece in enumerate(pieces) if mark in piece)
            before, _, after = pieces[at].partition(mark)
            pieces[at : at + 1] = [before, name, after]
        return pieces


class _Guess(NamedTuple):
    offset: int
    asked: int
    opaque: int
    line: Line


def blocks(
    cluster: SocketCluster,
    queue: Queue,
    start: int,
    end: int,
    *,
    group: str,
    count: int,
    expression: str,
    kind: str,
    ahead: int,
    broker_id: int,
) -> Iterator[Pulled]:
    """See :meth:`kerolox.client.sockets.socket_cluster.SocketCluster.blocks`."""
    pulls = Pulls(cluster, queue, group, expression, kind)
    pace = Pace(count)
    is_filtered = expression not in ("*", "")  # then nobody knows how far a pull comes
    guesses: deque[_Guess] = deque()
    retries: Retries | None = None
    offset = start
    resets = 0
    try:
        while offset < end:
            try:
                line = cluster.line(cluster.address(queue, broker_id))
                if guesses and (guesses[0].offset != offset or guesses[0].line is not line):
                    _forget(guesses)
                lanes = ahead if pace.is_known and not is_filtered else 1
                if len(guesses) <= lanes // 2:  # several at once: what costs is the call, not the bytes
                    following = guesses[-1].offset + guesses[-1].asked if guesses else offset
                    wanted: list[tuple[int, int]] = []
                    while len(guesses) + len(wanted) < lanes and following < end:
                        wanted.append((following, min(pace.ask, end - following)))
                        following += wanted[-1][1]
                    if wanted:
                        for each, opaque in zip(wanted, pulls.send(line, wanted), strict=True):
                            guesses.append(_Guess(*each, opaque, line))
                guess = guesses.popleft()
                answer = line.receive(guess.opaque, cluster.options.request_timeout_s, "PULL_MESSAGE")
                pulled = _pulled(queue, line, answer, offset)
            except KeroloxError as error:
                _forget(guesses)
                retries = retries or cluster.retries()
                time.sleep(retries.pause_after(error))
                cluster.refresh(queue.topic)
                continue
            if pulled is None:  # somebody reset the group; this reader goes by its range
                resets += 1
                if resets > RESETS_MAX:
                    raise OffsetGone(queue, offset, offset, end)
                continue
            retries = None
            if not is_filtered:
                pace.saw(guess.asked, pulled.next_offset - offset)
            offset = pulled.next_offset
            yield pulled
    finally:
        _forget(guesses)


def _forget(guesses: deque[_Guess]) -> None:
    for guess in guesses:
        guess.line.forget(guess.opaque)
    guesses.clear()


def _pulled(queue: Queue, line: Line, answer: Command, asked: int) -> Pulled | None:
    """None: the broker names another place although this one is there."""
    if answer.code not in _ANSWERS:
        raise failure(answer, address=line.address, code=RequestCode.PULL_MESSAGE)
    header = answer.header(PullAnswer)
    if answer.code == ResponseCode.PULL_OFFSET_MOVED and header.min_offset <= asked < header.max_offset:
        return None
    stuck = header.next_begin_offset <= asked
    if answer.code == ResponseCode.PULL_OFFSET_MOVED or (answer.code != ResponseCode.SUCCESS and stuck):
        raise OffsetGone(queue, asked, header.min_offset, header.max_offset)
    block = answer.body if answer.code == ResponseCode.SUCCESS else b""
    return Pulled(block, header.next_begin_offset, header.min_offset, header.max_offset)
