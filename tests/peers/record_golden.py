"""Record what Apache's programs say to each other, as golden data for the codec tests.

    python -m tests.peers.record_golden [folder]

Every conversation runs twice, once with JSON headers and once with binary ones, through proxies
that keep the frames.  Each line of the result is one frame with the header that Apache's own
decoder made of it.
"""

from __future__ import annotations

import base64
import datetime
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .capture import Frame, RecordingProxy
from .driver import JavaDriver
from .jars import Jars, get_jars
from .processes import JavaBroker, JavaNameServer

DEFAULT_FOLDER = Path(__file__).parents[1] / "data" / "golden"
KINDS = {"json": "JSON", "binary": "ROCKETMQ"}
# A loopback address of its own lets the proxy stand where the broker says it is.
BROKER_HOST = "127.0.0.2"
FROM_START = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}


@dataclass
class Stage:
    """The processes of one recording and the proxies between them."""

    driver: JavaDriver
    nameserver: JavaNameServer
    broker: JavaBroker
    for_clients: RecordingProxy
    at_broker: RecordingProxy

    @property
    def namesrv(self) -> str:
        return self.for_clients.address

    def call(self, op: str, **args: Any) -> Any:
        return self.driver.call(op, **args)

    def admin(self, *args: str) -> None:
        self.driver.mqadmin(args[0], "-n", self.namesrv, *args[1:])

    def topic(self, name: str, queues: int = 2) -> str:
        # Past the proxies: preparing a conversation is not part of it.
        self.driver.create_topic(self.nameserver.address, self.broker.address, name, queues)
        return name

    def feed(self, messages: list[dict[str, Any]]) -> list[Any]:
        """Send messages for a conversation to find, and forget having done so."""
        handle = self.call("producer.start", group="GoldenFeed", namesrv=self.nameserver.address)
        sent = [self.call("producer.send", handle=handle, message=message) for message in messages]
        self.call("shutdown", handle=handle)
        self.at_broker.take_frames()
        return sent

    def producer(self, group: str, **args: Any) -> str:
        return str(self.call("producer.start", group=group, namesrv=self.namesrv, **args))

    def push(self, group: str, topic: str, **args: Any) -> str:
        subscriptions = [{"topic": topic, **args.pop("subscription", {})}]
        return str(
            self.call(
                "push.start",
                group=group,
                namesrv=self.namesrv,
                subscriptions=subscriptions,
                options={**FROM_START, **args.pop("options", {})},
                **args,
            )
        )

    def wait(self, handle: str, count: int) -> None:
        waited = self.call("push.waitCount", handle=handle, count=count, timeoutMs=30000)
        if not waited["reached"]:
            raise RuntimeError(f"wanted {count} messages, got {waited['count']}")


def text(topic: str, body: str, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "text": body, **more}


# The conversations.


def admin(stage: Stage) -> None:
    """Cluster, topics, routes, key-value settings, write permission, groups, figures."""
    stage.admin("clusterList")
    stage.admin(
        "updateTopic", "-b", f"{BROKER_HOST}:{stage.broker.port}", "-t", "GoldenAdmin", "-r", "2", "-w", "2"
    )
    stage.admin("topicList")
    stage.admin("topicRoute", "-t", "GoldenAdmin")
    stage.admin("topicClusterList", "-t", "GoldenAdmin")
    stage.admin("topicStatus", "-t", "GoldenAdmin")
    stage.admin("updateKvConfig", "-s", "GOLDEN", "-k", "colour", "-v", "red")
    handle = stage.call("admin.start", namesrv=stage.namesrv)
    stage.call("call", handle=handle, method="getKVConfig", args=["GOLDEN", "colour"])
    stage.call("call", handle=handle, method="getKVListByNamespace", args=["GOLDEN"])
    stage.admin("deleteKvConfig", "-s", "GOLDEN", "-k", "colour")
    stage.admin("wipeWritePerm", "-b", stage.broker.name)
    stage.admin("addWritePerm", "-b", stage.broker.name)
    stage.admin("updateSubGroup", "-b", f"{BROKER_HOST}:{stage.broker.port}", "-g", "GoldenGroup")
    stage.admin("deleteTopic", "-c", stage.broker.cluster, "-t", "GoldenAdmin")


def producer(stage: Stage) -> None:
    """Heartbeat, every way to send, and a topic that does not exist."""
    topic = stage.topic("GoldenSend")
    handle = stage.producer("GoldenProducers")
    first = stage.call(
        "producer.send",
        handle=handle,
        message=text(topic, "sync", tags="TagA", keys=["k1", "k2"], properties={"colour": "Grün", "n": "1"}),
    )
    for mode in ("async", "oneway"):
        stage.call("producer.send", handle=handle, message=text(topic, mode, tags="TagB"), mode=mode)
    stage.call("producer.send", handle=handle, message=text(topic, "queue"), queue=first["queue"])
    stage.call("producer.send", handle=handle, message=text(topic, "hash"), selector="hash", arg="order-7")
    stage.call("producer.send", handle=handle, message=text(topic, "delayed", delayLevel=1))
    stage.call("producer.send", handle=handle, message=text(topic, "compressed " * 600))
    batch = [text(topic, f"batch {number}", keys=f"b{number}") for number in range(3)]
    stage.call("producer.sendBatch", handle=handle, messages=batch)
    # Its topic is made on the fly from the default one.
    stage.call("producer.send", handle=handle, message=text("GoldenAuto", "first of its topic"))
    stage.call("shutdown", handle=handle)


def consumer(stage: Stage) -> None:
    """Heartbeat, consumer list, offsets, pulls with and without messages, and a message sent back."""
    topic = stage.topic("GoldenPush")
    stage.feed(
        [
            text(topic, f"push {number}", tags=f"Tag{'AB'[number % 2]}", properties={"n": str(number)})
            for number in range(6)
        ]
    )
    handle = stage.push(
        "GoldenPushGroup",
        topic,
        subscription={"expression": "TagA || TagB"},
        outcome={"failTimes": 1},
    )
    stage.wait(handle, 12)  # each comes back once, from the retry topic
    stage.admin("consumerConnection", "-g", "GoldenPushGroup")
    stage.admin("consumerProgress", "-g", "GoldenPushGroup")
    stage.call("shutdown", handle=handle)
    sql = stage.push(
        "GoldenSqlGroup", topic, subscription={"type": "SQL92", "expression": "n BETWEEN 2 AND 3"}
    )
    stage.wait(sql, 2)
    stage.call("shutdown", handle=sql)


def broadcast(stage: Stage) -> None:
    """A broadcasting consumer keeps its own offsets and asks for no consumer list."""
    topic = stage.topic("GoldenBroadcast")
    stage.feed([text(topic, "to all")])
    handle = stage.push("GoldenBroadcastGroup", topic, options={"messageModel": "BROADCASTING"})
    stage.wait(handle, 1)
    stage.call("shutdown", handle=handle)


def orderly(stage: Stage) -> None:
    """Locking and unlocking queues."""
    topic = stage.topic("GoldenOrderly")
    stage.feed([text(topic, f"ordered {number}") for number in range(4)])
    handle = stage.push("GoldenOrderlyGroup", topic, orderly=True)
    stage.wait(handle, 4)
    stage.call("shutdown", handle=handle)


def pull(stage: Stage) -> None:
    """Pulling and seeking by hand: first, last and timed offsets, commits."""
    topic = stage.topic("GoldenPull", queues=1)
    queue = stage.feed([text(topic, f"pull {number}") for number in range(5)])[0]["queue"]
    handle = stage.call("pull.start", group="GoldenPullGroup", namesrv=stage.namesrv)

    def ask(method: str, *args: Any, types: list[str] | None = None) -> Any:
        return stage.call("call", handle=handle, method=method, args=list(args), types=types)

    ask("fetchSubscribeMessageQueues", topic)
    for method in ("minOffset", "maxOffset", "earliestMsgStoreTime"):
        ask(method, queue)
    ask("searchOffset", queue, 1)
    short = ["MessageQueue", "String", "long", "int"]
    for offset in (0, 3, 5, 9):  # found, found, nothing new, beyond the end
        ask("pull", queue, "*", offset, 2, types=short)
    ask("pull", queue, "NoSuchTag", 0, 2, types=short)
    ask("updateConsumeOffset", queue, 5)
    ask("fetchConsumeOffset", queue, True)
    stage.call("shutdown", handle=handle)
    lite = stage.call("lite.start", group="GoldenLiteGroup", namesrv=stage.namesrv, assign=[queue])
    stage.call("lite.seek", handle=lite, queue=queue, offset="begin")
    seen = 0
    while seen < 5:
        seen += len(stage.call("lite.poll", handle=lite, timeoutMs=5000, body=False))
    stage.call("lite.commit", handle=lite)
    stage.call("shutdown", handle=lite)


def query(stage: Stage) -> None:
    """Messages by key, by unique id and by offset id."""
    topic = stage.topic("GoldenQuery")
    (sent,) = stage.feed([text(topic, "find me", keys="needle")])
    finder = stage.call("admin.start", namesrv=stage.nameserver.address)
    while not _found(stage, finder, topic):  # the index is built a moment after the send
        pass
    stage.call("shutdown", handle=finder)
    stage.at_broker.take_frames()
    handle = stage.call("admin.start", namesrv=stage.namesrv)
    stage.call("query.byKey", handle=handle, topic=topic, key="needle")
    stage.call("query.byId", handle=handle, topic=topic, msgId=sent["msgId"])
    stage.call("query.byId", handle=handle, topic=topic, msgId=sent["offsetMsgId"])
    stage.call("shutdown", handle=handle)


def _found(stage: Stage, handle: str, topic: str) -> bool:
    try:
        return bool(stage.call("query.byKey", handle=handle, topic=topic, key="needle"))
    except Exception:  # "no message" is an exception in this client
        return False


def transaction(stage: Stage) -> None:
    """Prepare, commit, roll back, and the broker asking back about an undecided one."""
    topic = stage.topic("GoldenTransaction")
    stage.at_broker.take_frames()
    handle = stage.producer("GoldenTransactions", transaction={"local": "ask", "check": "COMMIT_MESSAGE"})
    for state in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"):
        sending = stage.driver.submit(
            "producer.sendTransaction", handle=handle, message=text(topic, state, keys=state)
        )
        asked = stage.driver.wait_event("transaction.execute")
        stage.call("transaction.decide", token=asked["token"], state=state)
        sending.result(30)
    stage.driver.wait_event("transaction.check", where=lambda event: event["message"]["keys"] == "UNKNOW")
    reader = stage.push("GoldenTransactionGroup", topic)
    stage.wait(reader, 2)
    stage.call("shutdown", handle=reader)
    stage.call("shutdown", handle=handle)


CLIENTS: list[Callable[[Stage], None]] = [
    admin,
    producer,
    consumer,
    broadcast,
    orderly,
    pull,
    query,
    transaction,
]


# Recording.


def record(jars: Jars, work: Path, kind: str, folder: Path) -> dict[str, int]:
    """Run every conversation with one header encoding; returns the number of frames of each."""
    system = {"rocketmq.serialize.type": KINDS[kind]}
    nameserver = JavaNameServer(jars, work / "namesrv", system=system)
    nameserver.start()
    for_brokers = RecordingProxy(nameserver.address)
    for_clients = RecordingProxy(nameserver.address)
    broker = JavaBroker(
        jars,
        work / "broker",
        for_brokers.address,
        name="golden",
        system=system,
        properties={
            "brokerIP1": BROKER_HOST,
            "bindAddress": "127.0.0.1",
            "longPollingEnable": False,  # so that a pull without messages is answered in a second
            "messageDelayLevel": "1s 1s 1s",
            "transactionTimeOut": 1000,
            "transactionCheckInterval": 1000,
        },
    )
    broker.ask = [nameserver.address]
    at_broker = RecordingProxy(broker.address, host=BROKER_HOST, port=broker.port)
    driver = JavaDriver(jars, work / "driver", serialize_type=KINDS[kind])
    counts = {}
    try:
        driver.start()
        broker.start()
        stage = Stage(driver, nameserver, broker, for_clients, at_broker)

        for conversation in CLIENTS:
            name = conversation.__name__
            print(f"{kind}: {name}", flush=True)
            conversation(stage)
            driver.call("stopAll")
            frames = {"namesrv": for_clients.take_frames(), "broker": at_broker.take_frames()}
            counts[name] = _write(folder / kind / f"{name}.jsonl", str(conversation.__doc__), driver, frames)
        broker.stop()
        _register_otherwise(jars, work, for_brokers, nameserver.address, system)
        frames = {"registration": for_brokers.take_frames()}
        about = "Brokers register, plainly and compressed, send heartbeats, and unregister."
        counts["register"] = _write(folder / kind / "register.jsonl", about, driver, frames)
        driver.stop()
    finally:
        for process in (driver, broker, nameserver):
            process.kill()
        for proxy in (for_brokers, for_clients, at_broker):
            proxy.close()
    return counts


def _register_otherwise(
    jars: Jars, work: Path, proxy: RecordingProxy, ask: str, system: dict[str, str]
) -> None:
    """Run a broker that sends heartbeats and asks before it registers, and one that compresses.

    The second is a 4.9 broker: 5.5.0 compresses the body and says in the header that it did not.
    """
    heartbeats = {
        "forceRegister": False,
        "enableSlaveActingMaster": True,
        "skipPreOnline": True,
        "compatibleWithOldNameSrv": False,  # else it sends its data version in place of heartbeats
    }
    broker = JavaBroker(
        jars,
        work / "heartbeats",
        proxy.address,
        name="golden-heartbeats",
        system=system,
        properties=heartbeats,
    )
    older = JavaBroker(
        get_jars("4x"),
        work / "compressed",
        proxy.address,
        name="golden-compressed",
        system=system,
        properties={"compressedRegister": True},
    )
    for each in (broker, older):
        each.ask = [ask]
        each.start()
    for each in (broker, older):
        each.stop()


def _write(path: Path, why: str, driver: JavaDriver, streams: dict[str, list[Frame]]) -> int:
    """Write one conversation: a first line that says what it is, then a line per frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"about": why})]
    for server, frames in streams.items():
        for frame in frames:
            encoded = base64.b64encode(frame.data).decode()
            header = driver.call("codec.decode", bytes=encoded)
            header.pop("body")
            row = {
                "server": server,
                "connection": frame.connection,
                "from": frame.sender,
                "header": header,
                "frame": encoded,
            }
            lines.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines) - 1


README = """\
# Golden frames

Frames that Apache RocketMQ {version} sent to itself, recorded on {date} by

    python -m tests.peers.record_golden

which runs Apache's released name server, broker, client and admin tool, unchanged, and keeps
what goes over the wire between them.  `json/` holds the conversations with JSON headers,
`binary/` the same ones with binary headers (`rocketmq.serialize.type=ROCKETMQ`).

Each file is JSON lines.  The first line says what the conversation is about; every other line is
one frame:

- `server`: who the connection leads to, `namesrv` or `broker`; `registration` is a broker's own
  connection to the name server;
- `connection`: which connection to that server, counted from 0 over the whole recording;
- `from`: who sent the frame, `client` or `server`; the order of lines is the order on the wire,
  per server;
- `header`: what Apache's own decoder (`RemotingCommand.decode`) reads in the frame's header;
- `frame`: the frame in base64, from its leading length to the end of its body.

Frames per conversation:

| conversation | json | binary |
|---|---|---|
{table}
"""


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0]) if arguments else DEFAULT_FOLDER
    jars = get_jars("5x")
    counts = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory(prefix="golden-") as work:
            counts[kind] = record(jars, Path(work), kind, folder)
    table = "\n".join(
        f"| {name} | {counts['json'][name]} | {counts['binary'][name]} |" for name in sorted(counts["json"])
    )
    date = datetime.date.today().isoformat()
    (folder / "README.md").write_text(
        README.format(version=jars.version, date=date, table=table), encoding="utf-8"
    )
    print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
