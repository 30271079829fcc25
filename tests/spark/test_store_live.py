"""Stores of our own broker, while it runs."""

from __future__ import annotations

import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox.blocking import Message, Producer, PullConsumer, Queue, Received
from kerolox.protocol.flags import COMPRESSED
from kerolox.testing.threads import BrokerThread, broker_in_thread
from tests.spark.test_store_reading import report, rows, table

QUEUES_MS = 20
COLUMNS = (
    "broker", "queue_id", "queue_offset", "physical_offset", "msg_id", "offset_msg_id", "keys", "tags",
    "body", "properties", "reconsume_times", "flag",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(place: Path) -> Iterator[BrokerThread]:
    with broker_in_thread(
        2, directory=place, commit_log_file_bytes=1 << 20, queue_flush_interval_ms=QUEUES_MS
    ) as running:
        yield running


def receive(cluster: BrokerThread, topic: str, count: int) -> list[Received]:
    found: list[Received] = []
    with PullConsumer(cluster.nameserver_address, group=f"{topic}-readers") as consumer:
        consumer.assign(consumer.queues(topic))
        consumer.seek_all("begin")
        while len(found) < count:
            batch = consumer.poll(10)
            assert batch is not None, f"{len(found)} of {count} came"
            found += batch
    return found


def wait_for_rows(path: str, count: int, **options: str) -> None:
    """Until the broker has written its queues."""
    end = time.monotonic() + 20
    while len(found := rows(path, **options)) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} rows"
        time.sleep(QUEUES_MS / 1000)


def test_rows_are_what_a_consumer_gets(cluster: BrokerThread, place: Path) -> None:
    cluster.create_topic("kinds", queues=3)
    with Producer(cluster.nameserver_address, group="p") as producer:
        for number in range(60):
            producer.send(
                Message(
                    topic="kinds", body=bytes([number]) * (number * 300 + 1), tags="ab"[number % 2],
                    keys=[f"k{number}", "all"], properties={"n": str(number), "größe": "ü"}, flag=number,
                )
            )  # fmt: skip
        producer.send_batch(
            [Message(topic="kinds", body=f"batch {n}".encode(), keys=f"b{n}") for n in range(40)]
        )
    received = receive(cluster, "kinds", 100)
    path = f"{place}/broker-*/store"
    wait_for_rows(path, 100, topic="kinds")
    flags = table(path, ("sys_flag",), topic="kinds").column(0).to_pylist()
    assert {flag & COMPRESSED for flag in flags} == {0, COMPRESSED}

    def key(row: tuple[object, ...]) -> tuple[str, ...]:
        return tuple(map(str, row[:3]))

    wanted = sorted(
        (
            (
                message.broker, message.queue_id, message.queue_offset, message.physical_offset,
                message.msg_id, message.offset_msg_id,
                message.properties.get("KEYS"), message.properties.get("TAGS"),
                zlib.crc32(message.body), message.properties, message.reconsume_times, message.flag,
            )
            for message in received
        ),
        key=key,
    )  # fmt: skip
    for way in ("queues", "log"):
        for pieces in ("1", "5"):
            found = table(
                path, COLUMNS, **{"from": way}, topic="kinds", minPartitions=pieces, verifyCrc="true"
            )
            got = [
                tuple(
                    zlib.crc32(value) if name == "body" else dict(value) if name == "properties" else value
                    for name, value in row.items()
                )
                for row in found.to_pylist()
            ]
            assert sorted(got, key=key) == wanted


def test_delays_and_transactions_are_in_the_log(cluster: BrokerThread, place: Path) -> None:
    cluster.create_topic("waiting", queues=1)
    with Producer(cluster.nameserver_address, group="p2") as producer:
        producer.send(Message(topic="waiting", body=b"later", delay_level=18))
        with producer.transaction(Message(topic="waiting", body=b"half")) as transaction:
            transaction.commit()
    path = f"{place}/broker-*/store"
    wait_for_rows(path, 1, topic="waiting")
    wait_for_rows(path, 1, topic="SCHEDULE_TOPIC_XXXX")
    assert [body for _, body in rows(path, topic="waiting")] == [b"half"]
    found = table(path, ("queue_id", "body", "properties"), topic="SCHEDULE_TOPIC_XXXX").to_pylist()
    assert [(row["queue_id"], row["body"]) for row in found] == [(17, b"later")]
    assert dict(found[0]["properties"])["REAL_TOPIC"] == "waiting"
    log = table(path, ("topic", "body"), **{"from": "log"}).to_pylist()
    topics = {row["topic"] for row in log if row["body"] in (b"later", b"half")}
    assert topics == {"waiting", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"}


def test_a_store_that_grows_while_it_is_read(cluster: BrokerThread, place: Path) -> None:
    cluster.create_topic("growing", queues=2)
    stop = threading.Event()
    sent = [0]

    def send() -> None:
        with Producer(cluster.nameserver_address, group="p3") as producer:
            while not stop.is_set():
                messages = [
                    Message(topic="growing", body=b"%d " % number * (number % 400 + 1))
                    for number in range(sent[0], sent[0] + 40)
                ]
                producer.send_many(messages)
                sent[0] += len(messages)

    thread = threading.Thread(target=send)
    thread.start()
    path = f"{place}/broker-*/store"
    try:
        seen = 0
        while seen < 2000:
            assert thread.is_alive()
            before = sent[0]
            for way in ("log", "queues"):
                found = table(
                    path, ("broker", "queue_id", "queue_offset"), **{"from": way}, topic="growing",
                    minPartitions="3", verifyCrc="true",
                ).to_pylist() if before else []  # fmt: skip
                queues = defaultdict(list)
                for row in found:
                    queues[row["broker"], row["queue_id"]].append(row["queue_offset"])
                for offsets in queues.values():
                    assert offsets == list(range(len(offsets)))
                if way == "log":
                    assert len(found) >= before
                seen = max(seen, len(found))
    finally:
        stop.set()
        thread.join()
    assert report(path) == report(path, **{"from": "log"}) == []
    wait_for_rows(path, sent[0], topic="growing")


def test_nothing_is_written(cluster: BrokerThread, place: Path) -> None:
    cluster.create_topic("untouched", queues=1)
    with Producer(cluster.nameserver_address, group="p") as producer:
        sent = [Message(topic="untouched", body=f"{number}") for number in range(120)]
        producer.send_batch(sent, queue=Queue("untouched", "broker-a", 0))
    cluster.stop(0)
    root = place / "broker-a" / "store"
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for path in sorted(before):
        path.chmod(0o555 if path.is_dir() else 0o444)
    for way in ("queues", "log"):
        assert len(rows(str(root), topic="untouched", **{"from": way})) == 120
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    for path in sorted(before):
        path.chmod(0o755 if path.is_dir() else 0o644)
    cluster.start(0)
