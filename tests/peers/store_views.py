"""What a broker, or a store of ours, says about its messages, in a form to be compared.

Apache's broker is asked over a bare socket, so that nothing between it and us repairs or hides a byte:
a pull answers with the records exactly as they lie in its log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from kerolox.protocol import properties as names
from kerolox.protocol.record_scan import CHECK_BODY, PHYSICAL_OFFSET, PROPERTIES, SIZE, STORE_TIMESTAMP, scan
from kerolox.store.message_store import MessageStore

from .wire import Answer, request

PULL_MESSAGE = 11
QUERY_MESSAGE = 12
SEARCH_OFFSET_BY_TIMESTAMP = 29
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
VIEW_MESSAGE_BY_ID = 33
SUBSCRIPTION = 4  # the sys flag of a pull that brings its subscription along
FOREVER_MS = (1 << 63) - 1

Queue = tuple[str, int]


@dataclass
class View:
    """The records of each queue, by key and by time."""

    records: dict[Queue, list[bytes]] = field(default_factory=dict)
    bounds: dict[Queue, tuple[int, int]] = field(default_factory=dict)
    by_key: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    by_time: dict[tuple[str, int, int, str], int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self.records.values()))


def split(data: bytes) -> list[bytes]:
    """The records that lie back to back in the body of a pull."""
    found = scan(data, check=CHECK_BODY)
    assert found.position == len(data), found.what
    records = []
    at = 0
    for entry in found.entries:
        records.append(data[at : at + entry[SIZE]])
        at += entry[SIZE]
    return records


def keys_of(record: bytes) -> list[str]:
    """Everything the index knows a record by."""
    properties = scan(record).entries[0][PROPERTIES]
    unique = names.find(properties, names.AT_UNIQUE_KEY)
    keys = names.find(properties, names.AT_KEYS)
    found = ([unique] if unique else []) + [key for key in (keys or b"").split(b" ") if key]
    return [key.decode() for key in found]


def times_of(records: list[bytes]) -> list[int]:
    """Moments to ask for: before, at, between and after the store times of a few of the records."""
    stored = [scan(record).entries[0][STORE_TIMESTAMP] for record in records]
    some = stored[:: max(1, len(stored) // 4)] + stored[-1:]
    return sorted({moment + shift for moment in some for shift in (-1, 0, 1)} | {1, stored[-1] + 10_000})


class BrokerView:
    """Apache's broker, asked for what a :class:`View` holds."""

    def __init__(self, address: str, group: str = "store_views") -> None:
        self.address = address
        self.group = group

    def ask(self, code: int, **fields: object) -> Answer:
        return request(self.address, code, {name: str(value) for name, value in fields.items()}, timeout=10)

    def offset(self, code: int, queue: Queue, **fields: object) -> int:
        answer = self.ask(code, topic=queue[0], queueId=queue[1], **fields)
        assert answer.code == 0, answer
        return int(answer.ext_fields["offset"])

    def max_offset(self, queue: Queue) -> int:
        return self.offset(GET_MAX_OFFSET, queue)

    def wait_max(self, queue: Queue, offset: int, timeout_s: float = 20) -> None:
        """Until the broker has dispatched that far, which it does a moment after it has acknowledged."""
        deadline = time.monotonic() + timeout_s
        while self.max_offset(queue) < offset:
            assert time.monotonic() < deadline, f"{queue} stays at {self.max_offset(queue)}, not {offset}"
            time.sleep(0.02)

    def pull(self, queue: Queue, offset: int) -> tuple[bytes, int]:
        answer = self.ask(
            PULL_MESSAGE,
            consumerGroup=self.group,
            topic=queue[0],
            queueId=queue[1],
            queueOffset=offset,
            maxMsgNums=32,
            sysFlag=SUBSCRIPTION,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subscription="*",
            subVersion=0,
            expressionType="TAG",
        )
        assert answer.code == 0, (queue, offset, answer.code, answer.remark)
        return answer.body, int(answer.ext_fields["nextBeginOffset"])

    def records(self, queue: Queue) -> list[bytes]:
        offset, end = self.offset(GET_MIN_OFFSET, queue), self.max_offset(queue)
        found: list[bytes] = []
        while offset < end:
            data, offset = self.pull(queue, offset)
            found += split(data)
        return found

    def at(self, physical: int) -> bytes:
        answer = self.ask(VIEW_MESSAGE_BY_ID, offset=physical)
        assert answer.code == 0, answer.remark
        return answer.body

    def by_key(self, topic: str, key: str) -> list[bytes]:
        answer = self.ask(
            QUERY_MESSAGE, topic=topic, key=key, maxNum=64, beginTimestamp=0, endTimestamp=FOREVER_MS
        )
        return [] if answer.code == 22 else split(answer.body)

    def by_time(self, queue: Queue, time_ms: int, bound: str) -> int:
        return self.offset(SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=time_ms, boundaryType=bound)

    def view(self, queues: Iterable[Queue], *, keys_every: int = 1, times: bool = True) -> View:
        """All of these queues; of their messages every ``keys_every``-th is looked up by its keys."""
        view = View()
        for queue in queues:
            records = view.records[queue] = self.records(queue)
            view.bounds[queue] = (self.offset(GET_MIN_OFFSET, queue), self.max_offset(queue))
            for record in records[::keys_every]:
                for key in keys_of(record):
                    if (queue[0], key) not in view.by_key:
                        view.by_key[queue[0], key] = self.by_key(queue[0], key)
            for time_ms in times_of(records) if records and times else ():
                for bound in ("LOWER", "UPPER"):
                    view.by_time[*queue, time_ms, bound] = self.by_time(queue, time_ms, bound)
        return view


async def view_of_store(store: MessageStore, like: View) -> View:
    """The same questions as another view has answers to, asked of our store."""
    view = View()
    for queue in like.records:
        view.bounds[queue] = (store.queues.min_offset(*queue), store.queues.max_offset(*queue))
        offset, end = view.bounds[queue]
        parts: list[bytes] = []
        while offset < end:
            read = await store.queues.read(*queue, offset)
            assert read.count, (queue, offset, read.status)
            parts += read.parts
            offset = read.next_offset
        view.records[queue] = split(b"".join(parts))
    for topic, key in like.by_key:
        view.by_key[topic, key] = await store.find_by_key(topic, key, 64)
    for topic, queue_id, time_ms, bound in like.by_time:
        view.by_time[topic, queue_id, time_ms, bound] = await store.queues.offset_by_time(
            topic, queue_id, time_ms, upper=bound == "UPPER"
        )
    return view


def assert_same(ours: View, theirs: View, *, keys_lost: bool = False) -> None:
    """Equal, with the first difference named rather than megabytes of bytes printed.

    ``keys_lost``: Apache's broker deletes its index after a crash, and does not make all of it again. We do.
    """
    assert ours.bounds == theirs.bounds
    for queue, records in theirs.records.items():
        assert len(ours.records[queue]) == len(records), queue
        for number, (mine, other) in enumerate(zip(ours.records[queue], records, strict=True)):
            assert mine == other, (queue, number)
    for key, found in theirs.by_key.items():
        if keys_lost:
            assert set(places(found)) <= set(places(ours.by_key[key])), key
            continue
        assert places(ours.by_key[key]) == places(found), key
        assert ours.by_key[key] == found, key
    assert ours.by_time == theirs.by_time


def places(records: Iterable[bytes]) -> list[int]:
    return [scan(record).entries[0][PHYSICAL_OFFSET] for record in records]
