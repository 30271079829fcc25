"""Queue extensions and filter bits: files of one store, in turns Apache's and ours."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from kerolox.protocol.codes import RequestCode
from kerolox.protocol.filters.bloom import BloomFilter
from kerolox.protocol.subscription import tag_hash
from kerolox.store.message_store import MessageStore
from kerolox.store.options import StoreOptions
from kerolox.store.queue.extended_queue import ExtendedQueue
from kerolox.store.queue.extension import Unit

from .conftest import Factory
from .driver import JavaDriver
from .ours import OurBroker
from .processes import JavaBroker, JavaNameServer
from .wire import request

Unique = Callable[[str], str]

FILE_BYTES = 4096  # of the extension: each holds about a hundred units
SIZES = {
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20 * 3000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}
EXTENDED = {
    **SIZES,
    "enablePropertyFilter": True,
    "enableConsumeQueueExt": True,
    "enableCalcFilterBitMap": True,
    "mappedFileSizeConsumeQueueExt": FILE_BYTES,
}
COUNT = 150


class Turns:
    """Two brokers of one name on one directory, of which one runs at a time."""

    def __init__(self, java: Factory, driver: JavaDriver, namesrv: str, home: Path, unique: Unique) -> None:
        name = unique("turns")
        self.apache: JavaBroker = java.broker(namesrv, name=name, properties=EXTENDED, start=False)
        ours = {**EXTENDED, "storePathRootDir": self.apache.store}
        self.ours = OurBroker(home, namesrv, name=name, properties=ours)
        self.driver = driver
        self.namesrv = namesrv
        self.topic = unique("topic")
        self.sent = 0

    def push(self, group: str, expression: str, kind: str = "SQL92") -> str:
        subscription = {"topic": self.topic, "expression": expression, "type": kind}
        options = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
        handle = self.driver.call(
            "push.start", group=group, namesrv=self.namesrv, subscriptions=[subscription], options=options
        )
        return str(handle)

    def send(self, group: str) -> None:
        producer = self.driver.call("producer.start", group=group, namesrv=self.namesrv)
        for number in range(self.sent, self.sent + COUNT):
            message = {
                "topic": self.topic, "text": str(number), "tags": f"t{number % 3}",
                "properties": {"n": str(number % 10), "i": str(number)},
            }  # fmt: skip
            self.driver.call("producer.send", handle=producer, message=message)
        self.sent += COUNT
        self.driver.call("shutdown", handle=producer)

    def take(self, handle: str, count: int) -> list[int]:
        seen = self.driver.call("push.waitCount", handle=handle, count=count, timeoutMs=30_000)
        assert seen["reached"], seen
        records = self.driver.call("push.drain", handle=handle)
        return sorted(int(record["properties"]["i"]) for record in records)

    def shown(self, address: str, group: str) -> str:
        wanted = ["-t", self.topic, "-q", "0", "-i", "0", "-c", "1000", "-b", address, "-g", group]
        return self.driver.mqadmin("queryCq", "-n", self.namesrv, *wanted)


async def units_of(root: Path, topic: str) -> list[Unit]:
    """What our store finds in a directory."""
    options = StoreOptions(
        store_path=str(root),
        commit_log_file_bytes=SIZES["mappedFileSizeCommitLog"],
        queue_file_bytes=SIZES["mappedFileSizeConsumeQueue"],
        index_slots=SIZES["maxHashSlotNum"],
        index_entries=SIZES["maxIndexNum"],
        queue_extension=True,
        queue_extension_file_bytes=FILE_BYTES,
        disk_free_enough=64 << 20,
    )
    async with MessageStore(options) as store:
        queue = store.queues.find(topic, 0)
        assert isinstance(queue, ExtendedQueue)
        entries, found = await store.queues.entries(queue, 0, queue.next_offset)
        return [found[code] for _, _, code in entries]


def wait_known(address: str, group: str) -> None:
    """Until the broker has heard what the group wants."""
    deadline_s = time.monotonic() + 30.0
    asked = {"consumerGroup": group}
    while b"n > 7" not in request(address, RequestCode.GET_CONSUMER_CONNECTION_LIST, asked).body:
        assert time.monotonic() < deadline_s, f"{group} is not known at {address}"
        time.sleep(0.05)


def check_units(units: list[Unit], group: str, topic: str, takes: Callable[[int], bool]) -> None:
    bloom = BloomFilter(20, 32)
    wanted = bloom.with_bits(bloom.places_of(f"{group}#{topic}"))
    for number, unit in enumerate(units):
        assert unit.tags_code == tag_hash(f"t{number % 3}")
        assert len(unit.bits) == 14
        if takes(number):
            assert int.from_bytes(unit.bits, "little") & wanted == wanted, number
        else:
            assert not any(unit.bits), number
    assert [unit.stored_ms for unit in units] == sorted(unit.stored_ms for unit in units)


def test_extensions_in_turns(
    java: Factory, java_driver: JavaDriver, java_nameserver: JavaNameServer, tmp_path: Path, unique: Unique
) -> None:
    turns = Turns(java, java_driver, java_nameserver.address, tmp_path / "ours", unique)
    group, pid = unique("sql"), unique("pid")

    def takes(number: int) -> bool:
        return number % 10 > 7

    def wanted(upto: int) -> list[int]:
        return [number for number in range(upto) if takes(number)]

    def one_turn(broker: JavaBroker | OurBroker) -> None:
        """The group comes back, messages are sent, and it gets what it takes of the new ones."""
        before = turns.sent
        consumer = turns.push(group, "n > 7")
        wait_known(broker.address, group)  # what comes before the group's heartbeat gets no bits for it
        turns.send(pid)
        new = [number for number in wanted(turns.sent) if number >= before]
        assert turns.take(consumer, len(new)) == new
        shown = turns.shown(broker.address, group)
        assert "Cq extend not exist" not in shown
        assert len(re.findall("msgStoreTime", shown)) == turns.sent
        # Groups that were not there find everything, whoever wrote it.
        late = turns.push(unique("late"), "n > 7")
        tagged = turns.push(unique("tag"), "t1", "TAG")
        assert turns.take(late, len(wanted(turns.sent))) == wanted(turns.sent)
        third = list(range(1, turns.sent, 3))
        assert turns.take(tagged, len(third)) == third
        for handle in (consumer, late, tagged):
            java_driver.call("shutdown", handle=handle)

    turns.apache.start()
    java_driver.create_topic(turns.namesrv, turns.apache.address, turns.topic, 1)
    one_turn(turns.apache)
    turns.apache.stop()
    copy = tmp_path / "copy"
    shutil.copytree(turns.apache.store, copy)
    check_units(asyncio.run(units_of(copy, turns.topic)), group, turns.topic, takes)

    turns.ours.start()
    one_turn(turns.ours)
    turns.ours.stop()

    turns.apache.start()
    one_turn(turns.apache)
    turns.apache.stop()
    units = asyncio.run(units_of(turns.apache.store, turns.topic))
    assert [unit.tags_code for unit in units] == [tag_hash(f"t{number % 3}") for number in range(turns.sent)]
