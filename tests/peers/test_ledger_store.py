"""One directory of a DLedger member, in turns Apache's and ours; and one that began with a plain log.

Whoever opens it must find every message the other acknowledged, byte for byte, by queue, by key and by time,
and must go on counting where the other stopped: indices, terms, positions, queue offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.protocol.ledger_scan import scan_entries
from kerolox.protocol.record_scan import CHECK_BODY, Stop
from kerolox.store.log.ledger_index import INDEX_FILE_BYTES
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.verify import verify
from kerolox.store.options import StoreOptions
from tests.rig.ports import free_ports

from .conftest import Factory
from .driver import JavaDriver
from .ours import OurBroker
from .processes import JavaBroker, JavaNameServer
from .store_views import BrokerView, Queue, View, assert_same
from .store_writer import (
    BROKER_SIZES,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
)

Unique = Callable[[str], str]
KEYS_EVERY = 9
QUEUES = 3


class Turns:
    """A broker of either kind on one directory, at one address."""

    def __init__(self, java: Factory, driver: JavaDriver, namesrv: str, home: Path, name: str) -> None:
        group = {
            "enableDLegerCommitLog": True,
            "dLegerGroup": name,
            "dLegerPeers": f"n0-127.0.0.1:{free_ports(1)[0]}",
            "dLegerSelfId": "n0",
        }
        self.apaches: JavaBroker = java.broker(
            namesrv, name=name, start=False, properties=BROKER_SIZES | group
        )
        self.plain: JavaBroker = java.broker(
            namesrv, name=name, start=False, properties=BROKER_SIZES, store=self.apaches.store
        )
        self.ours = OurBroker(
            home,
            namesrv,
            name=name,
            properties=BROKER_SIZES | group | {"storePathRootDir": self.apaches.store},
        )
        self.store = self.apaches.store
        self._driver = driver
        self._namesrv = namesrv
        self.topic = ""
        self.sent = 0

    def create(self, broker: JavaBroker | OurBroker, topic: str) -> None:
        self.topic = topic
        self._driver.create_topic(self._namesrv, broker.address, topic, QUEUES)

    def send(self, broker: JavaBroker | OurBroker, group: str, count: int = 120) -> None:
        """Singles of many sizes, with keys and tags, and a batch."""
        call = self._driver.call
        producer = call("producer.start", group=group, namesrv=self._namesrv)
        bulk = {"handle": producer, "topic": self.topic}
        sent: list[dict[str, Any]] = [
            call("producer.sendMany", count=count, size=900, first=self.sent, tags=["A", "B"],
                 keyPrefix="single", threads=2, **bulk),
            call("producer.sendMany", count=24, size=150, batch=12, first=self.sent + count,
                 keyPrefix="batch", **bulk),
            call("producer.sendMany", count=3, size=90_000, first=self.sent + count + 24, keyPrefix="large",
                 **bulk),
        ]  # fmt: skip
        assert [each["failed"] for each in sent] == [0, 0, 0], sent
        self.sent += count + 27
        call("shutdown", handle=producer)

    def look(self, broker: JavaBroker | OurBroker) -> View:
        view = BrokerView(broker.address)
        queues: list[Queue] = [(self.topic, number) for number in range(QUEUES)]
        found = view.view(queues, keys_every=KEYS_EVERY, times=not self.apaches.jars.is_4x)
        assert found.count == self.sent
        return found

    def check(self) -> int:
        """Our tool finds nothing wrong; the index of the last entry."""
        options = StoreOptions(
            store_path=str(self.store), ledger=True, ledger_self_id="n0",
            commit_log_file_bytes=LOG_FILE_BYTES, queue_file_bytes=QUEUE_FILE_BYTES,
            index_slots=INDEX_SLOTS, index_entries=INDEX_ENTRIES,
        )  # fmt: skip
        # The 5.x broker tested here enters tags into the index of keys as well.
        report = verify(find_layout(self.store, options), index=False)
        assert report.clean, report.findings
        files = sorted((self.store / "dledger-n0/data").iterdir())
        after = None
        for path in files:
            found, after = scan_entries(path.read_bytes(), int(path.name), CHECK_BODY, after=after)
            assert found.stop in (Stop.BLANK, Stop.UNWRITTEN), (path, found.what)
        assert after is not None
        assert {path.stat().st_size for path in (self.store / "dledger-n0/index").iterdir()} == {
            INDEX_FILE_BYTES
        }
        return after.index


@pytest.fixture
def turns(
    java: Factory, java_driver: JavaDriver, java_nameserver: JavaNameServer, tmp_path: Path
) -> Iterator[Turns]:
    made = Turns(java, java_driver, java_nameserver.address, tmp_path / "ours", "broker-turns")
    yield made
    made.ours.finish()


def grew(before: View, after: View) -> None:
    """All that was there is there, first and unchanged."""
    for queue, records in before.records.items():
        assert after.records[queue][: len(records)] == records


def test_a_directory_born_at_apaches_member(turns: Turns, unique: Unique) -> None:
    turns.apaches.start()
    turns.create(turns.apaches, unique("t"))
    turns.send(turns.apaches, unique("pid"))
    theirs = turns.look(turns.apaches)
    turns.apaches.kill()
    assert turns.check() == theirs.count - 1

    turns.ours.start()
    assert_same(turns.look(turns.ours), theirs)
    turns.send(turns.ours, unique("pid"))
    ours = turns.look(turns.ours)
    grew(theirs, ours)
    turns.ours.kill()
    assert turns.check() == ours.count - 1

    turns.apaches.start()
    again = turns.look(turns.apaches)
    assert_same(again, ours)
    turns.send(turns.apaches, unique("pid"), 40)
    last = turns.look(turns.apaches)
    grew(ours, last)
    turns.apaches.stop()
    turns.ours.start()
    assert_same(turns.look(turns.ours), last, keys_lost=True)
    assert turns.ours.stop() == 0
    assert turns.check() == last.count - 1


def test_a_directory_born_here(turns: Turns, unique: Unique) -> None:
    turns.ours.start()
    turns.create(turns.ours, unique("t"))
    turns.send(turns.ours, unique("pid"))
    ours = turns.look(turns.ours)
    assert turns.ours.stop() == 0
    turns.apaches.start()
    assert_same(turns.look(turns.apaches), ours)
    turns.send(turns.apaches, unique("pid"), 40)
    theirs = turns.look(turns.apaches)
    grew(ours, theirs)
    turns.apaches.stop()
    assert turns.check() == theirs.count - 1
    turns.ours.start()
    assert_same(turns.look(turns.ours), theirs, keys_lost=True)


@pytest.mark.parametrize("first", ["apache", "ours"])
def test_a_plain_log_goes_on_in_a_group(turns: Turns, unique: Unique, first: str) -> None:
    """Born plain at Apache's; taken into the group of one by either, then opened by the other."""
    turns.plain.start()
    turns.create(turns.plain, unique("t"))
    turns.send(turns.plain, unique("pid"))
    plain = turns.look(turns.plain)
    turns.plain.stop()
    one: JavaBroker | OurBroker = turns.apaches if first == "apache" else turns.ours
    other: JavaBroker | OurBroker = turns.ours if first == "apache" else turns.apaches
    one.start()
    assert_same(turns.look(one), plain, keys_lost=True)
    turns.send(one, unique("pid"), 40)
    mixed = turns.look(one)
    grew(plain, mixed)
    one.stop()
    assert turns.check() == mixed.count - plain.count - 1
    divided = min(int(path.name) for path in (turns.store / "dledger-n0/data").iterdir())
    assert divided == (max(int(path.name) for path in (turns.store / "commitlog").iterdir())) + LOG_FILE_BYTES
    other.start()
    assert_same(turns.look(other), mixed, keys_lost=True)
    turns.send(other, unique("pid"), 10)
    last = turns.look(other)
    grew(mixed, last)
    other.stop()
    assert turns.check() == last.count - plain.count - 1
