"""Apache's broker, clients and mqadmin on our name server."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from .conftest import Factory
from .driver import JavaDriver, JavaError
from .ours import OurNameServer
from .processes import JavaBroker, JavaNameServer
from .wire import UPDATE_BROKER_CONFIG, request

Unique = Callable[[str], str]

GET_BROKER_CLUSTER_INFO, GET_ALL_TOPICS = 106, 206


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurNameServer]:
    server = OurNameServer(tmp_path_factory.mktemp("ours"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def broker(java_session: Factory, ours: OurNameServer, java_nameserver: JavaNameServer) -> JavaBroker:
    """Apache's broker, registered with our name server and with Apache's at once."""
    return java_session.broker(
        [ours.address, java_nameserver.address], name="broker-both", cluster="BothCluster"
    )


def brokers(address: str) -> set[str]:
    return set(re.findall(rb'"brokerName":"([^"]+)"', request(address, GET_BROKER_CLUSTER_INFO).body))


def topics(address: str) -> set[str]:
    return set(msgspec.json.decode(request(address, GET_ALL_TOPICS).body)["topicList"])


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_a_broker_registers_unregisters_and_is_missed(java: Factory, ours: OurNameServer) -> None:
    broker = java.broker(ours.address, name="broker-coming-and-going", cluster="Passing")
    assert b"broker-coming-and-going" in brokers(ours.address)
    # RocketMQ 4 makes the topic of half messages when it needs it.
    half = set() if broker.jars.is_4x else {"RMQ_SYS_TRANS_HALF_TOPIC"}
    assert {"TBW102", "SELF_TEST_TOPIC", "Passing"} | half <= topics(ours.address)
    broker.stop()
    wait_until(lambda: b"broker-coming-and-going" not in brokers(ours.address))
    broker.start()
    assert b"broker-coming-and-going" in brokers(ours.address)
    broker.kill()
    # Its connection is gone: it is forgotten at once, not after 120 seconds.
    wait_until(lambda: b"broker-coming-and-going" not in brokers(ours.address), 10)
    assert "Passing" not in topics(ours.address)


def test_ten_thousand_messages_while_one_of_two_name_servers_is_killed(
    java: Factory, java_driver: JavaDriver, tmp_path: Path, unique: Unique
) -> None:
    servers = [OurNameServer(tmp_path / name) for name in ("one", "two")]
    try:
        for server in servers:
            server.start()
        both = ";".join(server.address for server in servers)
        broker = java.broker(both, name="broker-on-two")
        topic, call = unique("topic"), java_driver.call
        for server in servers:
            assert b"broker-on-two" in brokers(server.address)
        java_driver.create_topic(both, broker.address, topic)
        consumer = call(
            "push.start", group=unique("group"), namesrv=both,
            subscriptions=[{"topic": topic, "expression": "*"}],
            options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        )  # fmt: skip
        producer = call("producer.start", group=unique("pid"), namesrv=both)
        half = call(
            "producer.sendMany", handle=producer, topic=topic, count=5000, size=128, threads=4, ids=True
        )
        sent = {row[1] for row in half["ids"]}
        killer = threading.Thread(target=servers[0].kill)
        killer.start()
        rest = call(
            "producer.sendMany", handle=producer, topic=topic, count=5000, size=128, threads=4, ids=True
        )
        killer.join()
        # A route asked for anew has only the survivor to come from.
        other = call("producer.start", group=unique("pid"), namesrv=both)
        late = until_sent(java_driver, other, {"topic": topic, "text": "after the kill"})
        assert late["status"] == "SEND_OK"
        sent |= {row[1] for row in rest["ids"]} | {late["msgId"]}
        assert (half["failed"], rest["failed"], len(sent)) == (0, 0, 10_001)
        waited = call("push.waitCount", handle=consumer, count=10_001, distinct=True, timeoutMs=60_000)
        assert waited["reached"]
        got = call("push.drain", handle=consumer)
        assert {record["msgId"] for record in got} == sent
        # The killed one comes back empty and learns the broker again by its next registration.
        servers[0] = OurNameServer(tmp_path / "one", port=servers[0].port)
        servers[0].start()
        request(broker.address, UPDATE_BROKER_CONFIG, body=b"brokerPermission=6")  # registers at once
        wait_until(lambda: b"broker-on-two" in brokers(servers[0].address), 60)
    finally:
        for server in servers:
            server.kill()


def until_sent(driver: JavaDriver, producer: str, message: dict[str, str]) -> dict[str, str]:
    """Send, again if need be: Java's client fails when it happens to ask the dead name server first."""
    for _ in range(5):
        try:
            return dict(driver.call("producer.send", handle=producer, message=message))
        except JavaError as error:
            if "connect to" not in error.stack:
                raise
    raise AssertionError("five times no living name server was found")


class Twice:
    """Runs an mqadmin command against both name servers and compares what it prints."""

    def __init__(self, driver: JavaDriver, ours: str, theirs: str) -> None:
        self.driver, self.ours, self.theirs = driver, ours, theirs

    def __call__(self, command: str, *args: str) -> str:
        printed = [plain(self._ask(command, server, *args), server) for server in (self.ours, self.theirs)]
        assert printed[0] == printed[1], f"{command}: ours\n{printed[0]}\ntheirs\n{printed[1]}"
        return printed[0]

    def _ask(self, command: str, server: str, *args: str) -> str:
        if command == "clusterList":
            return self.driver.cluster_list(server, *args)
        return self.driver.mqadmin(command, "-n", server, *args)


def plain(text: str, server: str) -> str:
    """Without what differs from call to call: the server asked, figures that move, the order of sets."""
    text = text.replace(server, "<nameserver>")
    text = re.sub(r"\b\d+-\d+\(", "<n>(", text)
    text = re.sub(r"(?<![\d.])\d+\.\d+(?![\d.])(\([^)]*\))?", "<n>", text)
    return "\n".join(sorted(re.sub(r"[ \t]+", " ", line).rstrip() for line in text.splitlines()))


@pytest.fixture
def twice(
    java_driver: JavaDriver,
    ours: OurNameServer,
    java_nameserver: JavaNameServer,
    broker: JavaBroker,
    unique: Unique,
) -> Twice:
    topic = unique("topic")
    java_driver.create_topic(ours.address, broker.address, topic)
    wait_until(lambda: topic in topics(ours.address) and topic in topics(java_nameserver.address))
    return Twice(java_driver, ours.address, java_nameserver.address)


def test_mqadmin_prints_the_same_of_cluster_and_topics(
    twice: Twice, broker: JavaBroker, unique: Unique
) -> None:
    (topic,) = [name for name in topics(twice.ours) if unique("topic").rsplit("_", 1)[0] in name]
    if twice.driver.jars.is_4x:  # whose tool tells of all clusters or none, and the two serve others too
        clusters, theirs = (
            "\n".join(re.findall(".*BothCluster.*", plain(twice.driver.cluster_list(server), server)))
            for server in (twice.ours, twice.theirs)
        )
        assert clusters == theirs
    else:
        clusters = twice("clusterList", "-c", "BothCluster")
    assert "broker-both" in clusters
    assert broker.address in clusters
    assert topic in twice.driver.mqadmin("topicList", "-n", twice.ours)
    listed = {line for line in twice.driver.mqadmin("topicList", "-n", twice.ours).splitlines() if line}
    theirs = {line for line in twice.driver.mqadmin("topicList", "-n", twice.theirs).splitlines() if line}
    # The two serve other brokers too; of this one, and of every system topic, both tell the same.
    assert {topic, "BothCluster", "broker-both", "TBW102"} <= listed & theirs
    assert topic in twice("topicClusterList", "-t", topic) or "BothCluster" in twice(
        "topicClusterList", "-t", topic
    )
    route = twice("topicRoute", "-t", topic)
    assert broker.address in route
    assert '"writeQueueNums":4' in route.replace(" ", "")
    assert "CODE: 17" in java_error(twice.driver, "topicRoute", "-n", twice.ours, "-t", "NoSuchTopic")
    # Ours says the same, and then why.
    ours, theirs = (
        java_error(twice.driver, "topicRoute", "-n", server, "-t", "NoSuchTopic")
        for server in (twice.ours, twice.theirs)
    )
    assert ours.startswith(theirs)


def java_error(driver: JavaDriver, *args: str) -> str:
    """What a failing command says, without the stack of its JVM and without addresses."""
    try:
        full = driver.mqadmin_full(*args)
        text = full["out"] + full["err"]
    except JavaError as error:
        text = error.stack
    said = re.findall(r"CODE: \d+\s+DESC: [^\n]*", text) or [text]
    return str(said[0])


def test_mqadmin_changes_key_values(twice: Twice, ours: OurNameServer) -> None:
    assert "success" in twice("updateKvConfig", "-s", "PEERS_NS", "-k", "colour", "-v", "red green")
    value = request(ours.address, 101, {"namespace": "PEERS_NS", "key": "colour"})
    assert value.ext_fields["value"] == "red green"
    assert "success" in twice("deleteKvConfig", "-s", "PEERS_NS", "-k", "colour")
    assert request(ours.address, 101, {"namespace": "PEERS_NS", "key": "colour"}).code == 22


def test_mqadmin_reads_and_changes_the_name_servers_settings(twice: Twice) -> None:
    def settings(server: str) -> dict[str, str]:
        printed = twice.driver.mqadmin("getNamesrvConfig", "-n", server)
        return dict(re.findall(r"^(\S+)\s*=\s*(\S*)\s*$", printed, re.MULTILINE))

    before = settings(twice.ours)
    newer = () if twice.driver.jars.is_4x else ("scanNotActiveBrokerInterval",)
    for key in ("listenPort", "orderMessageEnable", "kvConfigPath", *newer):
        assert key in before
        assert key in settings(twice.theirs)
    assert before["orderMessageEnable"] == settings(twice.theirs)["orderMessageEnable"] == "false"
    said = twice("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert "success" in said
    assert (
        settings(twice.ours)["orderMessageEnable"] == settings(twice.theirs)["orderMessageEnable"] == "true"
    )
    twice("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
    if twice.driver.jars.is_4x:
        return
    # A black-listed key is refused by both, with the same words.
    refused = [
        java_error(twice.driver, "updateNamesrvConfig", "-n", server, "-k", "configBlackList", "-v", "x")
        for server in (twice.ours, twice.theirs)
    ]
    assert refused[0] == refused[1]


def test_mqadmin_takes_write_permission_and_gives_it_back(twice: Twice, unique: Unique) -> None:
    (topic,) = [name for name in topics(twice.ours) if unique("topic").rsplit("_", 1)[0] in name]

    def perm(server: str) -> set[str]:
        return set(
            re.findall(r'"perm":\s*(\d)', twice.driver.mqadmin("topicRoute", "-n", server, "-t", topic))
        )

    wiped = twice("wipeWritePerm", "-b", "broker-both")
    assert re.search(r"wipe write perm of broker\[broker-both\].*OK, \d+", wiped)
    assert perm(twice.ours) == perm(twice.theirs) == {"4"}
    twice("topicRoute", "-t", topic)
    added = twice("addWritePerm", "-b", "broker-both")
    assert "OK" in added
    assert perm(twice.ours) == perm(twice.theirs) == {"6"}
