"""Producers and consumers that trace: what they did can be read back from the trace topic."""

from __future__ import annotations

import re
from collections.abc import Callable

from .client import Client, body, wait_until
from .cluster import Cluster

Unique = Callable[[str], str]

TRACES = "RMQ_SYS_TRACE_TOPIC"


def test_what_was_done_is_told(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic, group = cluster.create_topic(client.driver, unique("topic")), unique("group")
    traces = client.push(unique("traces"), TRACES, body=True)
    consumer = client.push(group, topic, trace=True)
    producer = client.producer(unique("pid"), trace=True)
    sent = [producer.send(topic, f"m{n}", keys=f"key{n}", tags="T") for n in range(3)]
    consumer.wait(3)
    told: list[list[str]] = []
    ids = {result["msgId"] for result in sent}

    def complete() -> bool:
        for record in traces.drain():
            lines = [line.split("\x01") for line in body(record).decode().split("\x02")]
            told.extend(line for line in lines if ids & set(line))
        return len(told) >= 9

    wait_until(complete, "three records of each message")
    # Not before: a 4.9 client that is stopped may lose what it has not told yet.
    producer.stop()
    consumer.stop()
    by_kind = {kind: [line for line in told if line[0] == kind] for kind in ("Pub", "SubBefore", "SubAfter")}
    assert {kind: len(lines) for kind, lines in by_kind.items()} == {"Pub": 3, "SubBefore": 3, "SubAfter": 3}
    for line in by_kind["Pub"]:
        result = next(each for each in sent if each["msgId"] == line[5])
        assert (line[2], line[4], line[6]) == ("DefaultRegion", topic, "T")
        assert line[8] == cluster.broker.address
        assert line[12] == result["offsetMsgId"]
    assert {line[3] for line in by_kind["SubBefore"]} == {group}
    # The tool finds them by the message's id.
    printed = client.mqadmin("queryMsgTraceById", "-i", sent[0]["msgId"])
    assert re.search(r"Pub\b", printed)
    assert group in printed
