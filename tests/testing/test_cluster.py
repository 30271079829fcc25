"""A cluster of leaders and followers whose brokers die and whose links fail on command."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kerolox import Message, Producer, blocking
from kerolox.client.messages import SendStatus
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import KeroloxError, OptionError
from kerolox.testing import NotCaughtUp, broker_in_thread, running_broker, running_cluster
from kerolox.testing.cluster import RunningCluster
from kerolox.testing.faults import FaultyFiles


async def send(cluster: RunningCluster, count: int = 1, topic: str = "T") -> None:
    async with Producer(cluster.nameserver_address, group="p") as producer:
        await producer.send_many([Message(topic, b"%d" % number) for number in range(count)])


def ends(cluster: RunningCluster, name: str, id: int = 0) -> int:
    return cluster.broker(name, id).broker.store.log.max_offset


async def test_leaders_and_followers(tmp_path: Path) -> None:
    async with running_cluster(brokers=2, followers=2, directory=tmp_path, sync=True) as cluster:
        assert list(cluster.leaders) == ["broker-a", "broker-b"]
        assert [leader.broker.options.role.name for leader in cluster.brokers] == ["SYNC_MASTER"] * 2
        for name in cluster.leaders:
            assert list(cluster.followers(name)) == [1, 2]
            known = cluster.nameserver.routes.groups[name].addresses
            assert known == {id: cluster.broker(name, id).address for id in (0, 1, 2)}
        await cluster.create_topic("T")
        await send(cluster, 20)
        await cluster.caught_up()
        for name in cluster.leaders:
            assert ends(cluster, name) == ends(cluster, name, 1) == ends(cluster, name, 2) > 0
            assert cluster.followers(name)[2].broker.tables.topics.find("T") is not None


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_leader_that_was_killed_took_no_leave(how: str, tmp_path: Path) -> None:
    async with running_cluster(brokers=1, followers=1, directory=tmp_path) as cluster:
        await cluster.create_topic("T", queues=1)
        await send(cluster, 10)
        leader = cluster.leaders["broker-a"]
        store = Path(leader.broker.options.store_path)
        offsets = store / "config" / "consumerOffset.json"
        leader.broker.tables.offsets.commit("T", "g", 0, 7)  # saved at a clean stop, and else some time later
        await getattr(cluster, how)("broker-a")
        assert not leader.is_running
        assert (store / "abort").exists() is (how == "kill")
        assert (offsets.exists() and b"T@g" in offsets.read_bytes()) is (how == "stop")
        with pytest.raises(OSError):
            await asyncio.open_connection(*leader.address.split(":"))
        assert set(cluster.nameserver.routes.groups["broker-a"].addresses) == {1}
        await cluster.start_again("broker-a")
        recovered = leader.broker.store.recovered
        assert recovered is not None
        assert recovered.crashed is (how == "kill")
        assert leader.broker.store.queues.max_offset("T", 0) == 10
        await send(cluster, 5)
        await cluster.caught_up()
        assert cluster.followers("broker-a")[1].broker.store.queues.max_offset("T", 0) == 15


async def test_a_kill_in_the_middle_of_sends(tmp_path: Path) -> None:
    """What was acknowledged is there; nobody got an answer for what is not."""
    async with running_cluster(brokers=1, followers=1, directory=tmp_path, sync=True) as cluster:
        await cluster.create_topic("T", queues=1)
        acknowledged = 0

        async def keep_sending(producer: Producer) -> None:
            nonlocal acknowledged
            while True:
                await producer.send(Message("T", b"x" * 100), timeout_s=0.5)
                acknowledged += 1

        async with Producer(cluster.nameserver_address, group="p") as producer:
            tasks = [asyncio.ensure_future(keep_sending(producer)) for _ in range(8)]
            while acknowledged < 50:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await cluster.kill("broker-a")
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, KeroloxError) for error in ended)
        follower = cluster.followers("broker-a")[1].broker
        assert follower.store.queues.max_offset("T", 0) >= acknowledged
        await cluster.start_again("broker-a")
        assert cluster.leaders["broker-a"].broker.store.queues.max_offset("T", 0) >= acknowledged


async def test_a_follower_is_killed_and_catches_up(tmp_path: Path) -> None:
    async with running_cluster(brokers=1, followers=1, directory=tmp_path) as cluster:
        await cluster.create_topic("T", queues=1)
        await send(cluster, 10)
        await cluster.caught_up()
        await cluster.kill("broker-a", 1)
        await cluster.kill("broker-a", 1)
        await send(cluster, 10)
        await cluster.caught_up()  # of none that runs
        await cluster.start_again("broker-a", 1)
        await cluster.caught_up()
        assert cluster.followers("broker-a")[1].broker.store.queues.max_offset("T", 0) == 20


async def test_a_link_that_is_cut_and_heals(tmp_path: Path) -> None:
    async with running_cluster(brokers=1, followers=2, directory=tmp_path) as cluster:
        await cluster.create_topic("T", queues=1)
        await cluster.caught_up()
        link = cluster.link("broker-a", 1)
        link.cut()
        await send(cluster, 10)
        with pytest.raises(NotCaughtUp) as failed:
            await cluster.caught_up(0.3)
        behind = ends(cluster, "broker-a") - ends(cluster, "broker-a", 1)
        assert f"follower broker-a 1: {behind} bytes behind" in str(failed.value)
        assert "broker-a 2" not in str(failed.value)
        link.heal()
        await cluster.caught_up()
        assert ends(cluster, "broker-a", 1) == ends(cluster, "broker-a")


@pytest.mark.parametrize("way", ["to_follower", "to_leader"])
async def test_a_link_that_is_cut_one_way(way: str, tmp_path: Path) -> None:
    """The log arrives when only reports are lost; a leader that waits for them does not hear."""
    async with running_cluster(
        brokers=1, followers=1, directory=tmp_path, sync=True, slaveTimeout=300
    ) as cluster:
        await cluster.create_topic("T", queues=1)
        await cluster.caught_up()
        cluster.link("broker-a", 1).cut(one_way=way)
        async with Producer(cluster.nameserver_address, group="p") as producer:
            receipt = await producer.send(Message("T", b"x"))
        assert receipt.status is SendStatus.FLUSH_SLAVE_TIMEOUT
        arrived = cluster.followers("broker-a")[1].broker.store.queues.max_offset("T", 0)
        assert (arrived > 0) is (way == "to_leader")
        with pytest.raises(NotCaughtUp):
            await cluster.caught_up(0.2)
        cluster.link("broker-a", 1).heal()
        await cluster.caught_up()


async def test_a_slow_link(tmp_path: Path) -> None:
    async with running_cluster(brokers=1, followers=1, directory=tmp_path) as cluster:
        await cluster.create_topic("T", queues=1)
        await cluster.caught_up()
        cluster.link("broker-a", 1).slow(bytes_per_s=20_000)
        async with Producer(cluster.nameserver_address, group="p") as producer:
            for _ in range(10):
                await producer.send(Message("T", os.urandom(50_000)))
        with pytest.raises(NotCaughtUp, match="bytes behind"):
            await cluster.caught_up(0.2)
        cluster.link("broker-a", 1).heal()
        await cluster.caught_up()


async def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    async with running_cluster(brokers=1, followers=1, directory=tmp_path) as cluster:
        for wrong in (
            lambda: cluster.broker("broker-x"),
            lambda: cluster.followers("broker-x"),
            lambda: cluster.link("broker-a", 2),
        ):
            with pytest.raises(OptionError, match="broker-a 0, broker-a 1"):
                wrong()
        with pytest.raises(OptionError, match="follower_id"):
            cluster.link("broker-a", 0)
        with pytest.raises(OptionError, match="to_follower"):
            cluster.link("broker-a", 1).cut(one_way="both")
        with pytest.raises(OptionError, match="bytes_per_s"):
            cluster.link("broker-a", 1).slow()
    for many in ({"brokers": 0}, {"followers": -1}, {"brokers": True}, {"broker_name": "x"}):
        with pytest.raises(OptionError, match=next(iter(many))):
            async with running_cluster(**many):  # type: ignore[arg-type]
                pass


async def test_a_broker_with_files_of_its_own_is_killed_by_them(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, files=FaultyFiles()) as broker:
        with pytest.raises(KeroloxError, match=r"Files object: call kill\(\)"):
            await broker.kill()
        assert broker.is_running


def test_without_await(tmp_path: Path) -> None:
    with broker_in_thread(followers=1, sync=True, directory=tmp_path) as brokers:
        brokers.create_topic("T", queues=1)
        with blocking.Producer(brokers.nameserver_address, group="p") as producer:
            producer.send(Message("T", b"1"))
            brokers.caught_up()
            link = brokers.link("broker-a", 1)
            link.cut()
            assert not producer.send(Message("T", b"2")).ok
            link.slow(delay_s=0.01)
            link.heal()
            brokers.caught_up()
            producer.send(Message("T", b"3"))
            brokers.caught_up()
        brokers.kill("broker-a")
        with SocketCluster(brokers.nameserver_address) as sockets:
            (queue,) = sockets.route("T").readable
            found = sockets.read(queue, 0, sockets.max_offset(queue), group="g")
            assert {message.body for message in found} >= {b"1", b"3"}
        brokers.start_again("broker-a")
        brokers.caught_up()
