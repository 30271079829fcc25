"""Messages put into requests: many into one where that can be, each into its own where it cannot."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np

from kerolox.client.calls.outgoing import shrink
from kerolox.client.messages import Queue
from kerolox.client.sockets.lines import Parcel
from kerolox.clock import SYSTEM_CLOCK
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.compression import LEVEL
from kerolox.protocol.flags import COMPRESSION_ZLIB
from kerolox.protocol.reserved import RETRY_PREFIX
from kerolox.spark.sink.outgoing import Rows

BATCH_BYTES: Final = 256 * 1024  # of a request
BATCH_BYTES_MAX: Final = 1024 * 1024  # the broker's 4 MiB count records, which are larger than what is sent
BATCH_COUNT: Final = 4096
PIECES_MAX: Final = 16  # of a request's body; the system takes no more than some hundred at once
_unpack_head = struct.Struct(">12xii").unpack_from


class Packer:
    """Fills requests with messages, and sends those that are full."""

    def __init__(
        self,
        send: Callable[[Parcel, Queue | None], None],
        *,
        batch_bytes: int = BATCH_BYTES,
        batch_count: int = BATCH_COUNT,
        compress_from: int = 0,
    ) -> None:
        self._send = send
        self._batch_bytes = batch_bytes
        self._batch_count = batch_count
        self._compress_from = compress_from
        self._filling: dict[tuple[str, Queue | None], Filling] = {}

    def add(self, topic: str, queue: Queue | None, rows: Rows) -> None:
        count = len(rows.items)
        if topic.startswith(RETRY_PREFIX):  # brokers take no batches there
            lonely = np.arange(count)
        elif rows.lonely is None:
            self._add(topic, queue, rows, 0, count)
            return
        else:
            lonely = np.flatnonzero(rows.lonely)
        done = 0
        for place in lonely.tolist():
            self._add(topic, queue, rows, done, place)
            if queue is not None:  # what stands before it in its queue goes before it
                self._flush(topic, queue)
            self._send(self._single(topic, rows, place), queue)
            done = place + 1
        self._add(topic, queue, rows, done, count)

    def finish(self) -> None:
        """Send what is left."""
        for topic, queue in list(self._filling):
            self._flush(topic, queue)

    def _add(self, topic: str, queue: Queue | None, rows: Rows, start: int, stop: int) -> None:
        if start == stop:
            return
        filling = self._filling.get((topic, queue))
        if filling is None:
            filling = self._filling[topic, queue] = Filling()
        offsets = rows.offsets
        while start < stop:
            room = self._batch_bytes - filling.size
            end = int(np.searchsorted(offsets, offsets[start] + room, "right")) - 1
            end = min(end, stop, start + self._batch_count - filling.count)
            if end <= start:
                if filling.count:
                    self._flush(topic, queue)
                    continue
                end = start + 1  # larger than a request should be: alone, then
            filling.parts.append(rows.data[int(offsets[start]) : int(offsets[end])])
            filling.size += int(offsets[end] - offsets[start])
            filling.count += end - start
            start = end
            if filling.size >= self._batch_bytes or filling.count >= self._batch_count:
                self._flush(topic, queue)
        filling.keep_last()

    def _flush(self, topic: str, queue: Queue | None) -> None:
        filling = self._filling.get((topic, queue))
        if filling is None or not filling.count:
            return
        pieces, count = filling.empty()
        self._send(
            Parcel(
                topic,
                b"",
                # The properties of the request itself: those of the messages are in the body.
                "WAIT\x01true\x02",
                "",
                SYSTEM_CLOCK.wall_ms(),
                code=RequestCode.SEND_BATCH_MESSAGE,
                count=count,
                pieces=pieces,
            ),
            queue,
        )

    def _single(self, topic: str, rows: Rows, place: int) -> Parcel:
        item = bytes(rows.data[int(rows.offsets[place]) : int(rows.offsets[place + 1])])
        flag, body, packed = split_item(item)
        parcel = Parcel(topic, body, packed.decode("utf-8", "replace"), "", SYSTEM_CLOCK.wall_ms(), flag)
        if self._compress_from and len(body) >= self._compress_from:
            shrink(parcel, COMPRESSION_ZLIB, LEVEL)
        return parcel


class Filling:
    """A request that is not full yet."""

    __slots__ = ("count", "parts", "size")

    def __init__(self) -> None:
        self.parts: list[memoryview | bytes] = []
        self.size = 0
        self.count = 0

    def keep_last(self) -> None:
        """The rows it was filled with go: what it has of them is copied, or a few rows for a queue would keep
        the memory of all the rows that came with them."""
        if self.parts:
            self.parts[-1] = bytes(self.parts[-1])

    def empty(self) -> tuple[tuple[memoryview | bytes, ...], int]:
        """Take out its body and the number of its messages. It can be filled again."""
        pieces, count = tuple(self.parts), self.count
        if len(pieces) > PIECES_MAX:
            pieces = (b"".join(pieces),)
        self.parts, self.size, self.count = [], 0, 0
        return pieces, count


def split_item(item: bytes) -> tuple[int, bytes, bytes]:
    """Flag, body and packed properties of one message of a batch."""
    flag, length = _unpack_head(item)
    return flag, item[20 : 20 + length], item[22 + length :]
