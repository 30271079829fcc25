"""Progress of broadcasting consumers: a file for each cluster, and no offset that its queue cannot have."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kerolox import Message, Producer, PushConsumer, PushOptions, Received
from kerolox.client.consume.offset_files import FIRST, FileOffsets, encode_offsets, file_of_cluster
from kerolox.client.messages import Queue
from kerolox.errors import KeroloxError
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import create, wait_for

QUEUE = Queue("orders", "broker-a", 0)


class Ends:
    """Brokers whose queues end here."""

    def __init__(self, end: int) -> None:
        self.end = end

    async def max_offset(self, queue: Queue) -> int:
        return self.end


Offsets = Callable[..., FileOffsets]


@pytest.fixture
def offsets(tmp_path: Path) -> Iterator[Offsets]:
    made = []

    def make(*nameservers: str, end: int = 100) -> FileOffsets:
        calls = Ends(end)
        one = FileOffsets(calls, "host@DEFAULT", "watchers", nameservers, str(tmp_path))  # type: ignore[arg-type]
        made.append(one)
        return one

    yield make
    for each in made:
        each.close()


async def test_each_cluster_has_a_file(offsets: Offsets) -> None:
    first = offsets("a:9876", "b:9876")
    assert await first.save({QUEUE: 7}) == {}
    first.close()
    other = offsets("z:9876")
    assert await other.load(QUEUE) is None
    await other.save({QUEUE: 3})
    other.close()
    assert (first.path.name, other.path.name) == (FIRST, "offsets-2.json")
    # A name server replaced another one.
    again = offsets("b:9876", "c:9876")
    assert await again.load(QUEUE) == 7
    again.close()
    assert await offsets("c:9876").load(QUEUE) == 7


async def test_the_file_of_rocketmq_is_taken_over_by_the_first_cluster(
    tmp_path: Path, offsets: Offsets
) -> None:
    file = tmp_path / "host@DEFAULT" / "watchers" / FIRST
    file.parent.mkdir(parents=True)
    file.write_bytes(encode_offsets({QUEUE: 9}))
    assert await offsets("a:9876").load(QUEUE) == 9
    assert await offsets("z:9876").load(QUEUE) is None


async def test_an_offset_behind_the_end_of_the_queue_is_refused(
    offsets: Offsets, caplog: pytest.LogCaptureFixture
) -> None:
    before = offsets("a:9876")
    await before.save({QUEUE: 9})
    before.close()
    here = offsets("a:9876", end=9)
    assert await here.load(QUEUE) == 9
    here.close()
    with caplog.at_level(logging.WARNING):
        assert await offsets("a:9876", end=8).load(QUEUE) is None
    assert "offset_refused" in caplog.text


async def test_two_consumers_that_share_a_file_are_told(
    offsets: Offsets, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = offsets("a:9876"), offsets("a:9876")
    await one.load(QUEUE)
    with caplog.at_level(logging.WARNING):
        await two.load(QUEUE)
    assert "offsets_shared" in caplog.text
    assert "instance=" in caplog.text
    one.close()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await offsets("a:9876").load(QUEUE)
    assert "offsets_shared" not in caplog.text


async def test_a_damaged_table_of_clusters_is_an_error(tmp_path: Path, offsets: Offsets) -> None:
    folder = tmp_path / "host@DEFAULT" / "watchers"
    folder.mkdir(parents=True)
    for text in ("{", "[1]", json.dumps({FIRST: 5})):
        (folder / "clusters.json").write_text(text)
        with pytest.raises(KeroloxError, match=r"clusters\.json cannot be read"):
            await offsets("a:9876").load(QUEUE)


def test_the_file_of_a_cluster() -> None:
    clusters = {FIRST: ["a"], "offsets-2.json": ["b", "c"]}
    assert file_of_cluster(clusters, frozenset("c")) == ("offsets-2.json", False)
    assert file_of_cluster(clusters, frozenset("d")) == ("offsets-3.json", True)
    assert file_of_cluster({}, frozenset("d")) == (FIRST, True)


async def seen_of(running: RunningBroker, count: int) -> list[str]:
    """Send some, and consume them by broadcasting, in the group that all clusters have."""
    seen: list[str] = []

    async def handle(message: Received) -> None:
        seen.append(message.text)

    await create(running, "orders", 1)
    options = PushOptions(start="first", broadcasting=True)
    async with (
        Producer(running.nameserver_address, group="shop") as producer,
        PushConsumer(running.nameserver_address, group="watchers", options=options) as consumer,
    ):
        consumer.subscribe("orders", handle)
        await producer.send_batch([Message("orders", str(number)) for number in range(count)])
        await wait_for(lambda: len(seen) == count)
    return seen


async def test_a_new_broker_delivers_all_to_a_group_that_broadcast_elsewhere() -> None:
    for count in (12, 6):
        async with running_broker() as running:
            assert await seen_of(running, count) == [str(number) for number in range(count)]
