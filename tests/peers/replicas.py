"""A broker of a pair, ours or Apache's, told and asked over bare sockets; and its files, to be compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kerolox.protocol.bodies.groups import GroupConfig, GroupConfigTable
from kerolox.protocol.bodies.offsets import ConsumerOffsetTable, DelayOffsetTable
from kerolox.protocol.bodies.routes import KVTable
from kerolox.protocol.bodies.topics import TopicConfigTable
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.store.queue.entry import SIMPLE

from .ours import OurBroker
from .processes import JavaBroker
from .wire import Answer, request

ANSWER_S = 90.0  # longer than any broker here waits for its followers
EVENTUALLY_S = 120.0
BUSY_TRIES, BUSY_PAUSE_S = 100, 0.1
DELAY_TOPIC = "SCHEDULE_TOPIC_XXXX"
FILLED = 0x7FFFFFFF  # the size of an entry Apache's broker puts before the first of a queue

Entries = dict[tuple[str, int], dict[int, tuple[int, int, int]]]


def eventually(ready: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait for something that comes, on a busy machine too."""
    deadline = time.monotonic() + EVENTUALLY_S
    while not ready():
        assert time.monotonic() < deadline, f"it did not come: {what()}"
        time.sleep(0.1)


class Replica:
    """One broker of a pair."""

    def __init__(self, process: OurBroker | JavaBroker) -> None:
        self.process = process
        self.store = process.store
        self.address = process.address

    # Over the wire.

    def ask(self, code: RequestCode, body: bytes = b"", **fields: object) -> Answer:
        named = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in fields.items()
        }
        return request(self.address, code, named, body, ANSWER_S)

    def done(self, code: RequestCode, body: bytes = b"", **fields: object) -> bytes:
        answer = self.ask(code, body, **fields)
        assert answer.code == 0, (self.address, code.name, answer)
        return answer.body

    def send(self, topic: str, body: bytes, queue_id: int = 0, **properties: object) -> int:
        """Send a message and return the code of the answer. A broker that is busy has stored nothing, and is
        asked again: Apache's says so to what has waited 200 ms, as it may while a JVM compiles."""
        packed = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
        for _ in range(BUSY_TRIES):
            code = self.ask(
                RequestCode.SEND_MESSAGE, body, producerGroup="producers", topic=topic, defaultTopic="TBW102",
                defaultTopicQueueNums=4, queueId=queue_id, sysFlag=0, bornTimestamp=1_700_000_000_000, flag=0,
                properties=packed, reconsumeTimes=0, unitMode=False, batch=False,
            ).code  # fmt: skip
            if code != ResponseCode.SYSTEM_BUSY:
                break
            time.sleep(BUSY_PAUSE_S)
        return code

    def create_topic(self, topic: str, attributes: str) -> None:
        self.done(
            RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, defaultTopic="TBW102", readQueueNums=3,
            writeQueueNums=3, perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order=False,
            attributes=attributes,
        )  # fmt: skip

    def delete_topic(self, topic: str) -> None:
        self.done(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)

    def create_group(self, group: str, retries: int) -> None:
        config = GroupConfig(group_name=group, retry_max_times=retries)
        self.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, config.encode())

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.done(
            RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue_id,
            commitOffset=offset,
        )  # fmt: skip

    def set(self, line: str) -> None:
        self.done(RequestCode.UPDATE_BROKER_CONFIG, line.encode())

    def figures(self) -> dict[str, str]:
        """Where its log begins and ends, and more. Apache's broker cannot say in its first moments."""
        found: list[Answer] = []

        def answered() -> bool:
            found.append(self.ask(RequestCode.GET_BROKER_RUNTIME_INFO))
            return found[-1].code == 0

        eventually(answered, lambda: found[-1])
        return KVTable.decode(found[-1].body).table

    @property
    def begin(self) -> int:
        return int(self.figures()["commitLogMinOffset"])

    @property
    def end(self) -> int:
        return int(self.figures()["commitLogMaxOffset"])

    def max_offset(self, topic: str, queue_id: int) -> int:
        answer = self.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue_id)
        assert answer.code == 0, answer
        return int(answer.ext_fields["offset"])

    def tables(self) -> dict[str, Any]:
        """What it knows of topics and groups, by a name for each thing."""
        topics = TopicConfigTable.decode(self.done(RequestCode.GET_ALL_TOPIC_CONFIG))
        groups = GroupConfigTable.decode(self.done(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
        offsets = ConsumerOffsetTable.decode(self.done(RequestCode.GET_ALL_CONSUMER_OFFSET))
        return {
            "version of topics": topics.data_version,
            "version of groups": groups.data_version,
            **{f"topic {name}": config for name, config in topics.topic_config_table.items()},
            **{f"group {name}": config for name, config in groups.subscription_group_table.items()},
            **{f"progress {name}": offsets for name, offsets in offsets.offset_table.items()},
        }

    def delays(self) -> dict[int, int]:
        return DelayOffsetTable.decode(self.done(RequestCode.GET_ALL_DELAY_OFFSET)).offset_table

    # In its files.

    def saved_delays(self) -> dict[int, int]:
        """A follower of 4.9 writes down what it copies and does not read it."""
        path = self.store / "config" / "delayOffset.json"
        return DelayOffsetTable.decode(path.read_bytes()).offset_table if path.exists() else {}

    def log_files(self, end: int) -> dict[str, bytes]:
        """The files of the log that begin before ``end``: Apache's broker makes others in advance."""
        found = sorted((self.store / "commitlog").iterdir())
        return {path.name: path.read_bytes() for path in found if int(path.name) < end}

    def entries(self, low: int) -> Entries:
        """What the queues say of the log from ``low`` on, by queue and offset."""
        found: Entries = {}
        for queue in (self.store / "consumequeue").glob("*/*"):
            entries = found[queue.parent.name, int(queue.name)] = {}
            for path in sorted(queue.iterdir()):
                first = int(path.name) // SIMPLE.size
                data = path.read_bytes()
                whole = data[: SIMPLE.count(data) * SIMPLE.size]
                for number, entry in enumerate(SIMPLE.each(whole)):
                    if entry[0] >= low and entry[1] not in (0, FILLED):
                        entries[first + number] = entry
        return {name: entries for name, entries in found.items() if entries}


def assert_same_logs(leader: Replica, follower: Replica, begin: int, end: int) -> None:
    """The follower has every file from ``begin`` on, with the same bytes up to ``end`` and none behind."""
    theirs = {name: data for name, data in leader.log_files(end).items() if int(name) >= begin}
    copied = follower.log_files(end)
    assert list(copied) == list(theirs)
    for name, data in copied.items():
        length = min(end - int(name), len(theirs[name]))
        assert len(data) >= length, name
        same = data[:length] == theirs[name][:length]
        assert same, f"{name} differs at {first_difference(data, theirs[name])} of {length}"
        assert not any(data[length:]), f"{name} has something behind {length}"
        assert not any(theirs[name][length:]), f"the leader's {name} has something behind {length}"


def differences(one: dict[str, Any], other: dict[str, object]) -> list[tuple[str, object, object]]:
    return [
        (name, one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    ]


def first_difference(one: bytes, other: bytes) -> int | None:
    return next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
