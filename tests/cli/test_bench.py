"""``kerolox bench`` against a broker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox.cli.bench import user_properties
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.signature import verify
from tests.cli.serving import Cluster, running_cluster

SENT = re.compile(
    r"\[Complete\] Send Total: (\d+) \| Send TPS: (\d+) \| Max RT\(ms\): \d+ \| Average RT\(ms\): +[\d.]+ "
    r"\| Send Failed: (\d+) \| Response Failed: (\d+)"
)
SENT_BATCHES = re.compile(
    r"\[Complete\] Send Total: (\d+) \| Send TPS: (\d+) \| Send MPS: (\d+) \| Max RT\(ms\): \d+ \| "
    r"Average RT\(ms\): +[\d.]+ \| Average Message RT\(ms\): +[\d.]+ \| "
    r"Send Failed: 0 \| Send Message Failed: 0"
)
CONSUMED = re.compile(
    r"\[Complete\] Consume Total: (\d+) \| Consume TPS: (\d+) \| AVG\(B2C\) RT\(ms\): +[\d.]+ \| "
    r"AVG\(S2C\) RT\(ms\): +[\d.]+ \| MAX\(B2C\) RT\(ms\): \d+ \| MAX\(S2C\) RT\(ms\): \d+ \| Consume Fail: 0"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


def stored(cluster: Cluster, topic: str) -> int:
    return sum(queue["messages"] for queue in cluster.json("topic", "stats", topic))


def test_send_and_consume(cluster: Cluster) -> None:
    out = cluster.ok("bench", "send", "-t", "b1", "-w", "4", "-s", "100", "-q", "50", "-k", "true", "-l", "3")
    assert out.startswith("topic: b1, threadCount: 4, messageSize: 100, keyEnable: true, ")
    found = SENT.search(out)
    assert found, out
    assert (found[1], found[3], found[4]) == ("50", "0", "0")
    assert int(found[2]) > 0
    assert stored(cluster, "b1") == 50
    consumed = cluster.ok("bench", "consume", "-t", "b1", "-g", "g1", "-q", "50")
    assert "Consumer Started." in consumed
    done = CONSUMED.search(consumed)
    assert done, consumed
    assert done[1] == "50"
    # What was consumed is committed: the group has nothing left.
    assert cluster.json("group", "lag", "g1")["lag"] == 0


def test_figures_for_programs(cluster: Cluster) -> None:
    """On stdout there is nothing else."""
    sent = cluster.json("bench", "send", "-t", "b0", "-w", "4", "-q", "50", "-b", "5")
    assert (sent["topic"], sent["messages"], sent["requests"], sent["failed"]) == ("b0", 50, 10, 0)
    assert 0 < sent["averageMs"] <= sent["maxMs"]
    found = cluster.json("bench", "consume", "-t", "b0", "-g", "g0", "-q", "50")
    assert (found["group"], found["messages"], found["failed"]) == ("g0", 50, 0)
    assert found["messagesPerSecond"] > 0


def test_messages_have_what_was_asked_for(cluster: Cluster) -> None:
    cluster.ok(
        "bench", "send", "-t", "b2", "-w", "1", "-s", "7", "-q", "1", "-k", "true", "-l", "1", "-p", "30"
    )
    (message,) = cluster.json("message", "find", "b2")["messages"]
    assert message["tag"] == "tag0"
    assert len(message["keys"]) == 1
    assert message["properties"]["prop0"] == "hello0"
    assert message["body"] == "0123456"


def test_batches(cluster: Cluster) -> None:
    out = cluster.ok("bench", "send", "-t", "b3", "-w", "2", "-b", "16", "-q", "40")
    found = SENT_BATCHES.search(out)
    assert found, out
    assert found[1] == "40"
    assert int(found[3]) >= int(found[2]) > 0
    assert stored(cluster, "b3") == 40  # two batches of 16 and the rest


def test_asynchronous_and_reports(cluster: Cluster) -> None:
    out = cluster.ok("bench", "send", "-t", "b4", "-y", "true", "-q", "3000", "-ri", "20")
    assert "asyncEnable: true" in out
    assert re.search(
        r"Current Time: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \| Send TPS: \d+ \| Max RT\(ms\)", out
    )
    assert stored(cluster, "b4") == 3000


def test_filter_from_a_file(cluster: Cluster, tmp_path: Path) -> None:
    cluster.ok("send", "b5", "no", "--tag", "TagA", "--queue", "0")
    cluster.ok("send", "b5", "yes", "--tag", "TagB", "--queue", "0")
    expression = tmp_path / "expression"
    expression.write_text("TagB\n")
    out = cluster.ok(
        "bench", "consume", "-t", "b5", "-g", "g5", "-f", "TAG", "-e", str(expression), "-q", "1"
    )
    done = CONSUMED.search(out)
    assert done, out
    assert done[1] == "1"


def test_large_bodies_are_compressed_on_the_way(cluster: Cluster) -> None:
    def sizes(topic: str, size: int, *flags: str) -> tuple[int, int]:
        cluster.ok("bench", "send", "-t", topic, "-w", "1", "-s", str(size), "-q", "1", *flags)
        found = cluster.json("message", "find", topic)["messages"][0]
        return len(found["body"]), cluster.running.broker.figures.stats.puts[topic].size_bytes

    assert sizes("c0", 5000)[1] > 5000
    for kind in ("ZLIB", "lz4", "ZSTD"):
        plain, stored_size = sizes(f"c-{kind}", 5000, "-c", "true", "-ct", kind)
        assert plain == 5000  # whoever reads it gets it as it was
        assert stored_size < 1000
    assert sizes("c1", 4000, "-c", "true")[1] > 4000  # not from 4096 bytes on
    assert sizes("c2", 4000, "-c", "true", "-ch", "100", "-cl", "9")[1] < 1000


def test_requests_are_signed() -> None:
    seen: list[Command] = []
    with running_cluster() as cluster:
        cluster.running.broker.ports.handlers.add_gate(lambda request: seen.append(request.ticket))
        flags = ("-a", "true", "-ak", "me", "-sk", "secret")
        cluster.ok("bench", "send", "-t", "signed", "-w", "1", "-q", "2", *flags)
        cluster.ok("bench", "consume", "-t", "signed", "-g", "signed", "-q", "2", *flags)
    sends = [request for request in seen if request.code == RequestCode.SEND_MESSAGE_V2]
    pulls = [request for request in seen if request.code == RequestCode.PULL_MESSAGE]
    assert len(sends) == 2
    assert pulls
    for request in sends + pulls:
        assert request.fields["AccessKey"] == "me"
        assert verify(request.fields, request.body, "secret", request.version)


def test_messages_that_fail_are_given_back(cluster: Cluster) -> None:
    cluster.ok("bench", "send", "-t", "failing", "-w", "1", "-q", "5")
    out = cluster.ok("bench", "consume", "-t", "failing", "-g", "unlucky", "-q", "5", "-r", "1")
    assert "Consume Fail: 5" in out
    backs = cluster.running.broker.figures.stats.send_backs
    assert sum(flow.messages for (_, group), flow in backs.items() if group == "unlucky") == 5
    assert cluster.json("group", "lag", "unlucky", "--topic", "failing")["lag"] == 0


def test_messages_are_traced(cluster: Cluster) -> None:
    cluster.ok("bench", "send", "-t", "traced", "-w", "1", "-q", "3", "-m", "true", "-k", "true")
    cluster.ok("bench", "consume", "-t", "traced", "-g", "traced", "-q", "3", "-m", "true")
    sent = {message["messageId"] for message in cluster.json("message", "find", "traced")["messages"]}
    records = [
        record.split("\x01")
        for message in cluster.json("message", "find", "RMQ_SYS_TRACE_TOPIC")["messages"]
        for record in message["body"].split("\x02")
        if record
    ]
    for kind, place in (("Pub", 5), ("SubBefore", 5), ("SubAfter", 2)):
        assert {record[place] for record in records if record[0] == kind} == sent
    (first, *_) = [record for record in records if record[0] == "Pub"]
    assert (first[2], first[3], first[4]) == ("DefaultRegion", "benchmark_producer", "traced")
    assert (first[8], first[9], first[11], first[13]) == (cluster.running.address, "128", "0", "true")


def test_refusals(cluster: Cluster) -> None:
    assert "-k" in cluster.error("bench", "send", "-k", "perhaps")
    assert "cannot be delayed" in cluster.error("bench", "send", "-b", "2", "-d", "true")
    assert "not compressed" in cluster.error("bench", "send", "-b", "2", "-c", "true")
    assert "one of ZLIB" in cluster.error("bench", "send", "-c", "true", "-ct", "RAR")
    assert "0 to 9" in cluster.error("bench", "send", "-c", "true", "-cl", "12")
    assert "TAG or SQL92" in cluster.error("bench", "consume", "-f", "XPATH")


def test_user_properties_reach_the_size() -> None:
    assert user_properties(0) == {}
    assert user_properties(1) == {"prop0": "hello0"}
    found = user_properties(100)
    length = sum(len(name) + len(value) for name, value in found.items())
    assert 100 <= length < 100 + 15


@pytest.mark.parametrize("command", ["send", "consume"])
def test_help_has_an_example(cluster: Cluster, command: str) -> None:
    assert f"Example: kerolox bench {command}" in " ".join(cluster.ok("bench", command, "--help").split())
