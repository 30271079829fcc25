"""Effectively-once writes: the start of a write, and its rows that are already in the queues.

A row's message id is made of query, batch and partition (``row_ids.py``), so its messages can be told from
all others in a topic. Before the first task of a micro-batch starts, the driver notes how far the target
queues are; the note lies in the checkpoint, so a batch that is run again, also after a restart, has the note
of its first run. A task that is tried again, or belongs to a batch that was run before, reads the queues from
there on and sends only the rows that are missing. A usual task reads nothing.

Rows are compared by what is in them, not by their numbers: a task that is tried again must be given the same
rows, but may get them in another order, as it does behind a shuffle. When it gets other rows, it fails.

What this does not cover, because a broker has nothing to fence a sender off with:

* Two attempts of one task at the same time. Speculative execution is refused (spark.speculation), and on a
  cluster so are stages that are run again because shuffle files were lost: spark.stage.maxConsecutiveAttempts
  = 1 makes the batch fail instead, and be run again from its note. What remains: an executor that is cut off
  from the driver, but not from the brokers, goes on with tasks that are started elsewhere meanwhile.
* A request of a killed attempt that is stored after the next attempt looked. The look is repeated until for
  ``settleMs`` nothing more of the task has appeared, so such a request would have to be longer than that on
  its way: through the network, or in a broker that stands still.
* Messages deleted by the broker between two runs (older than fileReservedTime): the second run fails and
  says so, since it cannot know.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from kerolox.client.errors import TopicUnknownAtBroker
from kerolox.client.messages import Queue, iter_received
from kerolox.client.sockets.lines import Parcel
from kerolox.client.sockets.sending import SocketSender
from kerolox.client.sockets.socket_cluster import OffsetGone, SocketCluster
from kerolox.errors import KeroloxError
from kerolox.protocol import properties as names
from kerolox.protocol.batch import encode_batch, split_batch
from kerolox.protocol.codes import RequestCode
from kerolox.spark.sink.outgoing import Rows
from kerolox.spark.sink.requests import split_item
from kerolox.spark.sink.row_ids import RowIds

CLOCK_SKEW_MS: Final = 300_000  # between driver and brokers, where only a time is known
PULL_COUNT: Final = 1024
FRESH_ROWS: Final = 1 << 31  # numbers for rows whose own belongs to another one already

QueueEnds = dict[str, dict[str, dict[str, int]]]  # topic → broker → queue → the next message


class NotTheSameRows(KeroloxError):
    """A retried task got other rows than before."""

    next_step = (
        "make the query deterministic: the same input must give the same rows in each partition. "
        "Remove expressions that change between runs (rand, now, unordered limits), or write at-least-once"
    )

    def __init__(self, partition: int, count: int) -> None:
        super().__init__(
            f"an earlier attempt of partition {partition} sent {count} rows that this attempt did not get. "
            f"Next: {self.next_step}."
        )


class Beginning(msgspec.Struct, frozen=True):
    """Start of a write: its time, and the ends of the queues then."""

    write: str  # names the write: query and batch, or the job
    started_ms: int
    offsets: QueueEnds = {}
    done: bool = False  # all rows were sent

    def start_of(self, cluster: SocketCluster, queue: Queue) -> int:
        """Return the first offset at which messages of this write can be in a queue."""
        known = self.offsets.get(queue.topic)
        if known is not None:
            noted = known.get(queue.broker, {}).get(str(queue.queue_id))
            return cluster.min_offset(queue) if noted is None else noted  # one that came later
        try:
            return cluster.offset_at(queue, self.started_ms - CLOCK_SKEW_MS)
        except TopicUnknownAtBroker:
            return 0


def ends_of(sender: SocketSender, topics: Iterable[str]) -> QueueEnds:
    """Return the end offsets of the queues of these topics."""
    found: QueueEnds = {}
    for topic in topics:
        table = found[topic] = {}
        to_be_made = sender.is_assumed(topic)
        for queue in sender.queues(topic):
            end = 0 if to_be_made else sender.cluster.max_offset(queue)
            table.setdefault(queue.broker, {})[str(queue.queue_id)] = end
    return found


class Stored:
    """Messages of one task that were found in the queues."""

    def __init__(
        self, sender: SocketSender, beginning: Beginning, ids: RowIds, group: str, settle_s: float
    ) -> None:
        self._sender = sender
        self._beginning = beginning
        self._ids = ids
        self._group = group
        self._settle_s = settle_s
        self._read: dict[Queue, int] = {}  # how far
        self._topics: set[str] = set()  # topics already read
        self._counts: Counter[bytes] = Counter()
        self._keys: set[bytes] = set()
        self._fresh = FRESH_ROWS
        self.skipped = 0

    # --- reading --------------------------------------------------------------------------------------

    def look(self, topic: str) -> None:
        """Find all messages of the task in a topic, once."""
        if topic in self._topics:
            return
        self._topics.add(topic)
        if self._sender.is_assumed(topic):
            time.sleep(self._settle_s)
            if self._sender.is_assumed(topic):
                return
        queues = self._sender.queues(topic)
        self._look_at(queues)
        while True:
            time.sleep(self._settle_s)
            if not self._look_at(queues):
                return

    def _look_at(self, queues: Iterable[Queue]) -> int:
        return sum(self._note(queue, *found) for queue in queues for found in self._new_in(queue))

    def _note(self, queue: Queue, key: bytes, flag: int, body: bytes, packed: bytes) -> int:
        if key in self._keys:
            return 0  # sent twice, by what this cannot prevent: one row all the same
        self._keys.add(key)
        self._counts[digest(queue.topic, flag, body, packed)] += 1
        return 1

    def _new_in(self, queue: Queue) -> Iterator[tuple[bytes, int, bytes, bytes]]:
        """Yield id, flag, body and properties of the task's messages not read so far."""
        cluster = self._sender.cluster
        start = self._read.get(queue)
        if start is None:
            start = self._beginning.start_of(cluster, queue)
        end = cluster.max_offset(queue)
        self._read[queue] = max(start, end)
        if end <= start:
            return
        head = self._ids.head
        try:
            for pulled in cluster.blocks(queue, start, end, group=self._group, count=PULL_COUNT):
                if head not in pulled.block:
                    continue
                for message in iter_received(pulled.block, queue.broker):
                    key = message.unique_key.encode()
                    if message.queue_offset < end and self._ids.has(key):
                        yield key, message.flag, message.body, message.packed_properties
        except OffsetGone as error:
            raise KeroloxError(
                f"cannot tell which rows were sent: {error}, and this write began there. To go on, remove "
                "the note of the batch from the checkpoint (kerolox-sink), which sends all its rows again"
            ) from error

    # --- what is missing --------------------------------------------------------------------------------

    def missing(self, topic: str, rows: Rows) -> Rows:
        """Return the rows that are not in the queues. Each stored message stands for one of equal rows."""
        self.look(topic)
        if not self._counts:
            return rows
        places: list[int] = []
        items: list[bytes] = []
        renamed = False
        for place, item in enumerate(rows.items.to_pylist()):
            flag, body, packed = split_item(item)
            mark = digest(topic, flag, body, packed)
            if self._counts[mark] > 0:
                self._counts[mark] -= 1
                self.skipped += 1
                continue
            key = names.find(packed, names.AT_UNIQUE_KEY) or b""
            if key in self._keys:  # the rows came in another order, and another one has this id
                item, renamed = item.replace(key, self._fresh_key(key)), True
            places.append(place)
            items.append(item)
        if len(places) == len(rows.items) and not renamed:
            return rows
        lonely = None if rows.lonely is None else rows.lonely[np.array(places, np.int64)]
        return Rows(pa.array(items, pa.binary()), lonely)

    def _fresh_key(self, key: bytes) -> bytes:
        while True:
            fresh = b"%b%08X%b" % (key[:12], self._fresh, key[20:])
            self._fresh += 1
            if fresh not in self._keys:  # an attempt before may have needed some too
                return fresh

    def check(self, partition: int) -> None:
        """Check that every stored message belonged to a row. Raises NotTheSameRows."""
        left = +self._counts
        if left:
            raise NotTheSameRows(partition, left.total())

    # --- a lost answer ----------------------------------------------------------------------------------

    def missing_of(self, parcel: Parcel, queue: Queue) -> Parcel | None:
        """Return the messages of an unanswered request that are not in its queue."""
        whole = Stored(self._sender, self._beginning, self._ids, self._group, self._settle_s)
        there = {key for key, *_ in whole._new_in(queue)}
        while True:
            time.sleep(self._settle_s)
            new = {key for key, *_ in whole._new_in(queue)}
            there |= new
            if not new:
                break
        if parcel.code != RequestCode.SEND_BATCH_MESSAGE:
            key = names.find(parcel.properties.encode(), names.AT_UNIQUE_KEY)
            return None if key in there else parcel
        items = split_batch(parcel.join())
        rest = [item for item in items if names.find(item[2], names.AT_UNIQUE_KEY) not in there]
        if not rest:
            return None
        if len(rest) == len(items):
            return parcel
        return msgspec.structs.replace(parcel, body=encode_batch(rest), count=len(rest))


_KEPT: Final = frozenset({names.KEYS, names.TAGS})


def digest(topic: str, flag: int, body: bytes, packed: bytes) -> bytes:
    """Return a hash of a message without its id and the properties that a broker adds."""
    own = sorted(
        item for item in names.unpack(packed).items() if item[0] in _KEPT or item[0] not in names.RESERVED
    )
    found = blake2b(body, digest_size=16)
    found.update(msgspec.msgpack.encode((topic, flag, own)))
    return found.digest()
