"""Name servers that do not know a topic: for now, or because there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from kerolox.client.calls.retries import QUEUES
from kerolox.client.errors import BrokerNotRegistered, TopicNotFound
from kerolox.client.messages import Queue
from kerolox.client.sockets import socket_cluster as plain
from kerolox.client.sockets.sending import SocketSender
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.testing.nameserver import running_nameserver
from kerolox.testing.threads import BrokerThread, broker_in_thread


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokerThread]:
    """Two brokers, of which the second has the topic orders. What nobody has seen is asked about once."""
    monkeypatch.setattr(plain, "QUEUES", QUEUES._replace(unknown_topic_s=0.0))
    with broker_in_thread(2) as running:
        second = running.cluster.brokers[1]
        running.run(lambda: second.create_topic("orders", queues=1))
        yield running


@pytest.fixture
def at_first_pause(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """``at_first_pause(work)``: what happens while a client waits for its second try."""

    def arrange(work: Callable[[], None]) -> None:
        waiting = [work]

        def sleep(seconds: float) -> None:
            if waiting:
                waiting.pop()()
            time.sleep(seconds)

        monkeypatch.setattr(plain, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))

    return arrange


def start_all(two: BrokerThread) -> None:
    for number in range(2):
        two.start(number)


def stop_all(two: BrokerThread) -> None:
    for number in range(2):
        two.stop(number)


def test_a_name_server_that_knows_no_broker_is_asked_again(
    two: BrokerThread, at_first_pause: Callable[[Callable[[], None]], None]
) -> None:
    stop_all(two)
    at_first_pause(lambda: start_all(two))
    with SocketCluster(two.nameserver_address, patience_s=60) as cluster:
        assert cluster.route("orders").readable


def test_a_list_of_topics_waits_for_a_broker(
    two: BrokerThread, at_first_pause: Callable[[Callable[[], None]], None]
) -> None:
    """Else a query by pattern would read nothing, and be done."""
    stop_all(two)
    at_first_pause(lambda: start_all(two))
    with SocketCluster(two.nameserver_address, patience_s=60) as cluster:
        assert "orders" in cluster.topics()


def test_a_sender_waits_for_the_first_broker_too(
    two: BrokerThread, at_first_pause: Callable[[Callable[[], None]], None]
) -> None:
    stop_all(two)
    at_first_pause(lambda: start_all(two))
    with (
        SocketCluster(two.nameserver_address, patience_s=60) as cluster,
        SocketSender(cluster, "g") as sender,
    ):
        assert sender.queues("orders")


@pytest.mark.parametrize("awaited", [1, 0], ids=["says it is not ready", "knows no broker"])
async def test_instead_of_a_name_server_that_just_started_another_is_asked(
    two: BrokerThread, awaited: int
) -> None:
    def ask(fresh: str) -> None:
        with SocketCluster([fresh, two.nameserver_address]) as cluster:
            assert cluster.route("orders").readable
            assert cluster.nameservers.addresses == [two.nameserver_address, fresh]

    async with running_nameserver(brokers_awaited=awaited) as fresh:
        await asyncio.to_thread(ask, fresh.address)


def test_it_is_said_that_no_broker_is_there(two: BrokerThread) -> None:
    stop_all(two)
    with (
        SocketCluster(two.nameserver_address, tries=2) as cluster,
        pytest.raises(BrokerNotRegistered, match="no broker at all is registered"),
    ):
        cluster.route("orders")


def test_a_topic_that_was_there_is_waited_for(
    two: BrokerThread, at_first_pause: Callable[[Callable[[], None]], None]
) -> None:
    """One broker is registered; the one with the topic is not yet."""
    mine = Queue("orders", "broker-b", 0)
    two.stop(1)
    at_first_pause(lambda: two.start(1))
    with SocketCluster(two.nameserver_address, patience_s=60) as task:  # a new process, told of its queue
        assert task.max_offset(mine) == 0
    two.stop(1)
    at_first_pause(lambda: two.start(1))
    with SocketCluster(two.nameserver_address, patience_s=60) as query:
        assert query.route("orders", expected=True).readable == (mine,)
        two.stop(1)
        at_first_pause(lambda: two.start(1))
        assert query.route("orders", fresh=True).readable == (mine,)  # it has seen the topic itself


def test_a_topic_nobody_has_seen_is_not_waited_for(two: BrokerThread) -> None:
    with (
        SocketCluster(two.nameserver_address, patience_s=60) as cluster,
        pytest.raises(TopicNotFound, match="'no-such-topic'"),
    ):
        cluster.route("no-such-topic")
