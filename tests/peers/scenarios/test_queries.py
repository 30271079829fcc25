"""Somebody looks for messages: by key, by the client's id, by the broker's id."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ..driver import JavaError
from .client import Client, Handle, body, wait_until
from .cluster import Cluster

Unique = Callable[[str], str]


def by_key(admin: Handle, topic: str, key: str, **args: Any) -> list[dict[str, Any]]:
    try:
        return list(admin.do("query.byKey", topic=topic, key=key, **args))
    except JavaError as error:
        if error.code != 208:  # nothing found
            raise
        return []


def test_find_messages(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"))
    producer = client.producer(unique("pid"))
    sent = [
        producer.send(topic, f"text {number}", keys=["common", f"key{number}"], tags="T")
        for number in range(5)
    ]
    batch = producer.send_batch([{"topic": topic, "text": f"b{n}", "keys": f"batch{n}"} for n in range(3)])
    admin = client.admin()
    wait_until(lambda: len(by_key(admin, topic, "batch2")) == 1, "the last message has its key")
    assert {m["msgId"] for m in by_key(admin, topic, "common")} == {r["msgId"] for r in sent}
    (three,) = by_key(admin, topic, "key3")
    assert (three["msgId"], body(three), three["keys"]) == (sent[3]["msgId"], b"text 3", "common key3")
    assert by_key(admin, topic, "key") == []
    assert by_key(admin, topic, "nothing") == []
    other = cluster.create_topic(client.driver, unique("other"))
    assert by_key(admin, other, "common") == []
    # At most so many, and only of the time asked for.
    assert len(by_key(admin, topic, "common", max=2)) == 2
    stored = [m["storeTimestamp"] for m in by_key(admin, topic, "common")]
    assert by_key(admin, topic, "common", begin=max(stored) + 60_000) == []
    assert by_key(admin, topic, "common", end=min(stored) - 60_000) == []
    # The index keeps whole seconds.
    assert len(by_key(admin, topic, "common", begin=min(stored) - 1000, end=max(stored) + 1000)) == 5

    # By both ids, through the client and through the tool.
    for result in (sent[2], {k: batch[k].split(",")[1] for k in ("msgId", "offsetMsgId")}):
        for name in ("msgId", "offsetMsgId"):
            found = admin.do("query.byId", topic=topic, msgId=result[name])
            assert found["msgId"] == result["msgId"]
    printed = client.mqadmin("queryMsgByUniqueKey", "-t", topic, "-i", sent[1]["msgId"])
    assert sent[1]["msgId"] in printed
    assert re.search(r"Keys:\s+\[common key1\]", printed)
    assert re.search(rf"Queue Offset:\s+{sent[1]['queueOffset']}\b", printed)
    of_topic = [] if client.driver.jars.is_4x else ["-t", topic]
    printed = client.mqadmin("queryMsgById", *of_topic, "-i", sent[1]["offsetMsgId"])
    assert re.search(rf"OffsetID:\s+{sent[1]['offsetMsgId']}", printed)
    assert re.search(r"Tags:\s+\[T\]", printed)
    printed = client.mqadmin("queryMsgByKey", "-t", topic, "-k", "key4")
    assert sent[4]["msgId"] in printed
    queue = sent[1]["queue"]
    printed = client.mqadmin(
        "queryMsgByOffset", "-t", topic, "-b", queue["brokerName"], "-i", str(queue["queueId"]),
        "-o", str(sent[1]["queueOffset"]),
    )  # fmt: skip
    assert sent[1]["offsetMsgId"] in printed
    # An id that points between two messages, and one that points nowhere.
    for shift in (1, 1 << 40):
        wrong = f"{int(sent[0]['offsetMsgId'], 16) + shift:032X}"
        with pytest.raises(JavaError):
            admin.method("viewMessage", topic, wrong)
