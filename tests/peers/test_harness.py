"""The harness itself, proven against Apache's programs alone."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .capture import RecordingProxy
from .conftest import Factory
from .driver import JavaDriver, JavaError
from .jars import Jars, PeersUnavailable, get_jars
from .processes import JavaBroker, JavaNameServer, StartFailed
from .scenarios.client import Client
from .wire import GET_BROKER_CLUSTER_INFO

Unique = Callable[[str], str]


def consume(
    driver: JavaDriver, namesrv: str, group: str, topic: str, expression: str = "*", **args: Any
) -> str:
    handle = driver.call(
        "push.start",
        group=group,
        namesrv=namesrv,
        subscriptions=[{"topic": topic, "expression": expression}],
        options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        **args,
    )
    assert isinstance(handle, str)
    return handle


def test_thousand_messages_arrive(
    java_driver: JavaDriver, java_nameserver: JavaNameServer, java_broker: JavaBroker, unique: Unique
) -> None:
    topic, group = unique("topic"), unique("group")
    java_driver.create_topic(java_nameserver.address, java_broker.address, topic)
    producer = java_driver.call("producer.start", group=unique("pid"), namesrv=java_nameserver.address)
    sent = java_driver.call(
        "producer.sendMany", handle=producer, topic=topic, count=1000, size=200, threads=4, ids=True
    )
    assert (sent["sent"], sent["failed"], sent["errors"]) == (1000, 0, [])
    consumer = consume(java_driver, java_nameserver.address, group, topic)
    waited = java_driver.call("push.waitCount", handle=consumer, count=1000, distinct=True, timeoutMs=30000)
    assert waited["reached"]
    records = java_driver.call("push.drain", handle=consumer)
    assert {record["msgId"] for record in records} == {row[1] for row in sent["ids"]}
    assert {record["bodySize"] for record in records} == {200}


def test_mqadmin_prints_the_broker(
    java_driver: JavaDriver, java_nameserver: JavaNameServer, java_broker: JavaBroker
) -> None:
    printed = java_driver.mqadmin("clusterList", "-n", java_nameserver.address)
    assert java_broker.name in printed
    assert java_broker.address in printed
    with pytest.raises(JavaError) as raised:
        java_driver.mqadmin("clusterList", "--nonsense")
    assert raised.value.simple_class == "UnrecognizedOptionException"


def test_every_way_to_send(
    java_driver: JavaDriver, java_nameserver: JavaNameServer, java_broker: JavaBroker, unique: Unique
) -> None:
    topic, call = unique("topic"), java_driver.call
    java_driver.create_topic(java_nameserver.address, java_broker.address, topic)
    producer = call("producer.start", group=unique("pid"), namesrv=java_nameserver.address)
    first = call(
        "producer.send",
        handle=producer,
        message={"topic": topic, "text": "one", "tags": "A", "keys": "k1", "properties": {"colour": "red"}},
    )
    assert first["status"] == "SEND_OK"
    queue = first["queue"]
    message = {"topic": topic, "body": base64.b64encode(b"\x00\xff").decode(), "tags": "B"}
    assert call("producer.send", handle=producer, message=message, queue=queue)["queue"] == queue
    assert call("producer.send", handle=producer, message=message, mode="async")["status"] == "SEND_OK"
    assert call("producer.send", handle=producer, message=message, mode="oneway") is None
    picked = [
        call("producer.send", handle=producer, message=message, selector="index", arg=2)["queue"]["queueId"]
        for _ in range(2)
    ]
    assert picked == [2, 2]
    batch = call("producer.sendBatch", handle=producer, messages=[message, message])
    assert len(batch["msgId"].split(",")) == 2

    consumer = consume(java_driver, java_nameserver.address, unique("group"), topic, body=True)
    assert call("push.waitCount", handle=consumer, count=8, timeoutMs=20000)["reached"]
    records = call("push.drain", handle=consumer)
    (one,) = [record for record in records if record["tags"] == "A"]
    assert base64.b64decode(one["body"]) == b"one"
    assert one["properties"]["colour"] == "red"
    assert one["msgId"] == first["msgId"]
    assert one["offsetMsgId"] == first["offsetMsgId"]

    admin = call("admin.start", namesrv=java_nameserver.address)
    (found,) = call("query.byKey", handle=admin, topic=topic, key="k1")
    assert found["msgId"] == first["msgId"]
    by_id = call("query.byId", handle=admin, topic=topic, msgId=first["offsetMsgId"])
    assert by_id["queueOffset"] == first["queueOffset"]


def test_filters_and_retries(
    java_driver: JavaDriver, java_nameserver: JavaNameServer, java_broker: JavaBroker, unique: Unique
) -> None:
    topic, call = unique("topic"), java_driver.call
    java_driver.create_topic(java_nameserver.address, java_broker.address, topic)
    producer = call("producer.start", group=unique("pid"), namesrv=java_nameserver.address)
    for number in range(6):
        message = {"topic": topic, "text": "x", "tags": "AB"[number % 2], "properties": {"n": str(number)}}
        call("producer.send", handle=producer, message=message)
    sql = call(
        "push.start",
        group=unique("sql"),
        namesrv=java_nameserver.address,
        subscriptions=[{"topic": topic, "type": "SQL92", "expression": "n > 3"}],
        options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
    )
    ordered = consume(
        java_driver,
        java_nameserver.address,
        unique("tag"),
        topic,
        "A",
        orderly=True,
        outcome={"failTimes": 1},
    )
    assert call("push.waitCount", handle=sql, count=2, timeoutMs=20000)["reached"]
    got = {record["properties"]["n"] for record in call("push.drain", handle=sql)}
    assert got == {"4", "5"}
    # Each of the three fails once, so each comes twice.
    assert call("push.waitCount", handle=ordered, count=6, timeoutMs=30000)["distinct"] == 3
    assert {record["tags"] for record in call("push.drain", handle=ordered)} == {"A"}


def test_transactions_decided_here(
    java_driver: JavaDriver, java_nameserver: JavaNameServer, java_broker: JavaBroker, unique: Unique
) -> None:
    topic, call = unique("topic"), java_driver.call
    java_driver.create_topic(java_nameserver.address, java_broker.address, topic)
    producer = call(
        "producer.start",
        group=unique("pid"),
        namesrv=java_nameserver.address,
        transaction={"local": "ask"},
    )

    def decide(event: dict[str, object]) -> None:
        message = event["message"]
        assert isinstance(message, dict)
        state = "COMMIT_MESSAGE" if message["keys"] == "keep" else "ROLLBACK_MESSAGE"
        call("transaction.decide", token=event["token"], state=state)

    java_driver.on("transaction.execute", decide)
    states = {
        key: call(
            "producer.sendTransaction", handle=producer, message={"topic": topic, "text": key, "keys": key}
        )["localState"]
        for key in ("drop", "keep")
    }
    assert states == {"drop": "ROLLBACK_MESSAGE", "keep": "COMMIT_MESSAGE"}
    consumer = consume(java_driver, java_nameserver.address, unique("group"), topic)
    assert call("push.waitCount", handle=consumer, count=1, timeoutMs=20000)["reached"]
    assert [record["keys"] for record in call("push.drain", handle=consumer)] == ["keep"]


def test_lite_pull_seeks_and_commits(
    java_driver: JavaDriver, java_nameserver: JavaNameServer, java_broker: JavaBroker, unique: Unique
) -> None:
    topic, call = unique("topic"), java_driver.call
    java_driver.create_topic(java_nameserver.address, java_broker.address, topic)
    producer = call("producer.start", group=unique("pid"), namesrv=java_nameserver.address)
    queue = call("producer.send", handle=producer, message={"topic": topic, "text": "0"})["queue"]
    call("producer.sendMany", handle=producer, topic=topic, first=1, count=9, size=1, queue=queue)
    lite = Client(java_driver, java_nameserver.address).lite(unique("group"), assign=[queue])
    assert [m["queueOffset"] for m in lite.poll(10)] == list(range(10))
    assert [m["queueOffset"] for m in lite.poll_from(queue, 7, 3)] == [7, 8, 9]
    lite.do("lite.commit")
    assert lite.method("committed", queue) == 10


def test_codecs_run_the_real_classes(java_driver: JavaDriver) -> None:
    for kind in ("JSON", "ROCKETMQ"):
        frame = java_driver.call(
            "codec.encode",
            code=105,
            opaque=7,
            extFields={"topic": "Täst"},
            remark="why",
            body=base64.b64encode(b"body").decode(),
            serializeType=kind,
        )
        back = java_driver.call("codec.decode", bytes=frame)
        assert (back["code"], back["opaque"], back["remark"]) == (105, 7, "why")
        assert back["extFields"] == {"topic": "Täst"}
        assert base64.b64decode(back["body"]) == b"body"
        assert back["serializeType"] == kind
    assert java_driver.call("codec.hashCode", strings=["", "a", "TagA"]) == [0, 97, 2598919]
    crc = java_driver.call(
        "static",
        type="org.apache.rocketmq.common.UtilAll",
        method="crc32",
        args=[base64.b64encode(b"123456789").decode()],
    )
    assert crc == 0xCBF43926 & 0x7FFFFFFF


async def test_calls_from_asyncio(java_driver: JavaDriver) -> None:
    answer = await java_driver.acall("ping")
    assert answer["version"].replace("_", ".").startswith("V")
    with pytest.raises(JavaError, match="no such op"):
        await java_driver.acall("nonsense")


def test_messages_survive_kill_and_clean_restart(
    java: Factory, java_driver: JavaDriver, unique: Unique
) -> None:
    call = java_driver.call
    nameserver = java.nameserver()
    broker = java.broker(nameserver.address, properties={"flushDiskType": "SYNC_FLUSH"})
    topic = unique("topic")
    java_driver.create_topic(nameserver.address, broker.address, topic)

    def send(first: int) -> None:
        producer = call("producer.start", group=unique("pid"), namesrv=nameserver.address)
        done = call("producer.sendMany", handle=producer, topic=topic, first=first, count=100, size=10)
        assert done["sent"] == 100
        call("shutdown", handle=producer)

    def received(count: int) -> set[str]:
        consumer = consume(java_driver, nameserver.address, unique("group"), topic, body=True)
        assert call("push.waitCount", handle=consumer, count=count, distinct=True, timeoutMs=30000)["reached"]
        found = {record["body"] for record in call("push.drain", handle=consumer)}
        call("shutdown", handle=consumer)
        return found

    send(0)
    pid = broker.pid
    broker.restart(clean=False)
    assert broker.pid != pid
    assert len(received(100)) == 100
    send(100)
    broker.restart()
    assert len(received(200)) == 200
    assert nameserver.stop() == 143  # the JVM's answer to SIGTERM
    assert not nameserver.running
    broker.kill()
    assert not broker.running


def test_failed_start_shows_why(java: Factory, java_nameserver: JavaNameServer) -> None:
    taken = java.nameserver(start=False, port=java_nameserver.port)
    with pytest.raises(StartFailed, match="ended with"):
        taken.start()


def test_no_process_outlives_its_owner(peers: Jars, tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from tests.peers.jars import Jars; from tests.peers.processes import JavaNameServer\n"
        "server = JavaNameServer(Jars(sys.argv[1], Path(sys.argv[2])), Path(sys.argv[3]))\n"
        "server.start(); print(server.pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, peers.version, str(peers.root), str(tmp_path / "orphan")],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        check=False,
    )
    pid = int(done.stdout)
    # The JVM notices the closed pipe by itself; wait until the process is gone or a zombie.
    status = Path(f"/proc/{pid}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        raise AssertionError(f"{pid} still runs")


def test_missing_maven_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeersUnavailable, match="install maven"):
        get_jars("5x")


def test_proxy_records_both_directions(java_driver: JavaDriver, java_nameserver: JavaNameServer) -> None:
    with RecordingProxy(java_nameserver.address) as proxy:
        client = java_driver.call("remoting.start")
        asked = {"code": GET_BROKER_CLUSTER_INFO, "opaque": 77}
        answer = java_driver.call("remoting.invoke", handle=client, address=proxy.address, **asked)
        question, reply = proxy.take_frames()
    assert (question.sender, reply.sender) == ("client", "server")
    for frame, code in ((question, GET_BROKER_CLUSTER_INFO), (reply, 0)):
        seen = java_driver.call("codec.decode", bytes=base64.b64encode(frame.data).decode())
        assert (seen["code"], seen["opaque"]) == (code, 77)
    assert reply.data.endswith(base64.b64decode(answer["body"]))
    assert proxy.connections[0].raw["client"] == question.data
