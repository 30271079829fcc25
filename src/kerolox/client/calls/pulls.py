"""Pulls of readers outside a consumer group: requests, and the number of messages to request.

A pull requests a number of messages, and the broker returns as many as its limits allow: 32 by default. To
read ahead, the client must predict the start of the next pull. So it should request exactly the number that
the broker will return; this also saves the broker from reading messages that it does not return.

kerolox brokers return more to a sequential reader: as many bytes as requested, up to a limit of the broker
(``scanBytes``, see protocol/FRAME.md). They are recognized by the language in their responses; other brokers
do not receive such requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kerolox.client.calls.signing import adds_no_fields
from kerolox.client.messages import Queue
from kerolox.client.options import ClientOptions
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import request
from kerolox.protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.frame import JSON, pack_frame
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.subscription import ALL, TAG

TRY_AFTER: Final = 64  # pulls
SCAN_BYTES: Final = 1 << 20  # of a response
SCAN_BYTES_MAX: Final = 12 << 20  # a frame has 16 MiB at most
SCAN_BYTES_MIN: Final = 64 << 10
SCAN_COUNT_MAX: Final = 16_384
SCAN_COUNT_FIRST: Final = 4096  # while the message size is unknown
FILL: Final = 0.9  # target share of the byte limit: a truncated response costs another request
KEPT_BEFORE_MORE: Final = 16


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
    """Return a pull request for ``count`` messages from an offset.

    The group need not exist, and its progress is not changed. Only kerolox brokers use ``scan_bytes``.
    """
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


class Pace:
    """Number of messages to request: the broker's limit, found by requesting slightly more.

    If the same number returns again, it is taken as the limit. It may be a byte limit, and messages may
    become smaller, so a larger number is tried from time to time, with growing intervals: each trial is a
    wrong prediction for the following pulls.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self.ask = count_max
        self.is_known = False  # until then a prediction would be wrong
        self._cut = 0  # number returned by the last short response
        self._is_fixed = False
        self._kept = 0  # pulls that returned the fixed number
        self._try_after = TRY_AFTER

    def saw(self, asked: int, got: int) -> None:
        self.is_known = True
        if got < asked:
            self._is_fixed = got == self._cut
            self._cut = got
            self.ask = max(1, got)
            return
        if asked != self.ask:
            return  # at the end of the range, or requested before the pace changed
        if self._is_fixed:
            self._kept += 1
            if self._kept < self._try_after:
                return
            self._is_fixed = False
            self._kept = 0
            self._try_after *= 2
        self.ask = min(self._count_max, asked + asked // 8 + 1)


class ScanPace:
    """Number of messages to request from a kerolox broker: about as many as fill a response.

    A response has fewer if messages are longer than before or a file ends; the reader requests the rest. If
    the broker's limit is lower than the request, the limit is requested from then on, and occasionally more.
    """

    def __init__(self, bytes_max: int, count_max: int = SCAN_COUNT_MAX) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._limit = bytes_max  # byte limit of responses, as far as known
        self._kept = 0  # responses within the limit
        self.ask = min(count_max, SCAN_COUNT_FIRST)
        self.is_known = False

    def saw(self, asked: int, got: int, size_bytes: int) -> None:
        """Record a response. ``asked`` is 0 if the scan limit did not truncate it."""
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
    """Builder of pull requests for one queue. Only three numbers in them vary."""

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
        # No template for signed requests (the signature covers all fields) and for the binary form (it has
        # lengths).
        self.has_template = adds_no_fields(options) and options.encoding == JSON
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
        """Return the frames of requests, each an opaque, an offset and a count. Requires ``has_template``."""
        if not self._pieces:
            self._pieces = self._template()
        return b"".join([pack_frame(JSON, self._filled(*each)) for each in wanted])

    def _filled(self, opaque: int, offset: int, count: int) -> bytes:
        values = {b"opaque": opaque, b"offset": offset, b"count": count}
        return b"".join([b"%d" % values[piece] if piece in values else piece for piece in self._pieces])

    def _template(self) -> list[bytes]:
        """Return the header of a request, split at its three numbers, which are located by unique values."""
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
