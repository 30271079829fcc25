"""One store directory, in turns Apache's and ours: after clean stops and after kills.

Whoever opens the directory must find every message the other acknowledged, byte for byte, by queue, by key
and by time, and must go on counting where the other stopped.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kerolox.protocol import properties as names
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_record
from kerolox.protocol.record_scan import PROPERTIES, TOPIC, Entry
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.disk.files import Files
from kerolox.store.index.index_file import ENTRY, HEADER
from kerolox.store.index.key_index import hash_key
from kerolox.store.message_store import MessageStore
from kerolox.store.recovery import Recovered
from kerolox.store.tables.topics import TopicTable

from .conftest import Factory
from .driver import JavaDriver
from .processes import JavaBroker, JavaNameServer
from .store_views import BrokerView, Queue, View, assert_same, keys_of, view_of_store
from .store_writer import (
    BROKER_SIZES,
    HALF_TOPIC,
    INDEX_SLOTS,
    LAST_LEVEL,
    Acknowledged,
    Plan,
    store_options,
    table_of,
    text_of,
    write,
)

Unique = Callable[[str], str]
KEYS_EVERY = 6  # looking up every message by key would take most of the time here


class Peer:
    """Apache's broker on a directory, with what a test asks of it."""

    def __init__(self, java: Factory, driver: JavaDriver, namesrv: str, name: str) -> None:
        properties = BROKER_SIZES | {
            "autoCreateTopicEnable": False,
            # An unfinished transaction is to stay one.
            "transactionCheckInterval": 3_600_000,
            "transactionTimeOut": 3_600_000,
        }
        self.broker: JavaBroker = java.broker(namesrv, name=name, properties=properties, start=False)
        self.driver = driver
        self.namesrv = namesrv
        self.view = BrokerView(self.broker.address)
        self.sent: dict[str, Any] = {}  # offset id of each message sent: its answer

    @property
    def system(self) -> list[Queue]:
        """Queues of the broker's own that hold one message of each writer: delayed, and half."""
        # 4.x lets nobody pull half messages until it has looked for unfinished transactions.
        halves = [] if self.broker.jars.is_4x else [(HALF_TOPIC, 0)]
        return [(SCHEDULE_TOPIC, LAST_LEVEL - 1), *halves]

    def queues(self, topics: tuple[tuple[str, int], ...]) -> list[Queue]:
        return [(topic, queue_id) for topic, count in topics for queue_id in range(count)] + self.system

    @property
    def store(self) -> Path:
        return self.broker.store

    def look(self, queues: list[Queue]) -> View:
        # 4.x looks for a time in another way: by the age of files, then for the nearest.
        return self.view.view(queues, keys_every=KEYS_EVERY, times=not self.broker.jars.is_4x)

    def send(self, topics: tuple[tuple[str, int], ...], group: str, first: int, count: int) -> int:
        """Singles and batches, small and compressed, delayed, timed, and half a transaction; how many
        of them went into the queues of the topics themselves."""
        call = self.driver.call
        producer = call("producer.start", group=group, namesrv=self.namesrv)
        bulk = {"handle": producer, "first": first, "ids": True, "properties": {"colour": "röt"}}
        (topic, _), (other, _) = topics
        done = [
            call("producer.sendMany", topic=topic, count=count, size=900, tags=["A", "B", "Ünï"],
                 keyPrefix="single", threads=2, **bulk),
            call("producer.sendMany", topic=other, count=60, size=120, batch=12, keyPrefix="batch", **bulk),
            call("producer.sendMany", topic=topic, count=4, size=9000, keyPrefix="large", **bulk),
        ]  # fmt: skip
        assert [each["failed"] for each in done] == [0, 0, 0], done
        for each in done:
            for number, unique, ids, place, offset in each["ids"]:
                for step, (one, its_id) in enumerate(zip(unique.split(","), ids.split(","), strict=True)):
                    self.sent[its_id] = (one, number + step, int(place.rpartition("/")[2]), offset + step)
        late = {
            "topic": topic,
            "text": "in two hours",
            "keys": ["late", f"late{first}"],
            "delayLevel": LAST_LEVEL,
        }
        assert call("producer.send", handle=producer, message=late)["status"] == "SEND_OK"
        if not self.broker.jars.is_4x:
            timed = {"topic": topic, "text": "in an hour", "options": {"delayTimeSec": 3600}}
            assert call("producer.send", handle=producer, message=timed)["status"] == "SEND_OK"
        open_end = {"local": "UNKNOW", "check": "UNKNOW"}
        in_two = call("producer.start", group=group + "t", namesrv=self.namesrv, transaction=open_end)
        half = {"topic": topic, "text": "half", "keys": f"half{first}"}
        assert call("producer.sendTransaction", handle=in_two, message=half)["localState"] == "UNKNOW"
        for handle in (producer, in_two):
            call("shutdown", handle=handle)
        return count + 60 + 4

    def consume(self, topics: tuple[tuple[str, int], ...], group: str, count: int) -> list[dict[str, Any]]:
        """Everything in the topics, as Apache's consumer sees it."""
        call = self.driver.call
        handle = call(
            "push.start",
            group=group,
            namesrv=self.namesrv,
            subscriptions=[{"topic": topic, "expression": "*"} for topic, _ in topics],
            options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
            body=True,
        )
        waited = call("push.waitCount", handle=handle, count=count, timeoutMs=30_000)
        assert waited["count"] == waited["distinct"] == count, waited
        got: list[dict[str, Any]] = call("push.drain", handle=handle)
        call("shutdown", handle=handle)
        return got


async def ours(root: Path, theirs: View, *, keys_lost: bool = False) -> Recovered:
    """Our store on the directory holds what the broker said it holds."""
    async with MessageStore(store_options(root)) as store:
        assert_same(await view_of_store(store, theirs), theirs, keys_lost=keys_lost)
        for (topic, queue_id), (_, end) in theirs.bounds.items():
            assert store.log.cursor(topic, queue_id).next_offset == end
        assert store.recovered is not None
        return store.recovered


async def check_rebuilt(theirs: Path, copy: Path, *, with_tags: bool) -> None:
    """Queues and index made by us from Apache's log are, byte for byte, the ones its broker made."""
    shutil.copytree(theirs, copy, ignore=shutil.ignore_patterns("consumequeue", "index", "timer*"))
    async with MessageStore(store_options(copy)) as store:
        log = [entry for entries, _ in store.log.entries_from(0, store.log.max_offset) for entry in entries]
    compare_derived(theirs, copy, log, with_tags=with_tags)


def compare_derived(theirs: Path, copy: Path, log: list[Entry], *, with_tags: bool) -> None:
    queue_files = {path.relative_to(theirs) for path in theirs.glob("consumequeue/*/*/*")}
    assert queue_files == {path.relative_to(copy) for path in copy.glob("consumequeue/*/*/*")}
    assert any(SCHEDULE_TOPIC in path.parts for path in queue_files)
    for path in queue_files:
        assert (copy / path).read_bytes() == (theirs / path).read_bytes(), path
    their_index, our_index = (next((root / "index").iterdir()).read_bytes() for root in (theirs, copy))
    if not with_tags:
        assert our_index == their_index
        return
    # The 5.x broker tested here enters tags as well, under topic#T#tag; what was entered of keys is equal.
    tags = set()
    for entry in log:
        if tag := names.find(entry[PROPERTIES], names.AT_TAGS):
            tags.add(hash_key(entry[TOPIC].decode(), f"T#{tag.decode()}"))
    assert tags
    assert index_entries(our_index, tags) == index_entries(their_index, tags)


def index_entries(data: bytes, leave_out: set[int]) -> list[tuple[int, int, int]]:
    """Hash, physical offset and seconds of every entry of an index file."""
    count = HEADER.unpack_from(data)[5]
    first = HEADER.size + INDEX_SLOTS * 4
    entries = [ENTRY.unpack_from(data, first + number * ENTRY.size) for number in range(1, count)]
    return [entry[:3] for entry in entries if entry[0] not in leave_out]


def within(acknowledged: list[Acknowledged], queues: list[Queue]) -> list[Acknowledged]:
    return [one for one in acknowledged if (one.topic, one.queue_id) in queues]


def decoded(view: View) -> dict[Queue, list[StoredMessage]]:
    return {queue: [decode_record(record) for record in records] for queue, records in view.records.items()}


def check_counting(view: View) -> None:
    """Offsets in the records are where the queue has them, without a gap."""
    for queue, messages in decoded(view).items():
        assert view.bounds[queue][0] == 0
        assert [message.queue_offset for message in messages] == list(range(view.bounds[queue][1])), queue


def check_goes_on(view: View, acknowledged: list[Acknowledged]) -> None:
    """Our first message of each queue got the offset behind Apache's last one."""
    first: dict[Queue, int] = {}
    for one in acknowledged:
        first.setdefault((one.topic, one.queue_id), one.queue_offset)
    for queue in first.keys() & view.bounds.keys():
        assert first[queue] == view.bounds[queue][1], queue


def check_ours(view: View, acknowledged: list[Acknowledged]) -> None:
    """What our writer was told is stored is there, as Apache's broker has it, also by each key."""
    messages = decoded(view)
    looked_up = 0
    for one in acknowledged:
        message = messages[one.topic, one.queue_id][one.queue_offset]
        assert message.physical_offset == one.physical
        assert table_of(one.number).items() <= message.properties.items()
        assert message.flag == one.number % 1000
        assert message.plain_body().decode() == text_of(one.number)
        record = view.records[one.topic, one.queue_id][one.queue_offset]
        for key in keys_of(record):
            found = view.by_key.get((one.topic, key))
            assert found is None or record in found, (one, key)
            looked_up += found is not None
    assert looked_up >= len(acknowledged) // KEYS_EVERY


def check_consumed(got: list[dict[str, Any]], acknowledged: list[Acknowledged]) -> None:
    """The consumer had each of our messages, unpacked, with its tag, keys and properties."""
    by_place = {(m["topic"], m["queueId"], m["queueOffset"]): m for m in got}
    for one in acknowledged:
        if one.topic in (SCHEDULE_TOPIC, HALF_TOPIC):
            continue
        message = by_place[one.topic, one.queue_id, one.queue_offset]
        table = table_of(one.number)
        assert base64.b64decode(message["body"]).decode() == text_of(one.number)
        assert (message["tags"], message["keys"]) == (table.get("TAGS"), table.get("KEYS"))
        assert message["msgId"] == table["UNIQ_KEY"]
        assert table.items() <= message["properties"].items()


def check_sent(view: View, peer: Peer) -> None:
    """What Apache's producer was told about ids, queues and offsets is what the records say."""
    told = {}
    for queue, messages in decoded(view).items():
        for message in messages:
            told[message.offset_id] = (
                message.properties.get("UNIQ_KEY"), queue[1], message.queue_offset, message.body,
            )  # fmt: skip
    for offset_id, (unique, number, queue_id, offset) in peer.sent.items():
        assert told[offset_id][:3] == (unique, queue_id, offset)
        if len(told[offset_id][3]) in (900, 120):  # the large ones are compressed
            assert told[offset_id][3].startswith(f"{number}.".encode())


@pytest.fixture
def topics(unique: Unique) -> tuple[tuple[str, int], ...]:
    return ((unique("a"), 3), (unique("b"), 2))


async def test_born_at_apaches(
    java: Factory,
    tmp_path: Path,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    topics: tuple[tuple[str, int], ...],
    unique: Unique,
) -> None:
    peer = Peer(java, java_driver, java_nameserver.address, "broker-born")
    queues = peer.queues(topics)
    system = len(peer.system)
    peer.broker.start()
    for topic, count in topics:
        java_driver.create_topic(peer.namesrv, peer.broker.address, topic, count)
    sent = peer.send(topics, unique("pid"), 0, 240)
    view = peer.look(queues)
    assert view.count == sent + system
    assert len(list((peer.store / "commitlog").iterdir())) >= 2, "the log was to roll"
    peer.broker.kill()

    await check_rebuilt(peer.store, tmp_path / "rebuilt", with_tags=not peer.broker.jars.is_4x)
    found = await ours(peer.store, view)
    assert found.crashed
    check_counting(view)
    check_sent(view, peer)

    plan = Plan(str(peer.store), peer.broker.address, topics, first=1000)
    acknowledged = within(write(plan, kill=True), queues)
    check_goes_on(view, acknowledged)

    peer.broker.start()
    again = peer.look(queues)
    assert again.count == view.count + len(acknowledged)
    for queue, records in view.records.items():
        assert again.records[queue][: len(records)] == records
    check_counting(again)
    check_ours(again, acknowledged)
    got = peer.consume(topics, unique("group"), again.count - 2 * system)
    check_consumed(got, acknowledged)
    more = peer.send(topics, unique("pid"), 500, 60)
    last = peer.look(queues)
    assert last.count == again.count + more + system
    peer.broker.stop()

    found = await ours(peer.store, last, keys_lost=True)
    assert not found.crashed
    check_counting(last)
    check_sent(last, peer)


async def test_born_here(
    java: Factory,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    topics: tuple[tuple[str, int], ...],
    unique: Unique,
) -> None:
    peer = Peer(java, java_driver, java_nameserver.address, "broker-here")
    queues = peer.queues(topics)
    system = len(peer.system)
    (peer.store / "config").mkdir(parents=True)
    table = TopicTable(Files(), peer.store / "config")
    for topic, count in topics:
        table.put(TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count))
    table.save()
    plan = Plan(str(peer.store), peer.broker.address, topics, count=300)
    first = within(write(plan, kill=False), queues)
    assert not (peer.store / "abort").exists()
    assert len(list((peer.store / "commitlog").iterdir())) >= 2, "the log was to roll"

    peer.broker.start()
    view = peer.look(queues)
    assert view.count == len(first)
    check_counting(view)
    check_ours(view, first)
    got = peer.consume(topics, unique("group"), len(first) - system)
    check_consumed(got, first)
    by_id = java_driver.call(
        "query.byId",
        namesrv=peer.namesrv,
        topic=first[0].topic,
        msgId=decode_record(view.records[first[0].topic, first[0].queue_id][0]).offset_id,
    )
    assert base64.b64decode(by_id["body"]).decode() == text_of(first[0].number)
    key = table_of(first[1].number)["KEYS"].split()[0]
    printed = java_driver.mqadmin("queryMsgByKey", "-n", peer.namesrv, "-t", first[1].topic, "-k", key)
    assert table_of(first[1].number)["UNIQ_KEY"] in printed
    sent = peer.send(topics, unique("pid"), 0, 120)
    view = peer.look(queues)
    assert view.count == len(first) + sent + system
    peer.broker.kill()

    found = await ours(peer.store, view)
    assert found.crashed
    check_counting(view)
    check_sent(view, peer)
    plan = Plan(str(peer.store), peer.broker.address, topics, first=1000, count=60, soon=1)
    second = within(write(plan, kill=True), queues)
    check_goes_on(view, second)
    soon = (topics[0][0], 0)
    before = view.bounds[soon][1] + sum((one.topic, one.queue_id) == soon for one in second)

    peer.broker.start()
    # Apache's broker delivers the delayed message we stored.
    peer.view.wait_max(soon, before + 1)
    last = peer.look(queues)
    assert last.count == view.count + len(second) + 1
    check_counting(last)
    check_ours(last, second)
    delivered = decode_record(last.records[soon][before])
    assert delivered.body.decode() == text_of(plan.first + plan.count)
    peer.broker.kill()
    assert (await ours(peer.store, last, keys_lost=True)).crashed
