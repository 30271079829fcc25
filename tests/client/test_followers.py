"""Consumers and followers: read from them by choice, or because the leader is gone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from kerolox import (
    Message,
    Producer,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    Queue,
    Received,
    SocketCluster,
    blocking,
)
from kerolox.client.calls.readers import LEADER_ALONE
from kerolox.client.errors import BrokerNotRegistered, FollowerLacks
from kerolox.errors import OptionError
from kerolox.testing import RunningBroker, RunningCluster, broker_in_thread, running_cluster
from tests.client.kit import wait_for

QUEUES = 2


def count_served(running: RunningBroker) -> Counter[str]:
    """How many messages a broker gives, by group, from now on."""
    served: Counter[str] = Counter()

    def note(group: str, topic: str, queue_id: int, count: int, size: int, behind: int) -> None:
        served[group] += count

    running.broker.consuming.reads.on_served.append(note)
    return served


async def send(cluster: RunningCluster, start: int, count: int) -> None:
    async with Producer(cluster.nameserver_address, group="p") as producer:
        receipts = await producer.send_many(
            [Message("T", b"%d" % number) for number in range(start, start + count)]
        )
    assert all(receipt.ok for receipt in receipts)


def progress(running: RunningBroker, group: str) -> int:
    """How far a group is in all queues together, by what a broker has been told."""
    return sum(running.broker.tables.offsets.queues("T", group).values())


class Seen(Counter[int]):
    """What a handler got, and how often."""

    def __init__(
        self, consumer: PushConsumer, *, gate: asyncio.Event | None = None, open_until: int = 0
    ) -> None:
        super().__init__()

        @consumer.on("T")
        async def take(message: Received) -> None:
            if gate is not None and len(self) >= open_until:
                await gate.wait()
            self[int(message.body)] += 1


async def test_it_is_read_from_the_follower(tmp_path: Path) -> None:
    async with running_cluster(1, followers=1, directory=tmp_path, sync=True) as cluster:
        await cluster.create_topic("T", queues=QUEUES)
        await send(cluster, 0, 100)
        await cluster.caught_up()
        leader, follower = cluster.leaders["broker-a"], cluster.followers("broker-a")[1]
        by_leader, by_follower = count_served(leader), count_served(follower)
        options = PullOptions(start="first", read_from="follower")
        async with PullConsumer(
            cluster.nameserver_address, group="g", topics=["T"], options=options
        ) as consumer:
            got: Counter[bytes] = Counter()
            while sum(got.values()) < 100:
                batch = await consumer.poll(20)
                assert batch is not None
                got.update(message.body for message in batch)
            await send(cluster, 100, 10)  # at the end of the queue the follower is asked again and again
            while sum(got.values()) < 110:
                batch = await consumer.poll(20)
                assert batch is not None
                got.update(message.body for message in batch)
            await consumer.commit()
            # Progress is the leader's to keep.
            assert progress(leader, "g") == 110
        assert got == Counter({b"%d" % number: 1 for number in range(110)})
        assert by_follower["g"] == 110
        assert by_leader["g"] == 0


async def test_a_follower_that_may_not_be_read_sends_to_the_leader(tmp_path: Path) -> None:
    async with running_cluster(1, followers=1, directory=tmp_path, slaveReadEnable=False) as cluster:
        await cluster.create_topic("T", queues=QUEUES)
        await send(cluster, 0, 20)
        await cluster.caught_up()
        by_leader = count_served(cluster.leaders["broker-a"])
        consumer = PushConsumer(
            cluster.nameserver_address,
            group="g",
            options=PushOptions(start="first", read_from="follower", error_pause_s=0.05),
        )
        seen = Seen(consumer)
        async with consumer:
            await wait_for(lambda: len(seen) == 20, 20)
        assert by_leader["g"] == 20


async def test_without_followers_the_leader_is_read(tmp_path: Path) -> None:
    async with running_cluster(1, directory=tmp_path) as cluster:
        await cluster.create_topic("T", queues=QUEUES)
        await send(cluster, 0, 20)
        consumer = PushConsumer(
            cluster.nameserver_address,
            group="g",
            options=PushOptions(start="first", read_from="follower"),
        )
        seen = Seen(consumer)
        async with consumer:
            await wait_for(lambda: len(seen) == 20, 20)


async def test_an_idle_follower_is_not_asked_all_the_time(tmp_path: Path) -> None:
    """It holds no pull while its leader is there: RocketMQ's clients ask at full speed."""
    async with running_cluster(1, followers=1, directory=tmp_path) as cluster:
        await cluster.create_topic("T", queues=1)
        await cluster.caught_up()
        reads = cluster.followers("broker-a")[1].broker.consuming.reads
        options = PullOptions(start="first", read_from="follower")
        async with PullConsumer(
            cluster.nameserver_address, group="g", topics=["T"], options=options
        ) as consumer:
            await wait_for(lambda: consumer.assignment, 20)
            await wait_for(lambda: reads.misses >= 1, 20)
            began_s, before = time.monotonic(), reads.misses
            await wait_for(lambda: reads.misses >= before + 4, 20)
            # At least 0.05 + 0.1 + 0.2 s lie between the first four, whenever they were counted from.
            assert time.monotonic() - began_s > 0.3


@pytest.mark.parametrize("read_from", ["leader", "follower"])
async def test_a_leader_dies_and_returns_under_a_consumer(read_from: str, tmp_path: Path) -> None:
    """Nothing is lost; and a consumer that stays gets nothing twice."""
    async with running_cluster(1, followers=1, directory=tmp_path, sync=True) as cluster:
        await cluster.create_topic("T", queues=QUEUES)
        await send(cluster, 0, 200)
        await cluster.caught_up()
        leader, follower = cluster.leaders["broker-a"], cluster.followers("broker-a")[1]
        gate = asyncio.Event()
        consumer = PushConsumer(
            cluster.nameserver_address,
            group="g",
            options=PushOptions(
                start="first", read_from=read_from, pull_count=8, queue_messages_max=16, save_s=0.2,
                error_pause_s=0.1,
            ),
        )  # fmt: skip
        seen = Seen(consumer, gate=gate, open_until=50)
        async with consumer:
            await wait_for(lambda: len(seen) >= 50, 20)
            await cluster.kill("broker-a")
            by_follower = count_served(follower)
            gate.set()
            await wait_for(lambda: len(seen) == 200, 30)
            assert by_follower["g"] >= 200 - 50 - 20 - 2 * 16  # what was at work and what waited came before
            await wait_for(lambda: progress(follower, "g") == 200, 20)
            await cluster.start_again("broker-a")
            assert progress(leader, "g") == 200
            by_leader = count_served(leader)
            await wait_for(lambda: consumer.client.routes.known.replicas("broker-a").keys() == {0, 1}, 30)
            await cluster.caught_up()  # or it is said that a replica is missing
            sent = 200
            while sent == 200 or (read_from == "leader" and not by_leader["g"]):
                await send(cluster, sent, 20)
                sent += 20
                await wait_for(lambda sent=sent: len(seen) == sent, 30)
                assert sent < 5000, "it does not go back to the leader"
            await wait_for(lambda: progress(leader, "g") == sent, 20)
        assert seen == Counter(dict.fromkeys(range(sent), 1))


async def test_a_leader_that_is_registered_and_cannot_be_reached(tmp_path: Path) -> None:
    """Name servers hear from it still; clients do not, and need not wait until it is forgotten."""
    async with running_cluster(1, followers=1, directory=tmp_path, sync=True) as cluster:
        await cluster.create_topic("T", queues=1)
        await send(cluster, 0, 100)
        await cluster.caught_up()
        leader, follower = cluster.leaders["broker-a"], cluster.followers("broker-a")[1]
        options = PullOptions(start="first", pull_count=8, queue_messages_max=8, error_pause_s=0.1)
        async with PullConsumer(
            cluster.nameserver_address, group="g", topics=["T"], options=options
        ) as consumer:
            got: list[int] = []
            by_follower = count_served(follower)
            while len(got) < 100:
                batch = await consumer.poll(20)
                assert batch is not None
                if not got:
                    await asyncio.gather(*(server.close() for server in leader.broker.ports.servers))
                got += [int(message.body) for message in batch]
            assert cluster.nameserver.routes.groups["broker-a"].addresses[0] == leader.address
        assert got == list(range(100))
        assert by_follower["g"] > 0


async def test_a_group_goes_on_at_the_follower_where_it_was(tmp_path: Path) -> None:
    """Members come and go while the leader is away; it takes over their progress when it returns."""
    async with running_cluster(1, followers=1, directory=tmp_path, sync=True) as cluster:
        await cluster.create_topic("T", queues=1)
        await send(cluster, 0, 60)
        options = PullOptions(start="first", auto_commit=False)

        async def take(count: int) -> list[int]:
            got: list[int] = []
            async with PullConsumer(
                cluster.nameserver_address, group="g", topics=["T"], options=options
            ) as consumer:
                while len(got) < count:
                    batch = await consumer.poll(30, count=count - len(got))
                    assert batch is not None
                    got += [int(message.body) for message in batch]
                await consumer.commit({batch.queue: batch.next_offset})
            return got

        assert await take(20) == list(range(20))
        await cluster.caught_up()
        await cluster.kill("broker-a")
        assert await take(20) == list(range(20, 40))
        await cluster.start_again("broker-a")
        assert progress(cluster.leaders["broker-a"], "g") == 40
        assert await take(20) == list(range(40, 60))


async def test_what_the_follower_lacks_is_waited_for(tmp_path: Path) -> None:
    """A consumer was further than the follower. It is not set back, and goes on when the leader returns."""
    async with running_cluster(1, followers=1, directory=tmp_path) as cluster:
        await cluster.create_topic("T", queues=1)
        await send(cluster, 0, 20)
        await cluster.caught_up()
        cluster.link("broker-a", 1).cut()
        await send(cluster, 20, 10)
        leader, follower = cluster.leaders["broker-a"], cluster.followers("broker-a")[1]
        consumer = PushConsumer(
            cluster.nameserver_address,
            group="g",
            options=PushOptions(start="first", save_s=0.1, error_pause_s=0.1),
        )
        seen = Seen(consumer)
        async with consumer:
            await wait_for(lambda: len(seen) == 30, 20)
            await cluster.kill("broker-a")
            cluster.link("broker-a", 1).heal()
            pulls = follower.broker.consuming
            await wait_for(lambda: pulls.waits.held or pulls.reads.misses, 20)
            # Of the follower's table nothing is passed over: the offset it was told lies behind its end.
            await wait_for(lambda: progress(follower, "g") == 30, 20)
            await cluster.start_again("broker-a")
            await cluster.caught_up()
            await send(cluster, 30, 10)
            await wait_for(lambda: len(seen) == 40, 30)
            await wait_for(lambda: progress(leader, "g") == 40, 20)
        assert seen == Counter(dict.fromkeys(range(40), 1))


def test_blocking_consumers_go_on_too(tmp_path: Path) -> None:
    with broker_in_thread(followers=1, sync=True, directory=tmp_path) as brokers:
        brokers.create_topic("T", queues=QUEUES)
        options = PullOptions(start="first", pull_count=8, queue_messages_max=8, error_pause_s=0.1)
        got: Counter[bytes] = Counter()

        def take(consumer: blocking.PullConsumer, total: int) -> None:
            while sum(got.values()) < total:
                batch = consumer.poll(30)
                assert batch is not None
                got.update(message.body for message in batch)

        with (
            blocking.Producer(brokers.nameserver_address, group="p") as producer,
            blocking.PullConsumer(
                brokers.nameserver_address, group="g", topics=["T"], options=options
            ) as consumer,
        ):
            for number in range(100):
                assert producer.send(Message("T", b"%d" % number)).ok
            brokers.caught_up()
            take(consumer, 30)
            brokers.kill("broker-a")
            take(consumer, 100)
            consumer.commit()
            brokers.start_again("broker-a")
            brokers.caught_up()
            for number in range(100, 120):
                assert producer.send(Message("T", b"%d" % number)).ok
            take(consumer, 120)
        assert got == Counter({b"%d" % number: 1 for number in range(120)})


def bodies(cluster: SocketCluster, queue: Queue, start: int, end: int) -> list[int]:
    return [int(message.body) for message in cluster.read(queue, start, end, group="reader")]


def test_readers_without_a_loop(tmp_path: Path) -> None:
    with broker_in_thread(followers=1, sync=True, directory=tmp_path) as brokers:
        brokers.create_topic("T", queues=1)
        with blocking.Producer(brokers.nameserver_address, group="p") as producer:
            for number in range(50):
                assert producer.send(Message("T", b"%d" % number)).ok
        brokers.caught_up()
        running = brokers.cluster
        leader, follower = running.leaders["broker-a"], running.followers("broker-a")[1]
        by_leader, by_follower = count_served(leader), count_served(follower)
        where = brokers.nameserver_address
        with SocketCluster(where, read_from="follower") as copies, SocketCluster(where) as cluster:
            (queue,) = copies.route("T").readable
            assert copies.edges([queue])[queue] == (0, 50, follower.address)
            assert copies.edges([queue], of_leaders=True)[queue] == (0, 50, "")
            assert bodies(copies, queue, 0, 50) == list(range(50))
            assert (by_leader["reader"], by_follower["reader"]) == (0, 50)
            assert cluster.edges([queue])[queue] == (0, 50, "")
            assert bodies(cluster, queue, 0, 10) == list(range(10))
            assert (by_leader["reader"], by_follower["reader"]) == (10, 50)
            brokers.kill("broker-a")
            assert bodies(cluster, queue, 10, 50) == list(range(10, 50))
            assert by_follower["reader"] == 90
            assert cluster.edges([queue])[queue] == (0, 50, follower.address)
            cluster.commit(queue, "reader", 50)
            assert cluster.committed(queue, "reader") == 50
            with pytest.raises(FollowerLacks) as failed, cluster.once():
                bodies(cluster, queue, 45, 60)
            told = f"offset 50 was to be read, but follower {follower.address} has 0 to 50"
            assert told in str(failed.value)
            assert failed.value.retriable
            with SocketCluster(where, tries=1, read_from=LEADER_ALONE) as alone:
                assert alone.route("T").readable
                with pytest.raises(BrokerNotRegistered, match="no leader of broker 'broker-a'"):
                    alone.edges([queue])
            brokers.start_again("broker-a")
            assert cluster.committed(queue, "reader") == 50
            cluster.refresh("T")
            assert cluster.edges([queue])[queue] == (0, 50, "")
    with pytest.raises(OptionError, match="read_from"):
        SocketCluster("127.0.0.1:1", read_from="slave")


def test_what_a_follower_lacks_comes_when_the_leader_returns(tmp_path: Path) -> None:
    with broker_in_thread(followers=1, directory=tmp_path) as brokers:
        brokers.create_topic("T", queues=1)
        with blocking.Producer(brokers.nameserver_address, group="p") as producer:
            producer.send(Message("T", b"0"))
            brokers.caught_up()
            brokers.link("broker-a", 1).cut()
            producer.send(Message("T", b"1"))
        with SocketCluster(brokers.nameserver_address, patience_s=60) as cluster:
            (queue,) = cluster.route("T").readable
            reading = cluster.read(queue, 0, 2, group="reader", count=1, ahead=1)
            assert next(reading).body == b"0"
            brokers.kill("broker-a")
            returned = threading.Timer(1.0, brokers.start_again, ["broker-a"])
            returned.start()
            assert next(reading).body == b"1"
            returned.join()
