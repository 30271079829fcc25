"""Pulls of readers that are no members of a group: the requests, what answers mean, and how much to ask for.

A pull says how many messages it wants, and a broker gives as many as its limits allow: 32, unless it was set
otherwise. Reading ahead is guessing where the next pull begins, so it pays to ask for exactly what the broker
is going to give; that also spares it from looking at what it does not give.

Brokers of ours give more to who reads a queue through: as many bytes as it asks for, up to a limit of theirs
(``scanBytes``, see protocol/FRAME.md). They are known by the language their answers name; no other broker is
asked so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kerolox.client.calls.signing import goes_plain
from kerolox.client.errors import OffsetGone, failure
from kerolox.client.messages import Queue
from kerolox.client.options import ClientOptions
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command, request
from kerolox.protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.frame import JSON, pack_frame
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.subscription import ALL, TAG

TRY_AFTER: Final = 64  # pulls
SCAN_BYTES: Final = 1 << 20  # of an answer
SCAN_BYTES_MAX: Final = 12 << 20  # a frame has 16 MiB at most
SCAN_BYTES_MIN: Final = 64 << 10
SCAN_COUNT_MAX: Final = 16_384
SCAN_COUNT_FIRST: Final = 4096  # while nobody knows how long messages are
FILL: Final = 0.9  # of an answer: messages differ, and the rest of one that is cut costs another request
KEPT_BEFORE_MORE: Final = 16
# The codes of answers to a pull: that there is no message where one was looked for is no failure.
PULL_CODES: Final = frozenset({
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
})  # fmt: skip


def pull_request(
    topic: str,
    broker: str | None,
    queue_id: int,
    offset: int,
    count: int,
    *,
    group: str,
    expression: str = ALL,
    kind: str = TAG,
    hold_ms: int = 0,
    scan_bytes: int = 0,
) -> PullRequest:
    """Ask for so many messages from an offset on. The group need not exist, and its progress stays.
    ``scan_bytes`` is for brokers of ours."""
    return PullRequest(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=hold_ms,
        sub_version=0,
        subscription=expression,
        expression_type=kind,
        broker_name=broker,
        scan_bytes=scan_bytes or None,
    )


class Pulled(NamedTuple):
    """What one pull brought: records as the broker keeps them, and where to go on."""

    block: bytes  # or a memoryview, when it is long
    next_offset: int
    min_offset: int
    max_offset: int


def read_pull(answer: Command, queue: Queue, asked: int, address: str) -> Pulled | None:
    """What an answer brought from the offset asked for. Raises OffsetGone when nothing is there, or a kind of
    RequestFailed. None: the broker names another place although this one is there, since somebody reset the
    group; who goes by a range asks again."""
    if answer.code not in PULL_CODES:
        raise failure(answer, address=address, code=RequestCode.PULL_MESSAGE)
    header = answer.header(PullAnswer)
    if answer.code == ResponseCode.PULL_OFFSET_MOVED and header.min_offset <= asked < header.max_offset:
        return None
    stuck = header.next_begin_offset <= asked
    if answer.code == ResponseCode.PULL_OFFSET_MOVED or (answer.code != ResponseCode.SUCCESS and stuck):
        raise OffsetGone(queue, asked, header.min_offset, header.max_offset)
    block = answer.body if answer.code == ResponseCode.SUCCESS else b""
    return Pulled(block, header.next_begin_offset, header.min_offset, header.max_offset)


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


class ScanPace:
    """How many messages to ask a broker of ours for: about as many as fill an answer.

    It says less in an answer when messages are longer than those before, or a file ends; the one who asks
    fetches the rest. When its limit is lower than what it is asked for, that is what is asked for from then
    on, and now and then a little more.
    """

    def __init__(self, bytes_max: int, count_max: int = SCAN_COUNT_MAX) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._limit = bytes_max  # of answers, as far as is known
        self._kept = 0  # answers within it
        self.ask = min(count_max, SCAN_COUNT_FIRST)
        self.is_known = False

    def saw(self, asked: int, got: int, size_bytes: int) -> None:
        """``asked`` is 0 for an answer that was not cut by the limit of scans."""
        if got <= 0 or size_bytes <= 0:
            return
        self.is_known = True
        if got < asked:
            self._limit = min(self._bytes_max, max(size_bytes, SCAN_BYTES_MIN))
            self._kept = 0
        else:
            self._kept += 1
            if self._kept % KEPT_BEFORE_MORE == 0:
                self._limit = min(self._bytes_max, self._limit * 2)
        self.ask = max(1, min(self._count_max, int(self._limit * FILL) * got // size_bytes))


class PullFrames:
    """Makes the requests for one queue. All but three numbers in them are always the same."""

    def __init__(
        self,
        options: ClientOptions,
        queue: Queue,
        group: str,
        expression: str,
        kind: str,
        *,
        scan_bytes: int = 0,
    ) -> None:
        self._queue, self._group, self._expression, self._kind = queue, group, expression, kind
        self._scan_bytes = scan_bytes
        # A signature is over all fields; and the binary form has lengths.
        self.has_template = goes_plain(options) and options.encoding == JSON
        self._pieces: list[bytes] = []

    def header(self, offset: int, count: int) -> PullRequest:
        return pull_request(
            *self._queue,
            offset,
            count,
            group=self._group,
            expression=self._expression,
            kind=self._kind,
            scan_bytes=self._scan_bytes,
        )

    def frames(self, wanted: Iterable[tuple[int, int, int]]) -> bytes:
        """The frames of requests, each an opaque, an offset and a count; only if it ``has_template``."""
        if not self._pieces:
            self._pieces = self._template()
        return b"".join([pack_frame(JSON, self._filled(*each)) for each in wanted])

    def _filled(self, opaque: int, offset: int, count: int) -> bytes:
        values = {b"opaque": opaque, b"offset": offset, b"count": count}
        return b"".join([b"%d" % values[piece] if piece in values else piece for piece in self._pieces])

    def _template(self) -> list[bytes]:
        """The header of a request cut at its three numbers, found by numbers nothing else has."""
        opaque, offset, count = 1_313_131_313, 7_272_727_272_727_272_727, 1_868_686_868
        command = request(RequestCode.PULL_MESSAGE, self.header(offset, count), opaque=opaque)
        text = command.encode()[8:]
        pieces = [text]
        for number, name in ((opaque, b"opaque"), (offset, b"offset"), (count, b"count")):
            mark = b"%d" % number
            at = next(place for place, piece in enumerate(pieces) if mark in piece)
            before, _, after = pieces[at].partition(mark)
            pieces[at : at + 1] = [before, name, after]
        return pieces
