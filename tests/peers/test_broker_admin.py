"""mqadmin against our broker and against Apache's: both are told the same, and it prints the same."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message_id import offset_id

from .driver import JavaDriver, JavaError
from .ours import OurCluster
from .processes import JavaBroker, JavaNameServer

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    cluster = OurCluster(tmp_path_factory.mktemp("ours-admin"))
    cluster.start()
    yield cluster
    assert cluster.stop() == 0, cluster.tail()
    log = (cluster.home / "stderr.log").read_text()
    assert "Traceback" not in log, log[-5000:]


class Twice:
    """Runs mqadmin at both; ``N`` and ``B`` among its words are the name server and the broker."""

    def __init__(self, driver: JavaDriver, *pairs: tuple[str, str]) -> None:
        self.driver = driver
        self.pairs = pairs  # name server, broker: ours, then theirs
        # RocketMQ 4's tool and broker have less to say; where they say it otherwise than RocketMQ 5, as
        # which ours speaks, the rule stands at the comparison.
        self.is_4x = driver.jars.is_4x

    def each(self, command: str, *words: str) -> list[str]:
        """What it prints of ours and of theirs, or the error of each."""
        printed = []
        for nameserver, broker in self.pairs:
            places = {"N": nameserver, "B": broker}
            try:
                full = self.driver.mqadmin_full(command, *(places.get(word, word) for word in words))
                text = full["out"] + full["err"]
            except JavaError as error:
                text = "\n".join(re.findall(r"CODE: \d+\s+DESC: [^\n]*", error.stack)) or error.stack
            printed.append(text.replace(nameserver, "<nameserver>").replace(broker, "<broker>"))
        return printed

    def __call__(self, command: str, *words: str, not_4x: str = "") -> str:
        """What it prints of both, but for what RocketMQ 4 says otherwise."""
        mine, other = map(plain, self.each(command, *words))
        if self.is_4x and not_4x:
            mine, other = (re.sub(not_4x, "", text) for text in (mine, other))
        assert mine == other, f"{command} {' '.join(words)}: ours\n{mine}\ntheirs\n{other}"
        return mine

    def differing_ends(self, command: str, *words: str) -> str:
        """An error of both; ours says more."""
        mine, other = self.each(command, *words)
        if self.is_4x:  # most of its refusals are a plain SYSTEM_ERROR
            other = re.sub(r"CODE: 1\b", re.match(r"CODE: \d+|", mine)[0], other)  # type: ignore[index]
        assert mine.startswith(other.split(" BROKER:")[0]), f"{command}: ours\n{mine}\ntheirs\n{other}"
        return mine


def plain(text: str) -> str:
    """Without what moves from call to call: times, ids, rates, the order of sets, the width of columns."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d([,.]\d+)?", "<time>", text)
    text = re.sub(r"\b[0-9A-F]{32}\b", "<id>", text)
    text = re.sub(r"\b1[6-9]\d{11}\b", "<ms>", text)
    text = re.sub(r"(?<![\d.])\d+\.\d+(?![\d.])", "<n>", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "<address>", text)
    text = re.sub(r"@driver-\d+", "@driver", text)
    return "\n".join(sorted(re.sub(r"[ \t]+", " ", line).strip() for line in text.splitlines()))


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        time.sleep(0.05)


@pytest.fixture
def twice(
    java_driver: JavaDriver, ours: OurCluster, java_nameserver: JavaNameServer, java_broker: JavaBroker
) -> Twice:
    return Twice(java_driver, (ours.nameserver, ours.broker), (java_nameserver.address, java_broker.address))


def made(twice: Twice, topic: str) -> str:
    said = twice("updateTopic", "-n", "N", "-b", "B", "-t", topic, "-r", "2", "-w", "2")
    assert "create topic to <broker> success" in said
    return topic


def test_cluster_and_figures(twice: Twice) -> None:
    lines = [twice.driver.cluster_list(nameserver).splitlines() for nameserver, _ in twice.pairs]
    assert lines[0][0] == lines[1][0]
    assert len(lines[0][1].split()) == len(lines[1][1].split())  # every column has its figure
    assert twice.is_4x or lines[0][1].rstrip().endswith("true")
    assert twice.is_4x or lines[0][1].split()[4] == lines[1][1].split()[4]  # the version
    mine, theirs = (
        dict(re.findall(r"^(\S+?)\s*: (.*)$", text, re.MULTILINE))
        for text in twice.each("brokerStatus", "-n", "N", "-b", "B")
    )
    # Other tests send to both meanwhile, but not to the same topics: what is compared does not move.
    same = ["brokerVersionDesc", "litePullThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity"]
    assert twice.is_4x or [mine[key] for key in same] == [theirs[key] for key in same]
    missing = {key for key in theirs.keys() - mine.keys() if "_" not in key}
    assert not missing, f"figures of Apache's broker that ours does not have: {missing}"


def test_topics(twice: Twice, unique: Unique) -> None:
    topic = made(twice, unique("topic"))
    twice("topicRoute", "-n", "N", "-t", topic)
    attributes = [] if twice.is_4x else ["-a", "+message.type=FIFO"]
    twice("updateTopic", "-n", "N", "-b", "B", "-t", topic, "-r", "3", "-w", "2", *attributes)
    assert '"readQueueNums":3' in twice("topicRoute", "-n", "N", "-t", topic)
    for wrong in () if twice.is_4x else ("+nonsense=1", "+queue.type=BatchCQ", "-reserve.time"):
        twice.differing_ends("updateTopic", "-n", "N", "-b", "B", "-t", topic, "-a", wrong)
    twice.differing_ends("updateTopic", "-n", "N", "-b", "B", "-t", "TBW102")
    twice("sendMessage", "-n", "N", "-t", topic, "-p", "body", "-b", "broker-a", "-i", "1")
    # RocketMQ 4 leaves out queues that are only read.
    status = twice("topicStatus", "-n", "N", "-t", topic, not_4x=r"\nbroker-a 2 0 0")
    assert re.search(r"broker-a 1 0 1 <time>", status)
    twice("deleteTopic", "-n", "N", "-c", "DefaultCluster", "-t", topic)
    assert "CODE: 17" in twice.differing_ends("topicStatus", "-n", "N", "-t", topic)
    twice.differing_ends("deleteTopic", "-n", "N", "-c", "DefaultCluster", "-t", "TBW102")


def test_messages(twice: Twice, unique: Unique) -> None:
    topic = made(twice, unique("topic"))
    by_key = ("queryMsgByKey", "-n", "N", "-t", topic, "-k", "key1")
    ids = []
    sent = ["sendMessage", "-n", "N", "-t", topic, "-p", "the body", "-k", "key1", "-c", "tagA"]
    for text in twice.each(*sent, "-b", "broker-a", "-i", "1"):
        found = re.search(r"\b[0-9A-F]{32}\b", text)
        assert found is not None, text
        ids.append(found[0])
    # Apache's index is filled a moment later.
    wait_until(lambda: all("\n<id>" in plain(text) for text in twice.each(*by_key)))
    assert "<id> 1 0" in plain(twice.each(*by_key)[0])
    for (nameserver, _), id in zip(twice.pairs, ids, strict=True):
        shown = twice.driver.mqadmin("queryMsgByUniqueKey", "-n", nameserver, "-t", topic, "-i", id)
        assert re.search(r"Tags: +\[?tagA", shown), shown
        facts = dict(re.findall(r"^(Store Host|CommitLog Offset): +(\S+)", shown, re.MULTILINE))
        place = offset_id(host_bytes(facts["Store Host"]), int(facts["CommitLog Offset"]))
        of_topic = [] if twice.is_4x else ["-t", topic]
        by_id = twice.driver.mqadmin("queryMsgById", "-n", nameserver, *of_topic, "-i", place)
        assert re.search(r"Keys: +\[?key1", by_id), by_id
    # RocketMQ 4's broker adds no properties to a message, so that each is shorter there.
    entries = twice(
        *("queryCq", "-n", "N", "-t", topic, "-q", "1", "-i", "0", "-c", "5", "-b", "B"),
        not_4x=r"physic(Offset|Size)=\d+",
    )
    assert "max: 1, min: 0" in entries


def test_groups_and_progress(twice: Twice, unique: Unique) -> None:
    topic, group = made(twice, unique("topic")), unique("group")
    twice("updateSubGroup", "-n", "N", "-b", "B", "-g", group, "-r", "3")
    assert "retryMaxTimes = 3" in twice("getConsumerConfig", "-n", "N", "-g", group)
    assert "CODE: 17" in twice.differing_ends("consumerProgress", "-n", "N", "-g", group)
    for number in range(3):
        twice("sendMessage", "-n", "N", "-t", topic, "-p", str(number), "-b", "broker-a", "-i", "0")
    handles = [
        twice.driver.call(
            "push.start",
            group=group,
            namesrv=nameserver,
            subscriptions=[{"topic": topic, "expression": "a || b || *"}],
            options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        )
        for nameserver, _ in twice.pairs
    ]
    # No message has such a tag: all are passed over. A total of 0 would not do: it is that too before the
    # group has pulled anything, and what is in flight afterwards is what it pulled.
    wait_until(
        lambda: all(
            re.search(r"broker-a +0 +3 +3 +0 " if twice.is_4x else r"broker-a +0 +3 +3 +0 +0 ", text)
            for text in twice.each("consumerProgress", "-n", "N", "-g", group)
        ),
        60,
    )
    twice("consumerConnection", "-n", "N", "-g", group)
    assert "Diff Total" in twice.each("consumerProgress", "-n", "N", "-g", group)[0]
    for text in twice.each("consumerStatus", "-n", "N", "-g", group):  # passed on to the consumer
        assert "Same subscription in the same group of consumer" in text, text
    for handle in handles:
        twice.driver.call("shutdown", handle=handle)
    # RocketMQ 4 cannot reset a group that is away by itself: its tool does it, and tells more of it.
    reset = r"broker-a +0 +(3 +3 +0 +)?0 " if twice.is_4x else r"broker-a +0 +0"
    for text in twice.each("resetOffsetByTime", "-n", "N", "-g", group, "-t", topic, "-s", "0"):
        assert re.search(reset, text), text
    # Whether RocketMQ 4's consumer knew the way to its retry topic in these seconds is a matter of luck.
    retries = r"%RETRY%\S+ broker-a 0 0 0 0 N/A\n"
    progress = twice("consumerProgress", "-n", "N", "-g", group, not_4x=retries)
    assert "Diff Total: 3" in progress
    # Where the group pulled last stays what it was, whatever is reset.
    assert twice.is_4x or "Inflight Total: 3" in progress
    of_topic = [] if twice.is_4x else ["-t", topic]
    assert "Diff Total: 3" in twice("consumerProgress", "-n", "N", "-g", group, *of_topic, not_4x=retries)
    twice.differing_ends("consumerConnection", "-n", "N", "-g", group)
    twice.differing_ends("producerConnection", "-n", "N", "-g", "nobody", "-t", topic)
    stats = twice.each("statsAll", "-n", "N", "-t", topic)
    assert group in stats[0], stats
    if not twice.is_4x:
        twice("setConsumeMode", "-n", "N", "-b", "B", "-t", topic, "-g", group, "-m", "PULL", "-q", "8")
    twice("deleteSubGroup", "-n", "N", "-b", "B", "-g", group, "-r", "true")
    twice("updateSubGroup", "-n", "N", "-b", "B", "-g", group)


def test_settings(twice: Twice) -> None:
    def settings() -> list[dict[str, str]]:
        return [
            dict(re.findall(r"^(\S+)\s*=\s*(\S*)\s*$", text, re.MULTILINE))
            for text in twice.each("getBrokerConfig", "-n", "N", "-b", "B")
        ]

    mine, theirs = settings()
    for key in ("brokerName", "brokerClusterName", "brokerPermission", "defaultTopicQueueNums", "brokerRole"):
        assert mine[key] == theirs[key]
    said = twice("updateBrokerConfig", "-n", "N", "-b", "B", "-k", "slaveReadEnable", "-v", "true")
    assert "success" in said
    assert [found["slaveReadEnable"] for found in settings()] == ["true", "true"]
    twice("updateBrokerConfig", "-n", "N", "-b", "B", "-k", "slaveReadEnable", "-v", "false")
    for key in () if twice.is_4x else ("brokerConfigPath", "rocketmqHome", "configBlackList"):
        refused = twice.differing_ends("updateBrokerConfig", "-n", "N", "-b", "B", "-k", key, "-v", "x")
        assert "CODE: 16" in refused


def test_todays_total_leaves_out_topics_of_the_broker(twice: Twice, unique: Unique) -> None:
    if twice.is_4x:
        pytest.skip("RocketMQ 4 counts them")
    topic = made(twice, unique("topic"))

    def totals() -> list[int]:
        """#InTotalToday of both. The tool shows 0 for a broker that took too long: the largest of three."""
        asked = [twice.each("clusterList", "-n", "N", "-m") for _ in range(3)]
        return [
            max(int(text.splitlines()[1].split()[4]) for text in side) for side in zip(*asked, strict=True)
        ]

    before = totals()
    for _ in range(3):
        twice.each("sendMessage", "-n", "N", "-t", topic, "-p", "x")
    for _ in range(2):
        twice.each("sendMessage", "-n", "N", "-t", "BenchmarkTest", "-p", "x")  # a system topic
    assert [now - then for now, then in zip(totals(), before, strict=True)] == [3, 3]


def test_exported_metrics_name_the_processors(twice: Twice, tmp_path: Path) -> None:
    found = []
    for number, (nameserver, _) in enumerate(twice.pairs):
        folder = tmp_path / str(number)
        folder.mkdir()
        words = ("exportMetrics", "-n", nameserver, "-c", "DefaultCluster", "-f", str(folder))
        twice.driver.mqadmin_full(*words)
        document = json.loads((folder / "metrics.json").read_text())
        reports = document["evaluateReport"]
        found.append(next(iter(reports.values()))["runtimeEnv"]["cpuNum"])
    assert found[0] == found[1] == str(os.cpu_count())


def test_orders(twice: Twice) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in twice(command, "-n", "N", "-b", "B")
    if not twice.is_4x:
        mine, _ = twice.each("haStatus", "-n", "N", "-b", "B")
        assert "#SlaveNum\t0" in mine
    mine, _ = twice.each("brokerConsumeStats", "-n", "N", "-b", "B")
    assert "Diff Total" in mine


def test_our_commands_do_the_same_with_both(twice: Twice, unique: Unique) -> None:
    topic, group = unique("topic"), unique("group")
    shown = []
    for nameserver, _ in twice.pairs:

        def run(*words: str, server: str = nameserver) -> Any:
            result = CliRunner().invoke(app, [*words, "--json"], env={"NAMESRV_ADDR": server})
            assert result.exit_code == 0, result.output
            return json.loads(result.stdout)

        def missing(*words: str, server: str = nameserver) -> tuple[int, str]:
            result = CliRunner().invoke(app, [*words, "--json"], env={"NAMESRV_ADDR": server})
            return result.exit_code, json.loads(result.stderr)["kind"]

        def indexed(server: str = nameserver) -> bool:
            words = ["message", "find", topic, "--key", "k", "--json"]
            result = CliRunner().invoke(app, words, env={"NAMESRV_ADDR": server})
            return result.exit_code == 0 and len(json.loads(result.stdout)["messages"]) == 2

        rows = [run("topic", "create", topic, "--queues", "2", "--attribute", "message.type=NORMAL")]
        rows.append(run("topic", "update", topic, "--read-queues", "3"))
        assert run("send", topic, "one", "two", "--queue", "1", "--key", "k", "--tag", "a")["sent"] == 2
        wait_until(indexed)
        found = run("message", "find", topic, "--from", "1h")
        assert [message["body"] for message in found["messages"]] == ["one", "two"]
        first = found["messages"][0]
        assert run("message", "get", first["messageId"], "--topic", topic) == first
        assert run("message", "get", first["offsetMessageId"]) == {**first, "broker": None}
        stats = run("topic", "stats", topic)
        shown_by_both = 2 if twice.is_4x else 3  # see test_topics
        ends = [(row["queueId"], row["minOffset"], row["maxOffset"]) for row in stats]
        rows.append(ends[:shown_by_both])
        rows.append(run("group", "create", group, "--retries", "3"))
        rows.append(run("group", "reset", group, topic, "--to", "earliest", "--yes"))
        rows.append(run("group", "lag", group)["queues"])
        rows.append(run("group", "members", group))
        assert group in {row["group"] for row in run("group", "list")}
        tailed = CliRunner().invoke(app, ["tail", topic, "--from", "0", "--count", "2", "-n", nameserver])
        rows.append([line.split()[-1] for line in tailed.stdout.splitlines()])
        (broker,) = [row for row in run("cluster", "list") if row["broker"] == "broker-a"]
        # Apache's broker has no rates in its first seconds.
        rows.append([k for k, value in broker.items() if value is not None and k not in ("inTps", "outTps")])
        for words in (
            ("topic", "route", f"{topic}x"),
            ("topic", "delete", f"{topic}x", "--yes"),
            ("group", "lag", f"{group}x"),
            ("group", "lag", group, "--topic", f"{topic}x"),
            ("group", "members", f"{group}x"),
            ("group", "reset", f"{group}x", topic, "--to", "earliest", "--yes"),
            ("group", "delete", f"{group}x", "--yes"),
            ("message", "find", topic, "--key", "none"),
            ("message", "get", first["offsetMessageId"][:-16] + "00000000FFFFFFFF"),
            ("dlq", "show", f"{group}x"),
            ("kv", "get", "NOWHERE", "key"),
        ):
            exit_code, kind = missing(*words)
            assert (exit_code, kind) in ((1, "NotFound"), (1, "NoSuchTopic")), words
        rows.append(run("group", "delete", group, "--yes"))
        rows.append(run("topic", "delete", topic, "--yes"))
        shown.append(rows)
    assert shown[0] == shown[1]
