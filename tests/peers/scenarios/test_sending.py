"""A producer sends in every way there is, and every field of what comes back is right."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from ..driver import JavaDriver, JavaError
from .client import Client, body, place
from .cluster import Cluster

Unique = Callable[[str], str]

LIMIT = 4 * 1024 * 1024
UNCOMPRESSED = {"compressMsgBodyOverHowmuch": 2**31 - 1}
COMPRESSION_KIND = 0x700  # of the flags; the bit that says "compressed" is cleared by the client


def check_result(result: dict[str, Any], cluster: Cluster, topic: str) -> None:
    assert result["status"] == "SEND_OK"
    assert re.fullmatch(r"[0-9A-F]{32}", result["msgId"])
    assert re.fullmatch(r"[0-9A-F]{32}", result["offsetMsgId"])
    assert place(result["offsetMsgId"])[0] == cluster.broker.address
    assert (result["queue"]["topic"], result["queue"]["brokerName"]) == (topic, cluster.broker.name)
    assert result["transactionId"] == (None if cluster.is_apache_4 else result["msgId"])
    assert (result["regionId"], result["traceOn"]) == ("DefaultRegion", True)


def test_every_way_to_send(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"))
    producer = client.producer(unique("pid"))
    message: dict[str, Any] = {
        "tags": "A", "keys": ["k1", "k2"], "flag": 7, "properties": {"colour": "red", "Ärger": "größer"},
    }  # fmt: skip
    sync = producer.send(topic, "sync", **message)
    check_result(sync, cluster, topic)
    queue = sync["queue"]
    results = {
        "sync": sync,
        "async": producer.send(topic, "async", mode="async"),
        "queue": producer.send(topic, "queue", queue=queue),
        "async queue": producer.send(topic, "async queue", queue=queue, mode="async"),
        "selector": producer.send(topic, "selector", selector="index", arg=2),
        "async selector": producer.send(topic, "async selector", selector="index", arg=3, mode="async"),
    }
    for result in results.values():
        check_result(result, cluster, topic)
    assert results["queue"]["queue"] == results["async queue"]["queue"] == queue
    assert results["selector"]["queue"]["queueId"] == 2
    assert results["async selector"]["queue"]["queueId"] == 3
    # Numbers of a queue have no gaps.
    for number in range(4):
        offsets = [r["queueOffset"] for r in results.values() if r["queue"]["queueId"] == number]
        assert offsets == list(range(len(offsets)))

    batch = producer.send_batch([{"topic": topic, "text": f"batch {n}", "tags": "B"} for n in range(3)])
    assert batch["status"] == "SEND_OK"
    batch_ids, batch_places = batch["msgId"].split(","), batch["offsetMsgId"].split(",")
    assert len(set(batch_ids)) == len(set(batch_places)) == 3
    assert [place(each)[0] for each in batch_places] == [cluster.broker.address] * 3
    assert (batch["regionId"], batch["traceOn"]) == ("DefaultRegion", True)
    assert producer.send(topic, "oneway", mode="oneway") is None
    assert producer.send(topic, "oneway queue", mode="oneway", queue=queue) is None
    assert producer.send(topic, "oneway selector", mode="oneway", selector="index", arg=1) is None

    records = {
        body(record).decode(): record for record in client.push(unique("group"), topic, body=True).take(12)
    }
    assert len(records) == 12
    for text, result in results.items():
        record = records[text]
        assert record["msgId"] == result["msgId"]
        assert record["offsetMsgId"] == result["offsetMsgId"]
        assert record["queueId"] == result["queue"]["queueId"]
        assert record["queueOffset"] == result["queueOffset"]
        assert record["commitLogOffset"] == place(result["offsetMsgId"])[1]
        assert record["brokerName"] == cluster.broker.name
    for number in range(3):
        record = records[f"batch {number}"]
        assert record["msgId"] == batch_ids[number]
        assert record["offsetMsgId"] == batch_places[number]
        assert record["queueId"] == batch["queue"]["queueId"]
        assert record["queueOffset"] == batch["queueOffset"] + number
    assert records["oneway queue"]["queueId"] == queue["queueId"]
    assert records["oneway selector"]["queueId"] == 1

    one = records["sync"]
    assert (one["topic"], one["tags"], one["keys"], one["flag"]) == (topic, "A", "k1 k2", 7)
    properties = dict(one["properties"])
    assert int(properties.pop("MIN_OFFSET")) == 0
    assert int(properties.pop("MAX_OFFSET")) >= 1
    properties.pop("CONSUME_START_TIME", None)
    expected = {
        "TAGS": "A", "KEYS": "k1 k2", "colour": "red", "Ärger": "größer", "WAIT": "true",
        "UNIQ_KEY": sync["msgId"], "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
    }  # fmt: skip
    if cluster.is_apache_4:
        for absent in ("WAIT", "MSG_REGION", "TRACE_ON"):
            del expected[absent]
    assert properties == expected
    assert one["storeHost"] == f"/{cluster.broker.address}"
    assert one["bornHost"].startswith("/127.0.0.1:")
    assert one["sysFlag"] == 0
    assert one["reconsumeTimes"] == one["preparedTransactionOffset"] == 0
    assert one["bodyCrc"] == one["storeBodyCrc"] == zlib.crc32(b"sync") & 0x7FFFFFFF
    assert 0 <= one["storeTimestamp"] - one["bornTimestamp"] < 10_000
    # Topic, properties and body follow 91 fixed bytes, of which eight are the two IPv4 addresses.
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    assert cluster.is_apache_4 or one["storeSize"] - (91 + len(b"sync") + len(topic) + len(text)) in (0, -1)
    # Inner messages of a batch carry what their producer gave them, and nothing of the broker's.
    inner = set(records["batch 1"]["properties"]) - {"MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"}
    assert {"TAGS", "UNIQ_KEY", "WAIT"} <= inner


@pytest.mark.parametrize("compressed", [False, True])
def test_bodies_up_to_the_limit(cluster: Cluster, client: Client, unique: Unique, compressed: bool) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), 1)
    producer = client.producer(unique("pid"), options={} if compressed else UNCOMPRESSED)
    limit = LIMIT - 1024 if cluster.kind == "ledger" else LIMIT  # a DLedger entry has no room for more
    sizes = [1, 4095, 4096, 4097, 100_000, limit - 1, limit]
    for size in sizes:
        assert producer.send_many(topic, 1, size=size)["sent"] == 1
    records = client.push(unique("group"), topic).take(len(sizes))
    records.sort(key=lambda record: record["queueOffset"])  # consumed by many threads
    assert [record["bodySize"] for record in records] == sizes
    for record, size in zip(records, sizes, strict=True):
        assert record["bodyCrc"] == zlib.crc32(b"0".ljust(size, b".")) & 0x7FFFFFFF
        # Java's producer compresses from 4096 bytes on; the broker keeps what it was given.
        assert bool(record["sysFlag"] & COMPRESSION_KIND) == (compressed and size >= 4096)
    if not compressed:
        assert [record["storeSize"] - size for record, size in zip(records, sizes, strict=True)][1:] == [
            records[0]["storeSize"] - 1
        ] * (len(sizes) - 1)


def test_bodies_that_are_refused(
    cluster: Cluster, client: Client, java_driver: JavaDriver, unique: Unique
) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), 1)
    producer = client.producer(unique("pid"))
    # The client does not even ask.
    for wrong, said in (("", "the message body length is zero"), ("x" * (LIMIT + 1), "size over max value")):
        with pytest.raises(JavaError, match=said) as refused:
            producer.send(topic, wrong)
        assert (refused.value.simple_class, refused.value.code) == ("MQClientException", 13)
    # The broker says no to one byte more than it takes, and keeps the connection.
    generous = client.producer(unique("pid"), options={**UNCOMPRESSED, "maxMessageSize": 8 << 20})
    for mode in ("sync", "async"):
        with pytest.raises(JavaError, match="CODE: 13") as refused:
            generous.send(topic, "x" * (LIMIT + 1), mode=mode)
        assert (refused.value.simple_class, refused.value.code) == ("MQBrokerException", 13)
        assert str(LIMIT) in refused.value.message
    long_property = {"properties": {"long": "y" * 33_000}}
    with pytest.raises(JavaError, match="CODE: 13"):
        generous.send(topic, "x", **long_property)
    batch = [{"topic": topic, "body": base64.b64encode(b"z" * (LIMIT // 4)).decode()} for _ in range(5)]
    with pytest.raises(JavaError, match=r"CODE: 13?\b"):  # Apache says 1, which its client tries thrice
        generous.send_batch(batch)
    assert generous.send(topic, "fits")["queueOffset"] == 0


def test_no_body_at_all_is_refused(
    cluster: Cluster, client: Client, java_driver: JavaDriver, unique: Unique
) -> None:
    """Java's producer sends none such, others may."""
    topic = cluster.create_topic(client.driver, unique("topic"), 1)
    remoting = java_driver.call("remoting.start")
    fields = {
        "a": "pid_bare", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
        "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    answers = [
        java_driver.call(
            "remoting.invoke", handle=remoting, address=cluster.broker.address, code=310, extFields=fields,
            **({} if text is None else {"body": base64.b64encode(text).decode()}),
        )
        for text in (None, b"", b"x")
    ]  # fmt: skip
    # Apache's 5.x stumbles (1); to say why (13) tells a client the same. 4.9 took them.
    taken = cluster.is_apache_4
    assert {answer["code"] for answer in answers[:2]} <= ({0} if taken else {1, 13})
    assert (answers[2]["code"], answers[2]["extFields"]["queueOffset"]) == (0, "2" if taken else "0")


def test_unknown_topics_and_queues(
    cluster: Cluster, client: Client, java_driver: JavaDriver, unique: Unique
) -> None:
    producer = client.producer(unique("pid"))
    made = unique("auto")
    first = producer.send(made)
    check_result(first, cluster, made)
    assert first["queueOffset"] == 0
    config = client.admin().method("examineTopicConfig", cluster.broker.address, made)
    assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (4, 4, 6)
    for topic, code in (("TBW102", 0), ("SCHEDULE_TOPIC_XXXX", None), ("no spaces", None)):
        if code == 0:
            assert producer.send(topic)["status"] == "SEND_OK"
            continue
        with pytest.raises(JavaError) as refused:
            producer.send(topic)
        assert refused.value.simple_class == "MQClientException"
    remoting = java_driver.call("remoting.start")

    def bare(topic: str, queue: int, template: str = "TBW102") -> tuple[int, str]:
        fields = {
            "a": "pid_bare", "b": topic, "c": template, "d": "4", "e": str(queue), "f": "0",
            "g": "1700000000000", "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        answer = java_driver.call(
            "remoting.invoke", handle=remoting, address=cluster.broker.address, code=310, extFields=fields,
            body=base64.b64encode(b"x").decode(),
        )  # fmt: skip
        return answer["code"], (answer["extFields"] or {}).get("queueId", "")

    invalid = 1 if cluster.is_apache_4 else 29
    assert bare(made, 4)[0] == invalid
    assert bare(made, 3) == (0, "3")
    code, picked = bare(made, -1)
    assert code == 0
    assert picked in {"0", "1", "2", "3"}
    assert bare("no/such?name", 0)[0] == invalid
    assert bare("SCHEDULE_TOPIC_XXXX", 0)[0] == 16
    assert bare(unique("none"), 0, template="NoTemplate")[0] == 17
