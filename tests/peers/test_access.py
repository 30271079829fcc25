"""Apache's Java client and mqadmin at our guarded servers: with no more rights than needed, and with less."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.access.guard import NOT_KNOWN

from .access_tool import Tool, manage
from .driver import JavaDriver, JavaError
from .guarded import ADMIN, NOBODY, Guarded, Keys, Rights, ours
from .scenarios.client import Client, body, wait_until

Unique = Callable[[str], str]
NO_PERMISSION = 16
SETTINGS = {
    "autoCreateTopicEnable": False,
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 1000,
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = ours(tmp_path_factory.mktemp("guarded-for-java"), SETTINGS, {})
    yield made
    made.finish()


@pytest.fixture
def as_(guarded: Guarded, java_driver: JavaDriver) -> Callable[[Keys], Client]:
    return lambda keys: Client(java_driver, guarded.nameserver, keys=keys.of_java)


@pytest.fixture
def user(guarded: Guarded, as_: Callable[[Keys], Client], unique: Unique) -> Callable[[Rights], Client]:
    """Somebody new, with these rights."""

    def make(rights: Rights) -> Client:
        keys = Keys(unique("user"), "a good secret, é€")
        asyncio.run(guarded.allow(keys, rights))
        return as_(keys)

    return make


@pytest.fixture
def topic(guarded: Guarded, unique: Unique) -> str:
    return asyncio.run(guarded.create_topic(unique("topic"), 2))


@pytest.fixture
def group(guarded: Guarded, unique: Unique) -> str:
    """A group whose retry topic is there already: else it may take a client half a minute to see it."""
    name = unique("group")
    asyncio.run(guarded.create_topic(f"%RETRY%{name}", 1))
    return name


def texts(records: list[dict[str, Any]]) -> list[str]:
    return sorted(body(record).decode() for record in records)


# --- with the rights that are needed --------------------------------------------------------------------


def test_java_sends_and_reads(
    user: Callable[[Rights], Client], topic: str, group: str, unique: Unique
) -> None:
    writer = user({f"Topic:{topic}": ["Pub"]})
    reader = user({f"Topic:{topic}": ["Sub"], f"Group:{group}": ["Sub"]})
    push = reader.push(group, topic, body=True, outcome={"failTimes": 1})  # each comes again
    producer = writer.producer(unique("pid"))
    queue = producer.send(topic, "sync", tags="t", keys="k1", properties={"colour": "röt €"})["queue"]
    producer.send(topic, "async", mode="async")
    producer.send(topic, "one way", mode="oneway")
    producer.send(topic, "to a queue", queue=queue)
    producer.send(topic, "later", delayLevel=1)
    producer.send_batch([{"topic": topic, "text": f"b{n}"} for n in range(3)])
    producer.send_many(topic, 50, threads=2, mode="async")
    sent = ["sync", "async", "one way", "to a queue", "later", *(f"b{n}" for n in range(3))]
    sent += [str(n) for n in range(50)]
    push.wait(2 * len(sent), distinct=False)
    records = push.drain()
    assert texts([each for each in records if each["reconsumeTimes"] == 1]) == sorted(sent)


def test_java_pulls(
    guarded: Guarded, user: Callable[[Rights], Client], as_: Callable[[Keys], Client], unique: Unique
) -> None:
    topic, group = asyncio.run(guarded.create_topic(unique("topic"), 1)), unique("group")
    sent = as_(ADMIN).producer(unique("pid"))
    queue = sent.send(topic, "0")["queue"]
    sent.send_many(topic, 4, first=1, queue=queue)
    reader = user({f"Topic:{topic}": ["Sub"], f"Group:{group}": ["Sub"]})
    lite = reader.lite(group, assign=[queue], options={"autoCommit": False})
    assert texts(lite.poll_from(queue, 0, 5)) == ["0", "1", "2", "3", "4"]
    lite.do("lite.commit")
    wait_until(lambda: lite.method("committed", queue) == 5, "the offset is saved")
    pull = reader.pull(group)
    assert pull.method("maxOffset", queue) == 5
    assert pull.method("minOffset", queue) == 0
    found = pull.method("pull", queue, "*", 0, 32)
    assert found["status"] == "FOUND"
    assert texts(found["messages"]) == ["0", "1", "2", "3", "4"]


def test_java_transactions_end(user: Callable[[Rights], Client], topic: str, unique: Unique) -> None:
    group = unique("group")
    reader = user({f"Topic:{topic}": ["Sub"], f"Group:{group}": ["Sub"]})
    push = reader.push(group, topic, body=True)
    writer = user({f"Topic:{topic}": ["Pub"]})
    rules = {"commit": "COMMIT_MESSAGE", "rollback": "ROLLBACK_MESSAGE", "asked": "UNKNOW"}
    for text, local in rules.items():
        producer = writer.producer(unique("pid"), transaction={"local": local, "check": "COMMIT_MESSAGE"})
        producer.do("producer.sendTransaction", message={"topic": topic, "text": text})
    assert texts(push.take(2)) == ["asked", "commit"]


def test_java_replies(user: Callable[[Rights], Client], topic: str, unique: Unique) -> None:
    group = unique("group")
    replies = {"Topic:DefaultCluster_REPLY_TOPIC": ["Pub"]}
    replier = user({f"Topic:{topic}": ["Sub"], f"Group:{group}": ["Sub"], **replies})
    answering = replier.replier(topic, group, "you said ")
    asking = user({f"Topic:{topic}": ["Pub"]}).producer(unique("pid"))
    answer = asking.method("request", {"topic": topic, "text": "grün"}, 30_000)
    assert body(answer).decode() == "you said grün"
    wait_until(lambda: len(answering.do("replier.sent")) == 1, "the reply is acknowledged")
    assert [each["status"] for each in answering.do("replier.sent")] == ["SEND_OK"]


def test_what_java_gives_up_is_a_dead_letter(
    guarded: Guarded, user: Callable[[Rights], Client], topic: str, group: str, unique: Unique
) -> None:
    everything = {f"Topic:{topic}": ["Pub", "Sub"], f"Group:{group}": ["Sub"]}
    client = user(everything)
    push = client.push(group, topic, outcome={"failTimes": 9}, options={"maxReconsumeTimes": 1})
    client.producer(unique("pid")).send(topic, "poison")
    push.wait(2, distinct=False)
    dead = {"topic": f"%DLQ%{group}", "brokerName": guarded.broker.name, "queueId": 0}
    # Dead letters belong to their group: who consumes with it may look at them.
    pull = client.pull(group)

    def found() -> bool:
        try:
            return bool(pull.method("maxOffset", dead) == 1)
        except JavaError as error:  # there is none yet
            return error.code == NO_PERMISSION

    wait_until(found, "a dead letter")
    assert texts(pull.method("pull", dead, "*", 0, 1)["messages"]) == ["poison"]


@pytest.mark.full
def test_java_consumes_in_order(
    user: Callable[[Rights], Client], topic: str, group: str, unique: Unique
) -> None:
    """Which locks its queues."""
    reader = user({f"Topic:{topic}": ["Sub"], f"Group:{group}": ["Sub"]})
    push = reader.push(group, topic, body=True, orderly=True)
    user({f"Topic:{topic}": ["Pub"]}).producer(unique("pid")).send_many(topic, 30)
    assert texts(push.take(30)) == sorted(str(n) for n in range(30))


@pytest.mark.full
def test_java_signs_binary_headers_too(
    guarded: Guarded, java_driver_binary: JavaDriver, topic: str, group: str, unique: Unique
) -> None:
    keys = Keys(unique("user"), "a good secret, é€")
    asyncio.run(guarded.allow(keys, {f"Topic:{topic}": ["Pub", "Sub"], f"Group:{group}": ["Sub"]}))
    client = Client(java_driver_binary, guarded.nameserver, keys=keys.of_java)
    push = client.push(group, topic, body=True)
    producer = client.producer(unique("pid"))
    producer.send(topic, "x", tags="ü", properties={"colour": "röt €"})
    producer.send_batch([{"topic": topic, "text": "y"}, {"topic": topic, "text": "z"}])
    assert texts(push.take(3)) == ["x", "y", "z"]
    stranger = Client(java_driver_binary, guarded.nameserver, keys=Keys(keys.access_key, "guessed").of_java)
    refused(lambda: stranger.mqadmin("brokerStatus", "-b", guarded.broker.address))


@pytest.mark.full
def test_a_namespace_is_a_prefix_in_rules(
    guarded: Guarded, user: Callable[[Rights], Client], unique: Unique
) -> None:
    name, topic = unique("NS").replace("_", ""), unique("topic")
    for prefix in (f"{name}%", "Other%"):
        asyncio.run(guarded.create_topic(f"{prefix}{topic}", 1))
    asyncio.run(guarded.create_topic(f"%RETRY%{name}%G", 1))
    client = user({f"Topic:{name}%*": ["Pub", "Sub"], f"Group:{name}%*": ["Sub"]})
    inside: dict[str, Any] = {"options": {"namespace": name}}
    client.producer(unique("pid"), **inside).send(topic, "x")
    push = client.push("G", topic, body=True, **inside)
    assert texts(push.take(1)) == ["x"]
    with pytest.raises(JavaError, match="No route info"):
        client.producer(unique("pid"), options={"namespace": "Other"}).send(topic, "x")


# --- without them ---------------------------------------------------------------------------------------


def refused(attempt: Callable[[], Any]) -> JavaError:
    with pytest.raises(JavaError) as error:
        attempt()
    assert "CODE: 16" in error.value.stack, error.value
    return error.value


def test_java_goes_no_further_than_it_may(
    guarded: Guarded,
    user: Callable[[Rights], Client],
    as_: Callable[[Keys], Client],
    topic: str,
    unique: Unique,
) -> None:
    group, other = unique("group"), asyncio.run(guarded.create_topic(unique("other"), 1))
    writer = user({f"Topic:{topic}": ["Pub"]})
    reader = user({f"Topic:{topic}": ["Sub"], f"Group:{group}": ["Sub"]})
    producer = writer.producer(unique("pid"))
    queue = producer.send(topic, "x")["queue"]
    elsewhere = {"topic": other, "brokerName": guarded.broker.name, "queueId": 0}
    said = refused(lambda: producer.send(other, "x", queue=elsewhere))
    assert "has no permission" in said.stack
    refused(lambda: reader.producer(unique("pid")).send(topic, "x", queue=queue))
    pull = writer.pull(group)
    refused(lambda: pull.method("pull", queue, "*", 0, 1))
    others = reader.pull(unique("group"))  # another group than the one it may consume with
    refused(lambda: others.method("pull", queue, "*", 0, 1))
    retries = {"topic": f"%RETRY%{unique('group')}", "brokerName": guarded.broker.name, "queueId": 0}
    refused(lambda: producer.send(retries["topic"], "x", queue=retries))
    for command in (
        ["updateTopic", "-b", guarded.broker.address, "-t", "mine"],
        ["deleteTopic", "-c", "DefaultCluster", "-t", topic],
        ["updateBrokerConfig", "-b", guarded.broker.address, "-k", "brokerPermission", "-v", "6"],
    ):
        refused(lambda command=command: writer.mqadmin(*command))  # type: ignore[misc]
    stranger = as_(Keys(ADMIN.access_key, "guessed it"))
    said = refused(lambda: stranger.mqadmin("brokerStatus", "-b", guarded.broker.address))
    assert NOT_KNOWN[:50] in said.stack


@pytest.mark.parametrize("who", ["a wrong secret", "an unknown key", "no keys"])
def test_java_is_not_known(
    guarded: Guarded, as_: Callable[[Keys], Client], topic: str, unique: Unique, who: str
) -> None:
    keys = {
        "a wrong secret": Keys(ADMIN.access_key, "guessed it"),
        "an unknown key": Keys("nobody-knows", ADMIN.secret_key),
        "no keys": NOBODY,
    }[who]
    queue = as_(ADMIN).producer(unique("pid")).send(topic, "x")["queue"]
    stranger = as_(keys)
    texts = set()
    for command in (
        ["brokerStatus", "-b", guarded.broker.address],
        ["updateTopic", "-b", guarded.broker.address, "-t", "mine"],
        ["topicRoute", "-t", topic],
        ["clusterList"],
    ):
        error = refused(lambda command=command: stranger.mqadmin(*command))  # type: ignore[misc]
        texts |= set(re.findall(r"CODE: 16  DESC: (.{50})", error.stack))
    assert texts == {NOT_KNOWN[:50]}, "one text, whatever was wrong"
    # Java's client does not tell that the name server refused it the way to the broker.
    with pytest.raises(JavaError, match="not exist"):
        stranger.producer(unique("pid")).send(topic, "x", queue=queue)
    with pytest.raises(JavaError, match="No route info"):
        stranger.producer(unique("pid")).send(topic, "x")
    with pytest.raises(JavaError, match="not exist"):
        stranger.pull(unique("group")).method("pull", queue, "*", 0, 1)


# --- users and rules ------------------------------------------------------------------------------------


@pytest.fixture
def tool(guarded: Guarded, java_driver: JavaDriver, tmp_path: Path) -> Tool:
    if java_driver.jars.is_4x:
        pytest.skip("mqadmin 4.9 has no such commands")
    return Tool(java_driver, guarded, tmp_path / "tools.yml")


def test_mqadmin_manages_users_and_rules(tool: Tool) -> None:
    came = dict(manage(tool, ("-b", tool.address)))
    assert came["createUser -u bob -p bob's-secret"] == [["create", "user", "to", "BROKER", "success."]]
    assert came["createUser -u bob -p again"] == "16"
    header = ["#UserName", "#Password", "#UserType", "#UserStatus"]
    assert came["getUser -u nobody"] == []
    assert came["listUser -f caro"] == [header, ["carol", "carols", "Normal", "enable"]]
    rules = came["listAcl -s bob"]
    assert isinstance(rules, list)
    assert ["User:bob", "Custom", "Topic:orders", "[Get]", "[127.0.0.1]", "Deny"] in rules
    assert ["User:bob", "Custom", "Group:read*", "[Pub,", "Sub]", "null", "Allow"] in rules
    assert came["getAcl -s User:bob"] == []  # in the end
