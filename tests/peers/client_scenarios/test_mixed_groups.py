"""Mixed company: Java and Python members in one group, Java's messages in Python's hands, and Java's admin
tools that ask Python's consumers."""

from __future__ import annotations

import base64
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kerolox.blocking import Message, Producer, PushConsumer, PushOptions, Queue, Received
from kerolox.client.consume import allocation
from kerolox.client.consume.outcomes import Retry

from ..driver import JavaDriver, JavaError
from ..scenarios.client import Client, Handle, Record, missing, out_of_order, wait_until
from .conftest import Target, now

Unique = Callable[[str], str]
QUEUES = 6


@pytest.fixture
def java(target: Target, java_driver: JavaDriver) -> Client:
    return Client(java_driver, target.nameserver, target.kind)


def all_is_consumed(java: Client, group: str) -> bool:
    """Whether the saved progress is the end of all queues, as Java's tool says."""
    try:
        printed = java.mqadmin("consumerProgress", "-g", group)
    except JavaError as error:
        if "CODE: 206" in error.stack:
            return False  # nothing is saved yet
        raise
    # 5.x says "Consume Diff Total", 4.9 only the end of it.
    return "Diff Total: 0" in printed


class Member:
    """A Python member that notes what it gets the way Java's recorder does."""

    def __init__(self, target: Target, group: str, topic: str, **options: Any) -> None:
        self.records: list[Record] = []
        self.messages: list[Received] = []
        self.fail: Callable[[Received], None] | None = None
        self._lock = threading.Lock()
        self.consumer = PushConsumer(
            target.nameserver, group=group, options=PushOptions(start="first", **options)
        )
        self.consumer.subscribe(topic, self._take)
        self.consumer.open()
        self.client_id = self.consumer.inner.client.client_id

    def _take(self, message: Received) -> None:
        record = {
            "msgId": message.msg_id,
            "body": base64.b64encode(message.body).decode(),
            "receivedAt": int(time.time() * 1000),
            "queueOffset": message.queue_offset,
        }
        with self._lock:
            self.records.append(record)
            self.messages.append(message)
        if self.fail is not None:
            self.fail(message)

    def wait(self, count: int) -> None:
        wait_until(lambda: len({record["msgId"] for record in self.records}) >= count, f"{count} came")

    def close(self) -> None:
        self.consumer.close()


# --- the same shares -------------------------------------------------------------------------------------


def room(name: str) -> str:
    return name.partition("@")[0]


STRATEGIES = {
    "average": allocation.average,
    "circle": allocation.circle,
    "consistent_hash": allocation.consistent_hash,
    "machine_room": allocation.machine_room(["room1", "room2"]),
    "nearby": allocation.nearby(lambda queue: room(queue.broker), room),
}


def test_shares_are_those_of_java(java_driver: JavaDriver) -> None:
    chance = random.Random(11)
    cases: list[dict[str, Any]] = []
    for name in STRATEGIES:
        for _ in range(60):
            brokers = chance.sample(
                ["broker-a", "room1@a", "room1@b", "room2@a", "room3@c", "room2@", "a@b@c", "Zimmer"],
                chance.randint(1, 4),
            )
            queues = sorted(
                Queue("topic", broker, number) for broker in brokers for number in range(chance.randint(1, 9))
            )
            members = sorted(
                {
                    f"{chance.choice(['room1', 'room2', 'room4', '10.0.0.7'])}@{chance.randint(1, 99999)}#{n}"
                    for n in range(chance.randint(1, 12))
                }
            )
            cases.append({"strategy": name, "queues": queues, "members": members})
    theirs = java_driver.call("shares", cases=cases)
    for case, shares in zip(cases, theirs, strict=True):
        ours = [
            [list(queue) for queue in STRATEGIES[case["strategy"]](me, case["queues"], case["members"])]
            for me in case["members"]
        ]
        assert ours == shares, case


# --- one group -------------------------------------------------------------------------------------------


class Group:
    """Java and Python members of one group."""

    def __init__(self, java: Client, target: Target, name: str, topic: str, *, ordered: bool) -> None:
        self.java, self.target, self.name, self.topic, self.ordered = java, target, name, topic, ordered
        self.records: list[Record] = []
        self.members: dict[str, Any] = {}  # by client id
        self.admin = java.admin()

    def join(self, kind: str) -> str:
        if kind == "java":
            # Each member is a client of its own.
            member: Any = self.java.push(
                self.name, self.topic, body=True, orderly=self.ordered,
                options={"instanceName": f"i{len(self.members)}-{time.monotonic_ns()}"},
            )  # fmt: skip
            client_id = str(member.method("buildMQClientId"))
        else:
            member = Member(self.target, self.name, self.topic, ordered=self.ordered)
            client_id = member.client_id
        self.members[client_id] = member
        return client_id

    def leave(self, client_id: str) -> None:
        member = self.members.pop(client_id)
        if isinstance(member, Member):
            member.close()
            self.records += member.records
        else:
            member.stop_keeping(self.records)

    def shares(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for client_id in self.members:
            info = self.admin.method("getConsumerRunningInfo", self.name, client_id, False)
            found[client_id] = {
                int(re.search(r"queueId=(\d+)", key)[1])  # type: ignore[index]
                for key, state in info["mqTable"].items()
                if f"topic={self.topic}," in key and not state.get("droped")
            }
        return found

    def settled(self) -> None:
        """Every queue has one member, and shares are as even as can be."""

        def even() -> bool:
            try:
                shares = list(self.shares().values())
            except Exception:
                return False
            sizes = [len(share) for share in shares]
            return sum(sizes) == QUEUES == len(set().union(*shares)) and max(sizes) - min(sizes) <= 1

        wait_until(even, "the queues are divided among all members")

    def collect(self) -> list[Record]:
        for member in self.members.values():
            if not isinstance(member, Member):
                self.records += member.drain()
        return self.records + [
            record
            for member in self.members.values()
            if isinstance(member, Member)
            for record in list(member.records)
        ]


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "in order"])
def test_java_and_python_share_a_group(target: Target, java: Client, unique: Unique, ordered: bool) -> None:
    topic = now(target.create_topic(unique("topic"), QUEUES))
    group = Group(java, target, unique("group"), topic, ordered=ordered)
    load = java.load(topic, lanes=QUEUES, producers=1, paceMs=5)
    first_java = group.join("java")
    group.settled()
    first_python = group.join("python")
    group.settled()
    group.join("python")
    group.join("java")
    group.settled()
    group.leave(first_python)
    group.settled()
    group.leave(first_java)
    group.settled()
    group.join("python")
    group.settled()
    load.more(100)
    sent = load.end()
    wait_until(lambda: not missing(group.collect(), sent["acked"]), "all that was acknowledged is received")
    if ordered:
        assert out_of_order(group.collect()) == []
    # Before they leave: Java's client does not wait for a handler that is about to return. What was handed to
    # that is left for whoever comes next, and here nobody comes.
    wait_until(lambda: all_is_consumed(java, group.name), "the saved progress is the end of all queues")
    for client_id in list(group.members):
        group.leave(client_id)
    # What one kind saved, the other begins behind: nothing is left to do.
    assert all_is_consumed(java, group.name)


# --- Java's messages -------------------------------------------------------------------------------------


def test_python_reads_what_java_sends(target: Target, java: Client, unique: Unique) -> None:
    topic = now(target.create_topic(unique("topic"), 1))
    member = Member(target, unique("group"), topic)
    producer = java.producer(unique("pid"), trace=True)
    expected: dict[str, str] = {}
    sent = producer.send(topic, "grün", tags="t", keys="a b", properties={"colour": "red"})
    expected[sent["msgId"]] = "grün"
    for number in range(5):
        sent = producer.send(topic, f"ordered {number}", selector="hash", arg="key")
        expected[sent["msgId"]] = f"ordered {number}"
    long = "ab" * 5000
    expected[producer.send(topic, long)["msgId"]] = long  # compressed
    producer.send_batch([{"topic": topic, "text": f"batch {n}"} for n in range(5)])
    producer.send(topic, "delayed", delayLevel=1)
    for local in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"):
        transactional = java.producer(unique("pid"), transaction={"local": local, "check": local})
        transactional.do("producer.sendTransaction", message={"topic": topic, "text": local})
    texts = {*expected.values(), *(f"batch {n}" for n in range(5)), "delayed", "COMMIT_MESSAGE"}
    wait_until(lambda: {m.text for m in member.messages} >= texts, "all came")
    member.close()
    assert {m.text for m in member.messages} == texts
    assert len(member.messages) == len(texts)
    by_id = {m.msg_id: m for m in member.messages}
    for msg_id, text in expected.items():
        assert by_id[msg_id].text == text
    first = by_id[next(iter(expected))]
    assert (first.tags, first.keys, first.get("colour")) == ("t", ("a", "b"), "red")
    numbers = [m.text for m in member.messages if m.text.startswith("ordered")]
    assert sorted(numbers) == [f"ordered {number}" for number in range(5)]


def test_java_s_tool_reads_the_trace_of_a_consumer(target: Target, java: Client, unique: Unique) -> None:
    topic, group = now(target.create_topic(unique("topic"), 1)), unique("group")
    member = Member(target, group, topic, trace=True)
    with Producer(target.nameserver, group=unique("pid")) as producer:
        receipt = producer.send(Message(topic, "hello", keys="k1"))
    member.wait(1)
    member.close()
    printed = ""

    def found() -> bool:
        nonlocal printed
        printed = java.mqadmin("queryMsgTraceById", "-i", receipt.msg_id)
        return group in printed

    wait_until(found, "the trace is found")
    assert re.search(rf"SubAfter|{re.escape(group)}.*success", printed, re.IGNORECASE | re.DOTALL), printed


# --- what administrators ask -----------------------------------------------------------------------------


class Asked:
    """A Python member that has consumed three messages of one queue, and Java's tools."""

    def __init__(self, target: Target, java: Client, unique: Unique) -> None:
        self.java = java
        self.topic = now(target.create_topic(unique("topic"), 1))
        self.group = unique("group")
        with Producer(target.nameserver, group=unique("pid")) as producer:
            self.receipts = [producer.send(Message(self.topic, f"m{n}")) for n in range(3)]
        self.member = Member(target, self.group, self.topic, save_s=0.5)
        self.member.wait(3)
        self.admin: Handle = java.admin()


@pytest.fixture
def asked(target: Target, java: Client, unique: Unique) -> Any:
    asked = Asked(target, java, unique)
    yield asked
    asked.member.close()


def test_what_a_consumer_does_and_how_far_it_is(asked: Asked) -> None:
    status = asked.java.mqadmin("consumerStatus", "-g", asked.group, "-i", asked.member.client_id)
    assert "#Consumer MQ Detail#" in status
    assert re.search(rf"^{re.escape(asked.topic)} +broker-a +0 ", status, re.MULTILINE), status
    threads = asked.admin.method("getConsumerRunningInfo", asked.group, asked.member.client_id, True)
    assert "kerolox" in threads["jstack"]
    connection = asked.java.mqadmin("consumerConnection", "-g", asked.group)
    assert asked.member.client_id in connection
    wait_until(
        lambda: all_is_consumed(asked.java, asked.group),
        "the broker knows how far it is",
    )
    offsets = asked.admin.method("getConsumeStatus", asked.topic, asked.group, asked.member.client_id)
    assert list(offsets[asked.member.client_id].values()) == [3]


def test_a_message_once_more(asked: Asked) -> None:
    of_topic = [] if asked.java.driver.jars.is_4x else ["-t", asked.topic]
    printed = asked.java.mqadmin(
        "queryMsgById", *of_topic, "-g", asked.group, "-d", asked.member.client_id,
        "-i", asked.receipts[1].offset_msg_id,
    )  # fmt: skip
    assert "CR_SUCCESS" in printed
    assert [m.text for m in asked.member.messages[3:]] == ["m1"]

    def later(message: Received) -> None:
        raise Retry("not now")

    def broken(message: Received) -> None:
        raise ValueError("told to raise")

    for fail, expected in ((later, "CR_LATER"), (broken, "CR_THROW_EXCEPTION")):
        asked.member.fail = fail
        result = asked.admin.method(
            "consumeMessageDirectly", asked.group, asked.member.client_id, asked.topic,
            asked.receipts[0].offset_msg_id,
        )  # fmt: skip
        assert result["consumeResult"] == expected
    assert "told to raise" in str(result["remark"])


def test_back_to_a_time_while_it_works(asked: Asked, target: Target, unique: Unique) -> None:
    before = len(asked.member.messages)
    # For a 4.9 broker a group without progress does not exist.
    wait_until(lambda: all_is_consumed(asked.java, asked.group), "the broker knows how far it is")
    printed = asked.java.mqadmin("resetOffsetByTime", "-g", asked.group, "-t", asked.topic, "-s", "1000")
    assert asked.topic in printed or asked.group in printed, printed
    # A pull that waits at the broker learns of it when it is answered.
    with Producer(target.nameserver, group=unique("pid")) as producer:
        producer.send(Message(asked.topic, "after"))
    wait_until(
        lambda: {m.text for m in asked.member.messages[before:]} >= {"m0", "m1", "m2", "after"}, "all again"
    )


def test_progress_copied_to_another_group(asked: Asked, target: Target, unique: Unique) -> None:
    other = unique("other")
    asked.member.close()
    asked.java.mqadmin("updateSubGroup", "-b", target.broker.address, "-g", other)
    asked.java.mqadmin("cloneGroupOffset", "-s", asked.group, "-d", other, "-t", asked.topic, "-o", "false")
    with Producer(target.nameserver, group=unique("pid")) as producer:
        producer.send(Message(asked.topic, "new"))
    member = Member(target, other, asked.topic)
    member.wait(1)
    member.close()
    assert [m.text for m in member.messages] == ["new"]
