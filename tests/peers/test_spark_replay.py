"""A replay into a topic of Apache's broker: its Java consumer gets every message once, in order and with all
that is its own, though answers are lost on the way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kerolox.client.messages import Queue
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.pipeline.replay import send_task
from kerolox.pipeline.replay.plan import SourceQueue
from kerolox.pipeline.replay.send_task import REPLAY_FROM, REPLAY_ID, SendTask
from tests.pipeline.replaying import LostAnswers, Quiet, lane_rows, message

from .driver import JavaDriver
from .processes import JavaBroker, JavaNameServer

COUNT = 100


def test_the_java_consumer_gets_every_copy_once(
    java_broker: JavaBroker,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(send_task, "BATCH_COUNT", 10)
    for name in ("SETTLE_S", "SLICE_S"):
        monkeypatch.setattr(send_task, name, 0.1)
    topic, group, call = unique("topic"), unique("group"), java_driver.call
    java_driver.create_topic(java_nameserver.address, java_broker.address, topic, 2)
    rows = [message(queue, offset) for queue in (0, 1) for offset in range(COUNT)]
    with SocketCluster(java_nameserver.address) as cluster:
        broker = cluster.route(topic).writable[0].broker
        sources = {
            n: SourceQueue(Queue("orders", "broker-x", n), 0, COUNT - 1, COUNT, Queue(topic, broker, n), 0)
            for n in (0, 1)
        }
        with LostAnswers() as lost:
            done = SendTask(cluster, "at-apache", sources, Quiet(), 0.0, unsure=False).run(lane_rows(rows))
        assert lost.sends > 25
        sent = {n: (each.sent, each.error) for n, each in done.items()}
        assert sent == dict.fromkeys((0, 1), (COUNT, None))
        # Another run finds all of it there.
        again = SendTask(cluster, "at-apache", sources, Quiet(), 0.0, unsure=True).run(lane_rows(rows))
        assert {n: (each.sent, each.before) for n, each in again.items()} == dict.fromkeys((0, 1), (0, COUNT))
    handle = call(
        "push.start",
        group=group,
        namesrv=java_nameserver.address,
        subscriptions=[{"topic": topic, "expression": "*"}],
        options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
    )
    waited = call("push.waitCount", handle=handle, count=2 * COUNT, timeoutMs=30_000)
    assert waited["count"] == 2 * COUNT, waited
    got = sorted(call("push.drain", handle=handle), key=lambda each: (each["queueId"], each["queueOffset"]))
    assert [each["properties"][REPLAY_FROM] for each in got] == [
        f"orders/broker-x/{row['queue_id']}/{row['queue_offset']}" for row in rows
    ]
    for record, row in zip(got, rows, strict=True):
        own = record["properties"]
        assert (record["msgId"], record["keys"], record["tags"]) == (row["msg_id"], row["keys"], row["tags"])
        assert (own[REPLAY_ID], own["region"], record["flag"]) == ("at-apache", "north", row["flag"])
        assert record["reconsumeTimes"] == 0
