"""Tasks of a replay: each sends the messages of some queues, in order, to other queues.

A copy is marked with the replay's id and the place of its original. A task that starts looks for these marks
after the end that the target had when the replay was planned, and continues after the last mark. If an
answer is missing, it looks again before it sends anything a second time. One request is in flight at a time,
and a broker stores a request completely or not at all. The socket sender retries requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from kerolox.client.admin.dead_letters import OF_THE_WAY
from kerolox.client.calls.outgoing import shrink
from kerolox.client.calls.readers import LEADER_ALONE
from kerolox.client.messages import Queue
from kerolox.client.options import ClientOptions
from kerolox.client.sockets.lines import Parcel
from kerolox.client.sockets.sending import NotAllSent, SocketSender
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import KeroloxError
from kerolox.pipeline.copy_properties import REPLAY_FROM, REPLAY_ID
from kerolox.pipeline.replay.lifeline import NoLongerWanted, TaskEnd
from kerolox.pipeline.replay.plan import ReplayError, SourceQueue
from kerolox.protocol import properties as names
from kerolox.protocol.batch import encode_batch, unwrap
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.compression import LEVEL
from kerolox.protocol.flags import COMPRESSION_ZLIB
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX
from kerolox.protocol.properties import pack, unpack
from kerolox.protocol.record import decode_record
from kerolox.protocol.reserved import TOOLS_GROUP
from kerolox.spark.records import positions_of

# Marks of a copy: id of the replay, place of the original, and its born time.
REPLAY_BORN = "KEROLOX_REPLAY_BORN"
MARKS = frozenset({REPLAY_ID, REPLAY_FROM, REPLAY_BORN})
AT_REPLAY_ID = names.marker(REPLAY_ID)
AT_REPLAY_FROM = names.marker(REPLAY_FROM)

# Properties that are not copied: the copy is a new message, not a retry, and a failure refers to the copy.
NOT_CARRIED = OF_THE_WAY | MARKS | {names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.REDIRECT}

PRODUCER_GROUP = "KEROLOX_REPLAY"
BATCH_BYTES = 1 << 19
BATCH_COUNT = 1000
ITEM_BYTES = 22
PATIENCE_S = 60.0  # time to retry with a broker that does not answer, such as during a restart
RETRIES = 1000  # the patience ends them
SETTLE_S = 1.0  # time after which the last request of a dead sender is stored
WAIT = pack({names.WAIT: "true"})
SLICE_S = 0.2

COLUMNS = (
    "task int, source int, queue_offset bigint, body binary, properties map<string,string>, keys string, "
    "tags string, born_ms bigint, flag int"
)
RESULT = pa.schema(
    [
        ("source", pa.int32()),
        ("sent", pa.int64()),
        ("before", pa.int64()),
        ("repeated", pa.int64()),
        ("error", pa.string()),
    ]
)
RESULT_COLUMNS = "source int, sent bigint, before bigint, repeated bigint, error string"

NamedValues: TypeAlias = Iterable[tuple[str, str]]


@dataclass
class Copy:
    """Copy of a message, ready to be sent."""

    offset: int  # queue offset of the original
    flag: int
    body: bytes
    properties: bytes

    @property
    def size_bytes(self) -> int:
        return ITEM_BYTES + len(self.body) + len(self.properties)


@dataclass
class QueueResult:
    """Numbers of messages of one queue that a task sent, and the error that ended it."""

    sent: int = 0
    before: int = 0  # messages sent by earlier runs
    repeated: int = 0  # messages that repeat another in the source: not sent again
    error: str | None = None


class SendPace:
    """Rate limit in messages per second."""

    def __init__(self, rate: float, check: Callable[[], None]) -> None:
        self._rate = rate
        self._check = check
        self._next_s = time.monotonic()

    @property
    def count_max(self) -> int:
        return max(1, min(BATCH_COUNT, int(self._rate * SLICE_S))) if self._rate else BATCH_COUNT

    def wait(self, count: int) -> None:
        if not self._rate:
            return
        while (left_s := self._next_s - time.monotonic()) > 0:
            time.sleep(min(SLICE_S, left_s))
            self._check()
        self._next_s = max(self._next_s, time.monotonic() - SLICE_S) + count / self._rate


@dataclass(frozen=True)
class SendTasks:
    """Arguments of all tasks. Each finds its own queues by its number."""

    id: str
    options: ClientOptions
    queues: Sequence[Sequence[tuple[int, SourceQueue]]]  # by task: queues with their numbers in the plan
    rate: float  # messages per second of all tasks together
    resumed: bool
    host: str
    port: int
    token: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run as ``mapInArrow``. Rows are ordered by source and offset."""
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        number = task.partitionId()
        mine = dict(self.queues[number])
        total = sum(source.count for _, source in (pair for part in self.queues for pair in part))
        # Each task gets its share of the rate, so all end together and the total is the requested rate.
        share = self.rate * sum(source.count for source in mine.values()) / max(1, total)
        lifeline = TaskEnd(self.host, self.port, self.token, number)
        try:
            with SocketCluster(self.options, patience_s=PATIENCE_S, read_from=LEADER_ALONE) as cluster:
                unsure = self.resumed or task.attemptNumber() > 0
                done = SendTask(cluster, self.id, mine, lifeline, share, unsure=unsure).run(batches)
        finally:
            lifeline.close()
        rows = [(number, each.sent, each.before, each.repeated, each.error) for number, each in done.items()]
        columns = zip(*rows, strict=True) if rows else [()] * len(RESULT)
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, RESULT, strict=True)],
            schema=RESULT,
        )


class SendTask:
    """Sender of the messages of some queues, one queue after the other."""

    def __init__(
        self,
        cluster: SocketCluster,
        id: str,
        sources: dict[int, SourceQueue],
        lifeline: TaskEnd,
        rate: float,
        *,
        unsure: bool,
    ) -> None:
        self._cluster = cluster
        self._sender = SocketSender(
            cluster,
            PRODUCER_GROUP,
            retries=RETRIES,
            give_up_s=PATIENCE_S,
            find_missing=self._find_missing,
            check=lifeline.check,
        )
        self._id = id
        self._sources = sources
        self._lifeline = lifeline
        self._pace = SendPace(rate, lifeline.check)
        self._unsure = unsure
        self._done: dict[int, QueueResult] = {}
        self._looked: dict[Queue, int] = {}  # by target: offset at which the next look begins
        self._last: dict[str, int] = {}  # by source: last offset already in the target
        self._in_flight: tuple[SourceQueue, list[Copy]] | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> dict[int, QueueResult]:
        """Send the messages of these rows. Return the result of each queue."""
        with self._sender:
            return self._run(batches)

    def _run(self, batches: Iterable[pa.RecordBatch]) -> dict[int, QueueResult]:
        part: list[Copy] = []
        number, size_bytes = -1, 0
        behind, known = -1, None  # the message before, to detect repetitions
        try:
            for batch in batches:
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    _, following, offset, body, pairs, keys, tags, born_ms, flag = row
                    if following != number:
                        self._flush(number, part)
                        number, part, size_bytes, behind = following, [], 0, -1
                        self._begin(number)
                    source = self._sources[number]
                    if offset == behind:
                        if (body, born_ms) != known:
                            raise ReplayError(
                                f"{source.name}/{offset} is the place of two messages: the topic was deleted "
                                "and created again. Replay one after the other, by --since and --until"
                            )
                        self._done[number].repeated += 1
                        continue
                    behind, known = offset, (body, born_ms)
                    if offset <= self._last.get(source.name, -1):
                        self._done[number].before += 1
                        continue
                    packed = self.properties(source, offset, pairs, keys, tags, born_ms)
                    copy = Copy(offset, flag or 0, body or b"", packed)
                    if part and (
                        size_bytes + copy.size_bytes > BATCH_BYTES or len(part) >= self._pace.count_max
                    ):
                        self._flush(number, part)
                        part, size_bytes = [], 0
                    part.append(copy)
                    size_bytes += copy.size_bytes
            self._flush(number, part)
        except ReplayError as error:  # another attempt would fail too
            self._done.setdefault(number, QueueResult()).error = " ".join(str(error).split())
        return self._done

    def properties(
        self,
        source: SourceQueue,
        offset: int,
        pairs: NamedValues | str | None,
        keys: str | None,
        tags: str | None,
        born_ms: int | None,
    ) -> bytes:
        """Return the properties of the copy: those of the message, without internal ones, and the marks."""
        own = unpack(pairs.encode()) if isinstance(pairs, str) else dict(pairs or ())
        kept: dict[str, str | None] = {
            name: value
            for name, value in own.items()
            if name not in NOT_CARRIED and not name.startswith(names.TRANSIENT_PREFIX)
        }
        if keys:
            kept.setdefault(names.KEYS, keys)
        if tags:
            kept.setdefault(names.TAGS, tags)
        kept[REPLAY_ID] = self._id
        kept[REPLAY_FROM] = f"{source.name}/{offset}"
        if born_ms is not None:
            kept[REPLAY_BORN] = str(born_ms)
        packed = pack(kept)
        if len(packed) > PROPERTIES_BYTES_MAX:
            raise ReplayError(
                f"message {source.name}/{offset}: with the marks its properties take {len(packed)} bytes; at "
                f"most {PROPERTIES_BYTES_MAX} are allowed. Exclude the message by --where"
            )
        return packed

    # --- messages already sent -----------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        source = self._sources[number]
        self._done.setdefault(number, QueueResult())
        if source.target not in self._looked:
            if self._unsure:
                time.sleep(SETTLE_S)
            try:
                self._look(source.target, source.since)
            except KeroloxError as error:
                raise self._failed(source, error) from error
        if not self._unsure or source.name in self._last:
            return
        first = self._cluster.min_offset(source.target)
        if first > source.since:
            raise ReplayError(
                f"messages that replay {self._id} sent to {source.target} may have been deleted: the queue "
                f"began at or before {source.since} and now begins at {first}. Replay the missing messages "
                "with a new --id"
            )

    def _look(self, target: Queue, start: int) -> None:
        """Find the marks of this replay in a queue."""
        cluster = self._cluster
        end = cluster.max_offset(target)
        start = max(start, cluster.min_offset(target))
        for pulled in cluster.blocks(target, start, end, group=TOOLS_GROUP):
            self._lifeline.check()
            for at in positions_of(pulled.block):
                for message in unwrap(decode_record(pulled.block, int(at))):
                    packed = message.packed_properties
                    if names.find(packed, AT_REPLAY_ID) == self._id.encode():
                        place = names.find(packed, AT_REPLAY_FROM) or b""
                        name, _, offset = place.decode("utf-8", "replace").rpartition("/")
                        self._last[name] = max(self._last.get(name, -1), int(offset))
        self._looked[target] = max(start, end)

    # --- sending ------------------------------------------------------------------------------------------

    def _flush(self, number: int, part: list[Copy]) -> None:
        if not part:
            return
        source = self._sources[number]
        self._pace.wait(len(part))
        self._lifeline.check()
        self._in_flight = source, part
        try:
            self._sender.send(self._parcel(source, part), source.target)
            self._sender.finish()
        except KeroloxError as error:
            self._lifeline.check()
            reason = error.lost[0][1] if isinstance(error, NotAllSent) else error
            raise self._failed(source, reason) from error
        self._last[source.name] = part[-1].offset
        done = self._done[number]
        done.sent += len(part)
        self._lifeline.tell(sum(each.sent + each.before for each in self._done.values()))

    def _failed(self, source: SourceQueue, error: KeroloxError) -> ReplayError:
        if isinstance(error, NoLongerWanted):
            raise error
        last = self._last.get(source.name)
        where = f"after offset {last}" if last is not None else "at its start"
        return ReplayError(f"{source.name} to {source.target}, {where}: {error}")

    def _find_missing(self, parcel: Parcel, queue: Queue) -> Parcel | None:
        """Return the part of a request without an answer that is not in its queue."""
        until_s = time.monotonic() + SETTLE_S
        while time.monotonic() < until_s:
            time.sleep(SLICE_S)
            self._lifeline.check()
        self._look(queue, self._looked[queue])
        assert self._in_flight is not None
        source, part = self._in_flight
        last = self._last.get(source.name, -1)
        missing = [copy for copy in part if copy.offset > last]
        return self._parcel(source, missing) if missing else None

    def _parcel(self, source: SourceQueue, part: Sequence[Copy]) -> Parcel:
        topic, born_ms = source.target.topic, SYSTEM_CLOCK.wall_ms()
        if len(part) > 1:
            body = encode_batch([(copy.flag, copy.body, copy.properties) for copy in part])
            code = RequestCode.SEND_BATCH_MESSAGE
            return Parcel(topic, body, WAIT.decode(), "", born_ms, code=code, count=len(part))
        (copy,) = part
        parcel = Parcel(topic, copy.body, (copy.properties + WAIT).decode(), "", born_ms, copy.flag)
        if len(copy.body) > BATCH_BYTES:  # a compressed message may exceed the broker's limit uncompressed
            shrink(parcel, COMPRESSION_ZLIB, LEVEL)
        return parcel
